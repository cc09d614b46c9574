"""Reads and writes single fields of a job's hash; mypy refuses names that are not in ``jobs/fields.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    JobNotFound,
)
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

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


def missing(queue: QueueKeys, job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id} in queue {queue.queue}")
