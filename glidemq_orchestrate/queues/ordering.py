"""The ordering keys of a queue with their limits, for the console: as many as fit into a few calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.jobs import pages
from glidemq_orchestrate.jobs.option_values import RateLimit, TokenBucket
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command, fields_of, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number, span

MAX_KEYS: Final = 1_000
PAGE: Final = 250
_FIELDS: Final = (
    "active", "maxConcurrency", "limitedUntil", "rateMax", "rateDuration", "rateWindowStart", "rateCount",
    "tbCapacity", "tbRefillRate", "tbTokens", "tbLastRefill",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OrderingKey:
    """An ordering key that is in use.

    Attributes:
        key: The key.
        active: How many of its jobs run now.
        concurrency: How many may run at once.
        parked: How many of its jobs are held back. Those that no worker has looked at yet are not counted.
        resumes_at: When the next of these is tried; None if only running jobs hold them back.
        paused_until: The end of a pause by ``rate_limit_group``; None without one.
        rate_limit: Its limit of starts; None without one.
        started: How many jobs have started in the window of that limit.
        token_bucket: Its limit by cost; None without one.
        tokens: What is in that bucket now.
    """

    key: str
    active: int
    concurrency: int
    parked: int
    resumes_at: datetime | None
    paused_until: datetime | None
    rate_limit: RateLimit | None
    started: int
    token_bucket: TokenBucket | None
    tokens: float


@dataclass(frozen=True, slots=True)
class OrderingKeys:
    """Ordering keys, those that hold back most jobs first.

    Attributes:
        keys: Up to 1,000 of each member of the queue: first those that wait for a time.
        total: How many are in use.
    """

    keys: list[OrderingKey]
    total: int


def ordering_keys(queues: Sequence[QueueKeys], now_ms: int) -> Op[OrderingKeys]:
    """Read them, over all these queues."""
    every = yield from side_by_side([_of_one(queue, now_ms) for queue in queues])
    found = [key for one in every for key in one.keys]
    found.sort(key=lambda one: (-one.parked, -one.active, one.key))
    return OrderingKeys(found, sum(one.total for one in every))


def _of_one(queue: QueueKeys, now_ms: int) -> Op[OrderingKeys]:
    size = command("HLEN", queue.key("ordering"), decode=replies.integer)
    limited = pages.sorted_ids(queue.key("ratelimited"), 0, PAGE, newest_first=False)
    first: list[Call[Any]] = [size, limited]
    total, some = yield from ask_all(first)
    found = yield from _read(queue, some, now_ms)
    cursor = "0" if total else ""
    while cursor and len(found) < MAX_KEYS:
        following, keys = yield from ask(pages.ordering_keys_page(queue, cursor, PAGE))
        new = [key for key in keys if key not in found][: MAX_KEYS - len(found)]
        found |= yield from _read(queue, new, now_ms)
        cursor = "" if following == "0" else following
    return OrderingKeys(list(found.values()), max(total, len(found)))


def _read(queue: QueueKeys, keys: Sequence[str], now_ms: int) -> Op[dict[str, OrderingKey]]:
    calls: list[Call[Any]] = [
        call
        for key in keys
        for call in (
            fields_of(queue.group(key), *_FIELDS),
            pages.parked_count(queue, key),
            pages.score(queue, "ratelimited", key),
        )
    ]
    rows = yield from ask_all(calls)
    return {
        key: _made(key, dict(zip(_FIELDS, fields, strict=True)), parked, at, now_ms)
        for key, fields, parked, at in zip(keys, rows[::3], rows[1::3], rows[2::3], strict=True)
    }


def _made(
    key: str, fields: Mapping[str, str | None], parked: int, at: float | None, now_ms: int
) -> OrderingKey:
    limit = _rate(fields)
    began = number(fields["rateWindowStart"])
    is_in_window = limit is not None and now_ms - began < number(fields["rateDuration"])
    paused = number(fields["limitedUntil"])
    bucket = _bucket(fields)
    return OrderingKey(
        key,
        active=number(fields["active"]),
        concurrency=max(number(fields["maxConcurrency"]), 1),
        parked=parked,
        resumes_at=moment(str(at)) if at else None,
        paused_until=moment(str(paused)) if paused > now_ms else None,
        rate_limit=limit,
        started=number(fields["rateCount"]) if is_in_window else 0,
        token_bucket=bucket,
        tokens=0.0 if bucket is None else _tokens(fields, now_ms),
    )


def _rate(fields: Mapping[str, str | None]) -> RateLimit | None:
    try:
        return RateLimit(number(fields["rateMax"]), span(fields["rateDuration"]))
    except InvalidJob:
        return None


def _bucket(fields: Mapping[str, str | None]) -> TokenBucket | None:
    """The server counts in thousandths."""
    try:
        return TokenBucket(number(fields["tbCapacity"]) / 1000, number(fields["tbRefillRate"]) / 1000)
    except InvalidJob:
        return None


def _tokens(fields: Mapping[str, str | None], now_ms: int) -> float:
    """What the bucket holds with what has flowed in since it was last written."""
    capacity = number(fields["tbCapacity"])
    held = capacity if fields["tbTokens"] is None else number(fields["tbTokens"])
    elapsed = max(now_ms - number(fields["tbLastRefill"], now_ms), 0) if fields["tbLastRefill"] else 0
    return min(held + elapsed * number(fields["tbRefillRate"]) / 1000, capacity) / 1000
