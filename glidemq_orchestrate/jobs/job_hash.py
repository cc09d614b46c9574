"""The hash of a job: the names of its fields, and calls on single fields. mypy refuses other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, get_args

from glidemq_orchestrate.errors import JobNotFound
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

# The fields to read; never all of them, since others may contain bytes that are not text.
_Read = Literal[
    "id", "name", "opts", "timestamp", "attemptsMade", "state", "delay", "priority", "maxAttempts",
    "processedOn", "finishedOn", "failedReason", "parentId", "parentQueue", "orderingKey", "groupKey",
    "cost", "expireAt", "lifo", "progress", "revoked", "stalledCount", "schedulerName", "tpmTokens",
    "fallbackIndex", "gmo:flow", "gmo:home", "gmo:node", "lastActive", "gmo:token", "gmo:lost", "gmo:tags",
    "gmo:schedule",
]  # fmt: skip
_Payload = Literal["data", "returnvalue"]
_Else = Literal[
    "parentIds", "parentQueues", "depsCompleted", "suspendReason", "suspendedAt", "suspendTimeout", "signals",
    "gmo:entry", "gmo:round", "gmo:skipped", "gmo:begun", "gmo:waited", "gmo:repeats", "gmo:end",
    "gmo:queue_timeout", "gmo:unhandled", "activeSource", "gmo:grows", "gmo:requests", "gmo:withdrawn",
    "gmo:messages", "gmo:accepted", "gmo:epoch", "gmo:ran", "gmo:suspect", "gmo:removed", "gmo:gone",
    "gmo:published", "gmo:cut", "gmo:failure_group", "gmo:place", "gmo:history", "gmo:until",
    "gmo:on_failure", "gmo:array", "gmo:slice", "gmo:elements", "gmo:ended", "gmo:weight",
    "gmo:element", "gmo:verdict",
]  # fmt: skip
JobField = Literal[_Read, _Payload, _Else]
"""The fixed field names; those with ``gmo:`` are ours. Server functions also write fields with variable
names (``usage:<category>``, ``depdone:<ref>``, ``gmo:dep:<ref>``)."""

FIELD_FLOW: Final = "gmo:flow"
FIELD_NODE: Final = "gmo:node"
JOB_FIELDS_WITHOUT_PAYLOAD: Final[tuple[JobField, ...]] = get_args(_Read)
JOB_FIELDS: Final[tuple[JobField, ...]] = (*JOB_FIELDS_WITHOUT_PAYLOAD, *get_args(_Payload))
OF_ONE_RUN: Final[tuple[JobField, ...]] = (
    "activeSource", "fallbackIndex", "gmo:accepted", "gmo:begun", "gmo:end", "gmo:entry",
    "gmo:failure_group", "gmo:lost", "gmo:messages", "gmo:published", "gmo:ran", "gmo:skipped",
    "gmo:suspect", "gmo:token", "gmo:unhandled", "gmo:until", "gmo:waited", "lastActive", "processedOn",
    "progress", "returnvalue", "revoked", "signals", "stalledCount", "suspendReason", "suspendTimeout",
    "suspendedAt", "tpmTokens",
)  # fmt: skip
"""The fields deleted when a node reruns; ``lua/glidemq_orchestrate/parts/fresh.lua`` has the same list."""

T = TypeVar("T")
ENDS: Final = ("completed", "failed", "skipped")


def get(queue: QueueKeys, job_id: str, name: JobField, decode: Callable[[Any], T]) -> Call[T]:
    """One field; None if the job or the field is missing."""
    return command("HGET", queue.job(job_id), name, decode=decode)


def get_some(queue: QueueKeys, job_id: str, names: Sequence[JobField], decode: Callable[[Any], T]) -> Call[T]:
    """These fields in order, with None for each missing one."""
    return command("HMGET", queue.job(job_id), *names, decode=decode)


def put(queue: QueueKeys, job_id: str, fields: Mapping[JobField, Word]) -> Call[None]:
    """Write fields; creates the hash if it is missing."""
    words = [word for pair in fields.items() for word in pair]
    return command("HSET", queue.job(job_id), *words, decode=replies.anything)


def touch(queue: QueueKeys, job_id: str, field: JobField, value: Word) -> Call[int]:
    """Write a field if the job exists: returns 1, else 0. Idempotent."""
    return function("gmo_update_job", [queue.job(job_id)], (0, job_id, field, value, 1), replies.integer)


def delete(queue: QueueKeys, job_id: str, names: Sequence[JobField]) -> Call[None]:
    """Delete fields."""
    return command("HDEL", queue.job(job_id), *names, decode=replies.anything)


def end_of_stub(stub: str) -> str:
    """How a node ended whose job was removed, from the job's remains; '' if unknown."""
    ended = stub.partition("\n")[0]
    return ended if ended in ENDS else ""


def missing(queue: QueueKeys, *job_ids: str) -> JobNotFound:
    return JobNotFound(f"no job {', '.join(job_ids)} in queue {queue.queue}")
