"""The field names of the hash of a job. Calls by ``jobs/job_hash.py`` take no others."""

from __future__ import annotations

from typing import Final, Literal, get_args

# What a job is read by. Named one by one: other fields of a job hash may hold bytes that are not text.
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
"""The fields by their names; those with ``gmo:`` are ours. Fields of one thing each (``usage:<category>``,
``depdone:<ref>``, ``gmo:dep:<ref>``) are written by the server functions."""

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
"""What a node that runs again forgets; ``lua/glidemq_orchestrate/parts/fresh.lua`` has the same list."""
