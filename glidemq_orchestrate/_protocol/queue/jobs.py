"""Calls that add and read one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glidemq_orchestrate._protocol import job_hash
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs.bounds import milli, milliseconds
from glidemq_orchestrate.jobs.deduplication import Deduplication
from glidemq_orchestrate.jobs.fields import JOB_FIELDS, JOB_FIELDS_WITHOUT_PAYLOAD
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys


@dataclass(frozen=True, slots=True)
class EncodedJob:
    """A job that is ready to be sent."""

    name: str
    data: str
    options: JobOptions


def add_job(queue: QueueKeys, name: str, data: str, options: JobOptions, now_ms: int) -> Call[str]:
    """Create one job; repeatable only with a custom job id. Returns the id or ``duplicate``."""
    keys = [*queue.keys("id", "stream", "scheduled", "events"), *_parent_keys(queue, options)]
    return function("glidemq_addJob", keys, job_words(EncodedJob(name, data, options), now_ms), _added)


def dedup(queue: QueueKeys, deduplication: Deduplication, job: EncodedJob, now_ms: int) -> Call[str]:
    """Create one job unless it was added before. Returns the id, ``duplicate`` or ``skipped``."""
    keys = [*queue.keys("dedup", "id", "stream", "scheduled", "events"), *_parent_keys(queue, job.options)]
    ttl = milliseconds(deduplication.ttl) if deduplication.ttl else 0
    words = (deduplication.id, ttl, deduplication.mode, *job_words(job, now_ms))
    return function("glidemq_dedup", keys, words, _added)


def deduplicated_job(queue: QueueKeys, deduplication_id: str) -> Call[str | None]:
    """The job that a deduplication id stands for."""

    def decode(reply: Any) -> str | None:
        return reply.rpartition(":")[0] or None if reply else None

    return command("HGET", queue.key("dedup"), deduplication_id, decode=decode)


def _added(reply: Any) -> str:
    """The id or word in the reply; raises for a refusal."""
    if str(reply).startswith("ERR:"):
        raise ProtocolError(f"job was refused: {reply}")
    return replies.text(reply)


def _parent_keys(queue: QueueKeys, options: JobOptions) -> list[str]:
    # Also for a parent in another queue: the child may end before it is registered with its parent.
    parent = options.parent
    return [QueueKeys(queue.prefix, parent.queue).deps(parent.id)] if parent else []


def job_words(job: EncodedJob, now_ms: int) -> tuple[Word, ...]:
    """Arguments 1 to 19 of ``glidemq_addJob``, which ``glidemq_dedup`` has too."""
    options = job.options
    order, parent = options.ordering, options.parent
    limit, bucket = (order.rate_limit, order.token_bucket) if order else (None, None)
    return (
        job.name,
        job.data,
        options.to_wire(),
        now_ms,
        milliseconds(options.delay),
        options.priority,
        parent.id if parent else "",
        options.attempts,
        order.key if order else "",
        order.concurrency if order else 0,
        limit.max if limit else 0,
        milliseconds(limit.per) if limit else 0,
        milli(bucket.capacity) if bucket else 0,
        milli(bucket.refill_per_second) if bucket else 0,
        milli(options.cost) if options.cost else 0,
        milliseconds(options.ttl) if options.ttl else 0,
        options.job_id or "",
        int(options.lifo),
        parent.queue if parent else "",
    )


def job_fields(queue: QueueKeys, job_id: str, *, with_payload: bool = True) -> Call[dict[str, str]]:
    """The text fields of a job; empty for a missing job. ``with_payload``: data and result too."""
    names = JOB_FIELDS if with_payload else JOB_FIELDS_WITHOUT_PAYLOAD

    def decode(reply: Any) -> dict[str, str]:
        return {name: value for name, value in zip(names, reply, strict=True) if value is not None}

    return job_hash.get_some(queue, job_id, names, decode)


def job_outcome(queue: QueueKeys, job_id: str) -> Call[list[str | None]]:
    """State, result and reason of failure."""
    return job_hash.get_some(queue, job_id, ("state", "returnvalue", "failedReason"), list)
