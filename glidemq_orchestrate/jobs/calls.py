"""Calls that add, read and change single jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from glidemq_orchestrate.errors import JobNotFound, JobStateConflict, ProtocolError
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.bounds import milli
from glidemq_orchestrate.jobs.deduplication import Deduplication
from glidemq_orchestrate.jobs.fields import JOB_FIELDS, JOB_FIELDS_WITHOUT_PAYLOAD
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

MAX: Final = 100


@dataclass(frozen=True, slots=True)
class EncodedJob:
    """A job in its encoded form."""

    name: str
    data: str
    options: JobOptions


def add_job(queue: QueueKeys, name: str, data: str, options: JobOptions, now_ms: int) -> Call[str]:
    """Create one job; idempotent only with a custom job id. Returns the id or ``duplicate``."""
    keys = [*queue.keys("id", "stream", "scheduled", "events"), *_parent_keys(queue, options)]
    return function("glidemq_addJob", keys, job_words(EncodedJob(name, data, options), now_ms), _added)


def dedup(queue: QueueKeys, deduplication: Deduplication, job: EncodedJob, now_ms: int) -> Call[str]:
    """Create one job unless a job has its deduplication id. Returns the id, ``duplicate`` or ``skipped``."""
    keys = [*queue.keys("dedup", "id", "stream", "scheduled", "events"), *_parent_keys(queue, job.options)]
    ttl = milliseconds(deduplication.ttl) if deduplication.ttl else 0
    words = (deduplication.id, ttl, deduplication.mode, *job_words(job, now_ms))
    return function("glidemq_dedup", keys, words, _added)


def deduplicated_job(queue: QueueKeys, deduplication_id: str) -> Call[str | None]:
    """The id of the job with a deduplication id."""

    def decode(reply: Any) -> str | None:
        return reply.rpartition(":")[0] or None if reply else None

    return command("HGET", queue.key("dedup"), deduplication_id, decode=decode)


def _added(reply: Any) -> str:
    """The id or word in the reply; raises an error for a refusal."""
    if str(reply).startswith("ERR:"):
        raise ProtocolError(f"job was refused: {reply}")
    return replies.text(reply)


def _parent_keys(queue: QueueKeys, options: JobOptions) -> list[str]:
    # Also for a parent in another queue, as the child may end before it is registered with the parent.
    parent = options.parent
    return [QueueKeys(queue.prefix, parent.queue).deps(parent.id)] if parent else []


def job_words(job: EncodedJob, now_ms: int) -> tuple[Word, ...]:
    """Arguments 1 to 19 of ``glidemq_addJob`` and of ``glidemq_dedup``."""
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
    """The text fields of a job; empty for a missing one. ``with_payload`` includes data and result."""
    names = JOB_FIELDS if with_payload else JOB_FIELDS_WITHOUT_PAYLOAD

    def decode(reply: Any) -> dict[str, str]:
        return {name: value for name, value in zip(names, reply, strict=True) if value is not None}

    return job_hash.get_some(queue, job_id, names, decode)


def job_outcome(queue: QueueKeys, job_id: str) -> Call[list[str | None]]:
    """State, result and reason of failure."""
    return job_hash.get_some(queue, job_id, ("state", "returnvalue", "failedReason"), list)


Removal = tuple[list[str], list[tuple[str, str]]]


def remove_jobs(queue: QueueKeys, jobs: Iterable[tuple[str, str]], event: str, now_ms: int) -> Call[Removal]:
    """Delete jobs by pairs of job id and stream entry (empty if unknown).

    Returns a word for each job, and pairs of a removed job and a job in another queue that waits for it.
    """
    removed = list(jobs)

    def decode(reply: Any) -> Removal:
        words, elsewhere = reply
        pairs = [(member, parent) for member, parent in replies.rows(2)(elsewhere)]
        return replies.texts_of(len(removed))(words), pairs

    args: list[Word] = [now_ms, event, *chain.from_iterable(removed)]
    return function("gmo_remove_jobs", [queue.key("id")], args, decode)


def retry_jobs(queue: QueueKeys, job_ids: Sequence[str], now_ms: int) -> Call[list[str]]:
    """Run failed jobs again; returns a word for each."""
    return function("gmo_retry_jobs", [queue.key("id")], (now_ms, *job_ids), replies.texts_of(len(job_ids)))


def revoke_job(queue: QueueKeys, job_id: str, now_ms: int) -> Call[tuple[str, str]]:
    """Fail a job that is not running, flag a running one; returns a word and the flow to advance."""

    def decode(reply: Any) -> tuple[str, str]:
        word, flow_id = replies.texts(reply)
        return word, flow_id

    return function("gmo_revoke_job", [queue.job(job_id)], (now_ms, job_id), decode)


def update_job(queue: QueueKeys, job_id: str, field: str, value: str | int, now_ms: int) -> Call[int]:
    """Change data, progress or reported tokens of an existing job. Idempotent."""
    return function("gmo_update_job", [queue.job(job_id)], (now_ms, job_id, field, value), replies.integer)


def from_outside(job_id: str) -> tuple[Word, ...]:
    """The proof of a caller that does not run the job."""
    return (job_id, "", "", "", "")


def job_exists(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether the job exists; the remains of a removed job have no state."""
    return command("HEXISTS", queue.job(job_id), "state", decode=bool)


