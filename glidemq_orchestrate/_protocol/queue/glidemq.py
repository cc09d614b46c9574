"""One builder per ``glidemq_*`` function, and for the plain commands that glide-mq's clients send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, Word, command, function
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs.bounds import milli, milliseconds
from glidemq_orchestrate.jobs.deduplication import Deduplication
from glidemq_orchestrate.jobs.fields import JOB_FIELDS, JOB_FIELDS_WITHOUT_PAYLOAD
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.keys import GROUP, QueueKeys

SUPPORTED_VERSION: Final = "93"


@dataclass(frozen=True, slots=True)
class EncodedJob:
    """A job that is ready to be sent."""

    name: str
    data: str
    options: JobOptions


def version() -> Call[str]:
    """Which ``glidemq`` library is loaded."""
    return function("glidemq_version", (), (), replies.text)


def add_job(queue: QueueKeys, name: str, data: str, options: JobOptions, now_ms: int) -> Call[str]:
    """Create one job; repeatable only with an own job id. Answers the id or ``duplicate``."""
    keys = [*(queue.key(k) for k in ("id", "stream", "scheduled", "events")), *_parent_keys(queue, options)]
    return function("glidemq_addJob", keys, job_words(EncodedJob(name, data, options), now_ms), _added)


def dedup(queue: QueueKeys, deduplication: Deduplication, job: EncodedJob, now_ms: int) -> Call[str]:
    """Create one job unless it was added before. Answers the id, ``duplicate`` or ``skipped``."""
    names = ("dedup", "id", "stream", "scheduled", "events")
    keys = [*(queue.key(k) for k in names), *_parent_keys(queue, job.options)]
    ttl = milliseconds(deduplication.ttl) if deduplication.ttl else 0
    words = (deduplication.id, ttl, deduplication.mode, *job_words(job, now_ms))
    return function("glidemq_dedup", keys, words, _added)


def deduplicated_job(queue: QueueKeys, deduplication_id: str) -> Call[str | None]:
    """The job that a deduplication id stands for."""

    def decode(reply: Any) -> str | None:
        return reply.rpartition(":")[0] or None if reply else None

    return command("HGET", queue.key("dedup"), deduplication_id, decode=decode)


def _added(reply: Any) -> str:
    if str(reply).startswith("ERR:"):
        raise ProtocolError(f"job was refused: {reply}")
    return replies.text(reply)


def _parent_keys(queue: QueueKeys, options: JobOptions) -> list[str]:
    # Also for a parent in another queue: a child that is told to its parent later may have ended by then.
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


def promote(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Move due delayed jobs to the stream. Repeatable."""
    keys = [queue.key(k) for k in ("scheduled", "stream", "events")]
    return function("glidemq_promote", keys, (now_ms,), replies.integer)


