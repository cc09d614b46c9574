"""One builder per ``glidemq_*`` function, and for the plain commands that glide-mq's clients send."""

from __future__ import annotations

from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate.errors import InvalidJob, ProtocolError
from glidemq_orchestrate.job import JobOptions, milliseconds
from glidemq_orchestrate.keys import GROUP, QueueKeys

SUPPORTED_VERSION: Final = "93"


def version() -> Call[str]:
    """Which ``glidemq`` library is loaded."""
    return function("glidemq_version", (), (), replies.text)


def add_job(queue: QueueKeys, name: str, data: str, options: JobOptions, now_ms: int) -> Call[str]:
    """Create one job; repeatable only with an own job id. Answers the id."""

    def decode(reply: Any) -> str:
        if reply == "duplicate":
            raise InvalidJob(
                f"job id {options.job_id!r} exists already in queue {queue.queue}; nothing was added"
            )
        if str(reply).startswith("ERR:"):
            raise ProtocolError(f"job was refused: {reply}")
        return replies.text(reply)

    args = (name, data, options.to_wire(), now_ms, milliseconds(options.delay), 0, "", options.attempts)
    tail = ("", 0, 0, 0, 0, 0, 0, 0, options.job_id or "")
    return function(
        "glidemq_addJob",
        [queue.key(k) for k in ("id", "stream", "scheduled", "events")],
        (*args, *tail),
        decode,
    )


def promote(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Move due delayed jobs to the stream. Repeatable."""
    keys = [queue.key(k) for k in ("scheduled", "stream", "events")]
    return function("glidemq_promote", keys, (now_ms,), replies.integer)


def next_due(queue: QueueKeys) -> Call[int]:
    """When the next delayed job is due, ms since the epoch; -1 for never."""
    keys = [queue.key(k) for k in ("scheduled", "ratelimited")]
    return function("glidemq_nextDue", keys, (), replies.integer)


def job_fields(queue: QueueKeys, job_id: str) -> Call[dict[str, str]]:
    """All fields of a job; empty if there is none."""
    return command("HGETALL", queue.job(job_id), decode=replies.pairs)


def create_group(queue: QueueKeys) -> Call[None]:
    """Make the consumer group of the workers; refused with BUSYGROUP when it is there."""
    return command("XGROUP", "CREATE", queue.key("stream"), GROUP, "0", "MKSTREAM", decode=replies.anything)


def read_group(
    queues: list[QueueKeys], consumer: str, count: int, block_ms: int, *, again: bool
) -> Call[Any]:
    """Take up to ``count`` new jobs per queue, waiting at most ``block_ms``; entries by stream key.

    ``again``: instead, what was delivered to this consumer before and not acknowledged; does not wait.
    """
    words = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "BLOCK", block_ms, "STREAMS")
    keys = [queue.key("stream") for queue in queues]
    start = "0" if again else ">"
    return command(
        *words, *keys, *(start for _ in keys), decode=replies.stream_entries, blocks_for=block_ms / 1000
    )


def defer(queue: QueueKeys, job_id: str, entry_id: str) -> Call[int]:
    """Put a job that was delivered but not begun back at the end of the stream."""
    keys = [queue.key("stream"), queue.job(job_id), queue.key("list-active")]
    return function("glidemq_deferActive", keys, (job_id, entry_id, GROUP), replies.integer)


def register_worker(queue: QueueKeys, worker_id: str, description: str, ttl_ms: int) -> Call[None]:
    """Say that a worker is alive. Repeatable."""
    return command("SET", queue.worker(worker_id), description, "PX", ttl_ms, decode=replies.anything)


def forget_worker(queue: QueueKeys, worker_id: str) -> Call[None]:
    """Take back a registration. Repeatable."""
    return command("UNLINK", queue.worker(worker_id), decode=replies.anything)


def worker_descriptions(queue: QueueKeys, worker_ids: list[str]) -> Call[list[str | None]]:
    """The registrations of these workers; None where one has lapsed."""
    return command("MGET", *(queue.worker(worker) for worker in worker_ids), decode=list)


def consumers(queue: QueueKeys) -> Call[list[dict[str, Any]]]:
    """The consumers of the workers' group with their idle times; refused when there is no group."""
    return command(
        "XINFO", "CONSUMERS", queue.key("stream"), GROUP, decode=lambda reply: [_map(c) for c in reply]
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


def add_log(queue: QueueKeys, job_id: str, line: str) -> Call[None]:
    """Append a log line to a job."""
    return command("RPUSH", queue.log(job_id), line, decode=replies.anything)


def _map(reply: Any) -> dict[str, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