def add_log(queue: QueueKeys, job_id: str, line: str) -> Call[str]:
    """Append a log line to a job. Not idempotent."""
    keys = [queue.job(job_id), queue.log(job_id)]
    return function("gmo_append", keys, (0, *from_outside(job_id), "log", line), replies.text)


def log_lines(queue: QueueKeys, job_id: str, first: int, last: int) -> Call[list[str]]:
    """Log lines by index."""
    return command("LRANGE", queue.log(job_id), first, last, decode=list)


def log_length(queue: QueueKeys, job_id: str) -> Call[int]:
    """The number of log lines of a job."""
    return command("LLEN", queue.log(job_id), decode=replies.integer)


def add_output(queue: QueueKeys, job_id: str, fields: Mapping[str, str]) -> Call[str]:
    """Append to the output stream of a job; returns the entry's id. Not idempotent."""
    words = chain.from_iterable(fields.items())
    keys = [queue.job(job_id), queue.output(job_id)]
    return function("gmo_append", keys, (0, *from_outside(job_id), "output", *words), replies.text)


def read_output(
    queue: QueueKeys, job_id: str, after: str, count: int, block_ms: int | None
) -> Call[list[tuple[str, dict[str, str]]]]:
    """Entries of the output stream after an id; waits up to ``block_ms`` for the first."""
    key = queue.output(job_id)
    block: tuple[str | int, ...] = () if block_ms is None else ("BLOCK", block_ms)

    def decode(reply: Any) -> list[tuple[str, dict[str, str]]]:
        return replies.stream_entries(reply).get(key, [])

    words = ("XREAD", "COUNT", count, *block, "STREAMS", key, after)
    return command(*words, decode=decode, blocks_for=None if block_ms is None else block_ms / 1000)


_REASONS = {
    "error:invalid_state": "is in a state that does not allow this",
    "error:not_delayed": "is not delayed",
    "error:not_in_stream": "is already in the priority or LIFO list, where its place is fixed",
    "error:not_in_scheduled": "has just become ready",
    "error:not_active": "is not active",
    "error:no_group": "has no ordering key",
}


def change_priority(queue: QueueKeys, job_id: str, priority: int) -> Call[None]:
    """Change the priority of a job that is not running yet."""
    return _change("glidemq_changePriority", queue, job_id, (job_id, priority, GROUP))


def change_delay(queue: QueueKeys, job_id: str, delay_ms: int, now_ms: int) -> Call[None]:
    """Change the delay of a job that is not running yet; it counts from now."""
    return _change("glidemq_changeDelay", queue, job_id, (job_id, delay_ms, now_ms, GROUP))


def promote_job(queue: QueueKeys, job_id: str) -> Call[None]:
    """Make a delayed job ready now."""
    return _change("glidemq_promoteJob", queue, job_id, (job_id,))


def signal(queue: QueueKeys, job_id: str, name: str, data: str, now_ms: int) -> Call[bool]:
    """Signal a suspended job; False when it is not suspended."""
    keys = [queue.job(job_id), *queue.keys("stream", "events", "suspended"), queue.signals(job_id)]
    return function("glidemq_signal", keys, (job_id, name, data, now_ms), lambda reply: reply == "ok")


def drop_entry(queue: QueueKeys, entry_id: str) -> list[Call[None]]:
    """Acknowledge and delete an entry of the stream. Idempotent."""
    stream = queue.key("stream")
    return [
        command("XACK", stream, GROUP, entry_id, decode=replies.anything),
        command("XDEL", stream, entry_id, decode=replies.anything),
    ]


def _change(name: str, queue: QueueKeys, job_id: str, args: tuple[Word, ...]) -> Call[None]:
    """A call that changes one job; the error words of its reply are raised as errors."""
    keys = [queue.job(job_id), *queue.keys("stream", "scheduled", "events")]

    def decode(reply: Any) -> None:
        if reply == "error:not_found":
            raise JobNotFound(f"no job {job_id} in queue {queue.queue}")
        if str(reply).startswith("error:"):
            raise JobStateConflict(job_id, str(reply)[6:], _REASONS.get(reply, "cannot be changed"))

    return function(name, keys, args, decode)


def complete_child(queue: QueueKeys, job_id: str, member: str) -> Call[int]:
    """Release a job from one of its dependencies or gates. Idempotent."""
    keys = [queue.deps(job_id), queue.job(job_id), queue.key("stream"), queue.key("events")]
    return function("glidemq_completeChild", keys, (member, job_id), replies.integer, repeatable=True)
