"""Pauses a queue, and sets its limits over all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.foundation.values import named, whole
from glidemq_orchestrate.jobs import pages
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues import listing
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, ask_each, command, fields_of, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number, span


def set_paused(queue: QueueKeys, *, resume: bool = False) -> Call[None]:
    """Pause or resume the queue. Idempotent."""
    name = "glidemq_resume" if resume else "glidemq_pause"
    return function(name, [queue.key("meta"), queue.key("events")], (), replies.anything)


def limit_group(queue: QueueKeys, key: str, duration_ms: int, now_ms: int, *, extend: bool) -> Call[int]:
    """Block the jobs of an ordering key; returns until when."""
    keys = [queue.key("ratelimited"), queue.key("events")]
    args = (key, duration_ms, now_ms, "max" if extend else "replace")
    return function("glidemq_rateLimitGroupExternal", keys, args, replies.time_ms)


def set_meta(queue: QueueKeys, *pairs: Word) -> Call[None]:
    """Write settings of the queue. Idempotent."""
    return command("HSET", queue.key("meta"), *pairs, decode=replies.anything)


def drop_meta(queue: QueueKeys, *fields: str) -> Call[None]:
    """Remove settings of the queue. Idempotent."""
    return command("HDEL", queue.key("meta"), *fields, decode=replies.anything)


def add_event(queue: QueueKeys, kind: str) -> Call[None]:
    """Write an event about the whole queue."""
    words = ("MAXLEN", "~", 1_000, "*", "event", kind)
    return command("XADD", queue.key("events"), *words, decode=replies.anything)


def meta(queue: QueueKeys, *fields: str) -> Call[list[str | None]]:
    """Settings of the queue."""
    return command("HMGET", queue.key("meta"), *fields, decode=list)


def rate_window(queue: QueueKeys) -> Call[list[str | None]]:
    """When the window of the queue's rate limit began, and how many jobs have started in it."""
    return command("HMGET", queue.key("rate"), "windowStart", "count", decode=list)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The jobs of one ordering key.

    Attributes:
        key: The ordering key.
        active: How many of its jobs run now.
        concurrency: How many may run at the same time.
        parked: How many are blocked by the limits of the key.
        resumes_at: When the next of them is tried; None if only running jobs block them.
        last_number: The number of its latest job; those of later jobs are higher.
    """

    key: str
    active: int
    concurrency: int
    parked: int
    resumes_at: datetime | None
    last_number: int


def pause(queue: QueueKeys, *, resume: bool = False) -> Op[None]:
    """Pause or resume the queue."""
    yield from ask(set_paused(queue, resume=resume))


def is_paused(queue: QueueKeys) -> Op[bool]:
    """Whether the queue is paused."""
    (paused,) = yield from ask(meta(queue, "paused"))
    return paused == "1"


def set_global_concurrency(queue: QueueKeys, limit: int | None) -> Op[None]:
    """Limit how many jobs of the queue run at the same time, over all workers; None for no limit."""
    if limit is not None:
        whole("limit", limit, 1)
    yield from _set_limits(queue, {"globalConcurrency": limit})


def global_concurrency(queue: QueueKeys) -> Op[int | None]:
    """The limit; None if there is none."""
    (limit,) = yield from ask(meta(queue, "globalConcurrency"))
    return number(limit) or None


def set_global_rate_limit(queue: QueueKeys, limit: RateLimit | None) -> Op[None]:
    """Limit how many jobs of the queue start in a window, over all workers; None for no limit."""
    most, per_ms = (None, None) if limit is None else (limit.max, milliseconds(limit.per))
    yield from _set_limits(queue, {"rateLimitMax": most, "rateLimitDuration": per_ms})


def _set_limits(queue: QueueKeys, limits: Mapping[str, int | None]) -> Op[None]:
    """Write limits of the queue, or remove those that are None; wakes the workers that they blocked."""
    pairs = [word for name, value in limits.items() if value is not None for word in (name, value)]
    change = set_meta(queue, *pairs) if pairs else drop_meta(queue, *limits)
    done, _ = yield from ask_each([change, add_event(queue, "limits.changed")])
    if isinstance(done, Exception):
        raise done


def global_rate_limit(queue: QueueKeys) -> Op[RateLimit | None]:
    """The limit; None if there is none."""
    most, duration = yield from ask(meta(queue, "rateLimitMax", "rateLimitDuration"))
    try:
        return RateLimit(number(most), span(duration))
    except InvalidJob:
        return None


def rate_limit_group(
    queue: QueueKeys, key: str, duration: timedelta, now_ms: int, *, extend: bool
) -> Op[datetime]:
    """Block the jobs of an ordering key."""
    named("key", key)
    call = limit_group(queue, key, milliseconds(duration), now_ms, extend=extend)
    return datetime.fromtimestamp((yield from ask(call)) / 1000, UTC)


def groups(queue: QueueKeys) -> Op[list[GroupInfo]]:
    """The ordering keys in use, and those not cleaned up yet."""
    cursor, found = "0", dict[str, GroupInfo]()
    while True:
        cursor, keys = yield from ask(pages.ordering_keys_page(queue, cursor, listing.READ))
        for key, row in zip(keys, (yield from _group_rows(queue, keys)), strict=True):
            found[key] = row
        if cursor == "0":
            return [found[key] for key in sorted(found)]


def _group_rows(queue: QueueKeys, keys: Sequence[str]) -> Op[list[GroupInfo]]:
    """The state of these ordering keys, read in four trips."""
    names = ("active", "maxConcurrency")
    states = yield from ask_all([fields_of(queue.group(key), *names) for key in keys])
    parked = yield from ask_all([pages.parked_count(queue, key) for key in keys])
    times = yield from ask_all([pages.score(queue, "ratelimited", key) for key in keys])
    numbers = (yield from ask(fields_of(queue.key("ordering"), *keys))) if keys else list[str | None]()
    return [
        GroupInfo(
            key=key,
            active=number(state[0]),
            concurrency=max(number(state[1]), 1),
            parked=count,
            resumes_at=moment(str(at)) if at else None,
            last_number=number(last),
        )
        for key, state, count, at, last in zip(keys, states, parked, times, numbers, strict=True)
    ]