def promote_rate_limited(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Release parked jobs of groups whose waiting time is over. Repeatable."""
    keys = [queue.key(k) for k in ("ratelimited", "stream")]
    return function("glidemq_promoteRateLimited", keys, (now_ms,), replies.integer)


def sweep_suspended(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Fail suspended jobs past their deadline, a page of 100. Repeatable."""
    keys = [queue.key(k) for k in ("suspended", "events", "failed", "metrics:failed")]
    return function("glidemq_sweepSuspended", keys, (now_ms, queue.key("")), replies.integer)


def next_due(queue: QueueKeys) -> Call[int]:
    """When the next delayed job is due, ms since the epoch; -1 for never."""
    keys = [queue.key(k) for k in ("scheduled", "ratelimited")]
    return function("glidemq_nextDue", keys, (), replies.integer)


def job_fields(queue: QueueKeys, job_id: str, *, with_payload: bool = True) -> Call[dict[str, str]]:
    """The fields of a job that are texts; empty if there is none. ``with_payload``: data and result too."""
    names = JOB_FIELDS if with_payload else JOB_FIELDS_WITHOUT_PAYLOAD

    def decode(reply: Any) -> dict[str, str]:
        return {name: value for name, value in zip(names, reply, strict=True) if value is not None}

    return command("HMGET", queue.job(job_id), *names, decode=decode)


def job_outcome(queue: QueueKeys, job_id: str) -> Call[list[str | None]]:
    """State, result and reason of failure."""
    return command("HMGET", queue.job(job_id), "state", "returnvalue", "failedReason", decode=list)


def create_group(queue: QueueKeys) -> Call[None]:
    """Make the consumer group of the workers; refused with BUSYGROUP when it is there."""
    return command("XGROUP", "CREATE", queue.key("stream"), GROUP, "0", "MKSTREAM", decode=replies.anything)


def register_worker(queue: QueueKeys, worker_id: str, description: str, ttl_ms: int) -> Call[None]:
    """Say that a worker is alive. Repeatable."""
    words = ("SET", queue.worker(worker_id), description, "PX", ttl_ms)
    return command(*words, decode=replies.anything, repeatable=True)


def forget_worker(queue: QueueKeys, worker_id: str) -> Call[None]:
    """Take back a registration. Repeatable."""
    return command("UNLINK", queue.worker(worker_id), decode=replies.anything, repeatable=True)


def worker_descriptions(queue: QueueKeys, worker_ids: list[str]) -> Call[list[str | None]]:
    """The registrations of these workers; None where one has lapsed."""
    return command("MGET", *(queue.worker(worker) for worker in worker_ids), decode=list)


def consumers(queue: QueueKeys, group: str = GROUP) -> Call[list[dict[str, Any]]]:
    """The consumers of a group with their idle times; refused when there is no group."""
    return command(
        "XINFO", "CONSUMERS", queue.key("stream"), group, decode=lambda reply: [_map(c) for c in reply]
    )


def groups(queue: QueueKeys) -> Call[list[str]]:
    """The consumer groups of the stream; refused when there is no stream."""
    return command(
        "XINFO", "GROUPS", queue.key("stream"), decode=lambda reply: [str(_map(g)["name"]) for g in reply]
    )


def has_pending(queue: QueueKeys, consumer: str) -> Call[bool]:
    """Whether entries are still assigned to a consumer."""
    words = ("XPENDING", queue.key("stream"), GROUP, "-", "+", 1, consumer)
    return command(*words, decode=bool)


def drop_consumer(queue: QueueKeys, consumer: str) -> Call[None]:
    """Remove a consumer that holds nothing any more."""
    return command("XGROUP", "DELCONSUMER", queue.key("stream"), GROUP, consumer, decode=replies.anything)


def last_event(queue: QueueKeys) -> Call[str]:
    """The id of the newest event; ``0-0`` for none."""
    return command(
        "XREVRANGE",
        queue.key("events"),
        "+",
        "-",
        "COUNT",
        1,
        decode=lambda reply: reply[0][0] if reply else "0-0",
    )


def first_event(queue: QueueKeys) -> Call[str | None]:
    """The id of the oldest event that is left; None for none."""
    words = ("XRANGE", queue.key("events"), "-", "+", "COUNT", 1)
    return command(*words, decode=lambda reply: reply[0][0] if reply else None)


def has_lost_events(queue: QueueKeys) -> Call[bool]:
    """Whether events were ever trimmed away; refused when there are none."""

    def decode(reply: Any) -> bool:
        told = _map(reply)
        return int(told["entries-added"]) > int(told["length"])

    return command("XINFO", "STREAM", queue.key("events"), decode=decode)


def read_events(queue: QueueKeys, position: str, count: int, block_ms: int | None) -> Call[Any]:
    """Events after ``position``; waits for one at most ``block_ms``, not at all for None."""
    block: tuple[str | int, ...] = () if block_ms is None else ("BLOCK", block_ms)
    words = ("XREAD", "COUNT", count, *block, "STREAMS", queue.key("events"), position)
    return command(
        *words, decode=replies.stream_entries, blocks_for=None if block_ms is None else block_ms / 1000
    )


def check_budget(budget_key: str) -> Call[str]:
    """``ok``, ``exceeded`` or ``no_budget``."""
    return function("glidemq_checkBudget", [budget_key], (), replies.text)


def budget_fields(budget_key: str, *names: str) -> Call[list[str | None]]:
    """Fields of a budget."""
    return command("HMGET", budget_key, *names, decode=list)


def record_usage(  # noqa: PLR0913, PLR0917  the arguments of one server call
    budget_key: str, tokens: str, costs: str, weighted: float, cost: float, max_tokens: str, max_costs: str
) -> Call[str]:
    """Add to what a budget has used. Not repeatable."""
    args = (tokens, costs, weighted, cost, max_tokens, max_costs)
    return function("glidemq_recordUsageAndCheckBudget", [budget_key], args, replies.text)


def add_log(queue: QueueKeys, job_id: str, line: str) -> Call[None]:
    """Append a log line to a job."""
    return command("RPUSH", queue.log(job_id), line, decode=replies.anything)


def _map(reply: Any) -> dict[str, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
