"""Calls of glide-mq functions that change a queue or one of its jobs, as its clients send them."""

from __future__ import annotations

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys


def pause(queue: QueueKeys, *, resume: bool = False) -> Call[None]:
    """Pause or resume the queue. Repeatable."""
    name = "glidemq_resume" if resume else "glidemq_pause"
    return function(name, [queue.key("meta"), queue.key("events")], (), replies.anything)


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


def ended_before(queue: QueueKeys, name: KeyName, cutoff_ms: int, first: int, count: int) -> Call[list[str]]:
    """Jobs that ended at a time or earlier, oldest first."""
    words = ("ZRANGEBYSCORE", queue.key(name), "-inf", cutoff_ms, "LIMIT", first, count)
    return command(*words, decode=list)


def meta(queue: QueueKeys, *fields: str) -> Call[list[str | None]]:
    """Settings of the queue."""
    return command("HMGET", queue.key("meta"), *fields, decode=list)


def rate_window(queue: QueueKeys) -> Call[list[str | None]]:
    """When the window of the queue's rate limit began, and how many jobs have started in it."""
    return command("HMGET", queue.key("rate"), "windowStart", "count", decode=list)
