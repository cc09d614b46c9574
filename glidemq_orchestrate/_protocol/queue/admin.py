"""Calls of glide-mq functions that change a queue or one of its jobs, as its clients send them."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate.errors import JobNotFound, JobStateConflict
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import GROUP, KeyName, QueueKeys

_REASONS = {
    "error:invalid_state": "is in a state that does not allow this",
    "error:not_delayed": "is not delayed",
    "error:not_in_stream": "is in the priority or LIFO list already, where its place is fixed",
    "error:not_in_scheduled": "has just become ready",
    "error:not_active": "is not active",
    "error:no_group": "has no ordering key",
}


def pause(queue: QueueKeys, *, resume: bool = False) -> Call[None]:
    """Pause or resume the queue. Repeatable."""
    name = "glidemq_resume" if resume else "glidemq_pause"
    return function(name, [queue.key("meta"), queue.key("events")], (), replies.anything)


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


def rate_limit_group(queue: QueueKeys, key: str, duration_ms: int, now_ms: int, *, extend: bool) -> Call[int]:
    """Hold back the jobs of an ordering key; returns until when."""
    keys = [queue.key("ratelimited"), queue.key("events")]
    args = (key, duration_ms, now_ms, "max" if extend else "replace")
    return function("glidemq_rateLimitGroupExternal", keys, args, replies.time_ms)


def set_meta(queue: QueueKeys, *pairs: Word) -> Call[None]:
    """Write settings of the queue. Repeatable."""
    return command("HSET", queue.key("meta"), *pairs, decode=replies.anything)


def drop_meta(queue: QueueKeys, *fields: str) -> Call[None]:
    """Remove settings of the queue. Repeatable."""
    return command("HDEL", queue.key("meta"), *fields, decode=replies.anything)


def tell(queue: QueueKeys, kind: str) -> Call[None]:
    """Write an event about the whole queue."""
    words = ("MAXLEN", "~", 1_000, "*", "event", kind)
    return command("XADD", queue.key("events"), *words, decode=replies.anything)


def unlink(keys: list[str]) -> Call[None]:
    """Delete keys. Repeatable."""
    return command("UNLINK", *keys, decode=replies.anything)


def drop_entry(queue: QueueKeys, entry_id: str) -> list[Call[None]]:
    """Acknowledge and delete an entry of the stream. Repeatable."""
    stream = queue.key("stream")
    return [
        command("XACK", stream, GROUP, entry_id, decode=replies.anything),
        command("XDEL", stream, entry_id, decode=replies.anything),
    ]


def ended_before(queue: QueueKeys, name: KeyName, cutoff_ms: int, first: int, count: int) -> Call[list[str]]:
    """Jobs that ended at a time or earlier, oldest first."""
    words = ("ZRANGEBYSCORE", queue.key(name), "-inf", cutoff_ms, "LIMIT", first, count)
    return command(*words, decode=list)


def _change(name: str, queue: QueueKeys, job_id: str, args: tuple[Word, ...]) -> Call[None]:
    """A call that changes one job; its error words become errors."""
    keys = [queue.job(job_id), *queue.keys("stream", "scheduled", "events")]

    def decode(reply: Any) -> None:
        if reply == "error:not_found":
            raise JobNotFound(f"no job {job_id} in queue {queue.queue}")
        if str(reply).startswith("error:"):
            raise JobStateConflict(job_id, str(reply)[6:], _REASONS.get(reply, "cannot be changed"))

    return function(name, keys, args, decode)
