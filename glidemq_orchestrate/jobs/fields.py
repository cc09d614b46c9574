"""The field names of a job's hash. ``jobs/job_hash.py`` accepts no others."""

from __future__ import annotations

from typing import Final, Literal, get_args

# The fields to read; never all of them, since others may contain bytes that are not text.
_Read = Literal[
    "id", "name", "opts", "timestamp", "attemptsMade", "state", "delay", "priority", "maxAttempts",
    "processedOn", "finishedOn", "failedReason", "parentId", "parentQueue", "orderingKey", "groupKey",
    "cost", "expireAt", "lifo", "progress", "revoked", "stalledCount", "schedulerName", "tpmTokens",
    "fallbackIndex", "gmo:flow", "gmo:home", "gmo:node", "lastActive", "gmo:token", "gmo:lost",
]  # fmt: skip
_Payload = Literal["data", "returnvalue"]
_Else = Literal[
    "parentIds", "parentQueues", "depsCompleted", "suspendReason", "suspendedAt", "suspendTimeout", "signals",
    "gmo:entry", "gmo:round", "gmo:skipped", "gmo:begun", "gmo:waited", "gmo:repeats", "gmo:end",
    "gmo:queue_timeout", "gmo:unhandled", "activeSource", "gmo:grows", "gmo:requests", "gmo:withdrawn",
    "gmo:messages", "gmo:accepted", "gmo:epoch", "gmo:ran", "gmo:suspect", "gmo:removed", "gmo:gone",
    "gmo:published", "gmo:cut",
]  # fmt: skip
JobField = Literal[_Read, _Payload, _Else]
"""The fixed field names; those with ``gmo:`` are ours. Server functions also write fields with variable
names (``usage:<category>``, ``depdone:<ref>``, ``gmo:dep:<ref>``)."""

FIELD_FLOW: Final = "gmo:flow"
FIELD_HOME: Final = "gmo:home"
FIELD_NODE: Final = "gmo:node"
JOB_FIELDS_WITHOUT_PAYLOAD: Final[tuple[JobField, ...]] = get_args(_Read)
JOB_FIELDS: Final[tuple[JobField, ...]] = (*JOB_FIELDS_WITHOUT_PAYLOAD, *get_args(_Payload))
OF_ONE_RUN: Final[tuple[JobField, ...]] = (
    "activeSource", "fallbackIndex", "gmo:accepted", "gmo:begun", "gmo:end", "gmo:entry", "gmo:lost",
    "gmo:messages", "gmo:published", "gmo:ran", "gmo:skipped", "gmo:suspect", "gmo:token", "gmo:unhandled",
    "gmo:waited", "lastActive", "processedOn", "progress", "returnvalue", "revoked", "signals",
    "stalledCount", "suspendReason", "suspendTimeout", "suspendedAt", "tpmTokens",
)  # fmt: skip
"""The fields deleted when a node reruns; ``lua/glidemq_orchestrate/parts/fresh.lua`` has the same list."""
