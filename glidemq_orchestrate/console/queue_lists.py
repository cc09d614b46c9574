"""What else the page shows of a queue: its ordering keys, tags, tracked jobs and flows, and statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query

from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.parts import Name, Shared, flow_row, job_row
from glidemq_orchestrate.console.shown import time_text
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.queues.ordering import OrderingKey, OrderingKeys
from glidemq_orchestrate.queues.statistics import KEPT_DAYS, Durations, QueueStatistics

router = APIRouter(dependencies=[Depends(check_queues)])
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
QUARTER: Final = timedelta(minutes=15)
MAX_TAGS: Final = 500


# --- ordering keys ---


@router.get("/queues/{name}/keys")
async def keys(
    console: Shared, name: Name, limit: Annotated[int, Query(ge=1, le=1_000)] = 200
) -> dict[str, Any]:
    """The ordering keys in use, those that hold back most jobs first, with their limits."""
    found: OrderingKeys = await console.reader.ordering_keys(name)
    return {
        "keys": [_key_row(one) for one in found.keys[:limit]],
        "total": found.total,
        "is_partial": found.total > len(found.keys),
    }


def _key_row(one: OrderingKey) -> dict[str, Any]:
    bucket = one.token_bucket
    return {
        "key": one.key,
        "active": one.active,
        "concurrency": one.concurrency,
        "parked": one.parked,
        "resumes_at": time_text(one.resumes_at),
        "paused_until": time_text(one.paused_until),
        "rate": rate_row(one.rate_limit, one.started),
        "tokens": bucket
        and {"capacity": bucket.capacity, "per_second": bucket.refill_per_second, "held": one.tokens},
    }


def rate_row(limit: RateLimit | None, started: int) -> dict[str, Any] | None:
    """A limit of starts, and how many jobs have started in its window."""
    if limit is None:
        return None
    return {"max": limit.max, "seconds": milliseconds(limit.per) / 1000, "started": started}


# --- tags, tracked jobs and flows ---


@router.get("/queues/{name}/tags")
async def tags(
    console: Shared,
    name: Name,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_TAGS)] = 100,
) -> dict[str, Any]:
    """The tags of the jobs of a queue, most used first."""
    found = await console.client.queue(name).tags(offset=offset, limit=limit)
    rows = [{"tag": one.tag, "count": one.count} for one in found]
    return {"tags": rows, "next": offset + limit if len(rows) == limit else None}


@router.get("/queues/{name}/tracked")
async def tracked(console: Shared, name: Name) -> dict[str, Any]:
    """The tracked jobs and flows of a queue as they are now."""
    return {
        "tracked": [
            {
                "kind": one.kind,
                "id": one.id,
                "since": time_text(one.since),
                "state": one.state,
                "job": one.job and job_row(one.job),
                "flow": one.flow and flow_row(one.flow),
            }
            for one in await console.client.queue(name).tracked()
        ]
    }


# --- statistics ---


@router.get("/queues/{name}/statistics")
async def statistics(console: Shared, name: Name, day: str = "") -> dict[str, Any]:
    """How long the jobs of a day in UTC waited and ran, by handler; kept for 30 days."""
    if day and not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
        raise ConfigurationError(f"day must be like 2026-01-31, got {day!r:.40}")
    try:
        wanted = date.fromisoformat(day) if day else None
    except ValueError as exc:
        raise ConfigurationError(f"there is no day {day}") from exc
    queue = console.client.queue(name)
    found: QueueStatistics = await queue.statistics(wanted)
    today = (await queue.now()).date()
    return {
        "day": found.day.isoformat(),
        "days": [(today - timedelta(days=ago)).isoformat() for ago in range(KEPT_DAYS + 1)],
        "handlers": handler_rows(found),
        "waiting": _buckets(found.waiting),
        "running": _buckets(found.running),
    }


def handler_rows(found: QueueStatistics) -> list[dict[str, Any]]:
    """Each handler of a day."""
    return [
        {
            "handler": one.handler or "all others",
            "count": one.running.count,
            "failed": one.failures,
            "retried": one.retries,
            "waiting": _durations(one.waiting),
            "running": _durations(one.running),
        }
        for one in found.handlers
    ]


def _durations(durations: Durations) -> dict[str, float | None]:
    """Mean and percentiles in seconds."""

    def seconds(span: timedelta | None) -> float | None:
        return None if span is None else span.total_seconds()

    mean = durations.mean if durations.count else None
    named = {f"p{percent}": seconds(durations.percentile(percent)) for percent in (50, 95, 99)}
    return {"mean": seconds(mean), **named}


def _buckets(durations: Durations) -> list[dict[str, float]]:
    return [
        {"start": one.start.total_seconds(), "end": one.end.total_seconds(), "count": one.count}
        for one in durations.buckets
    ]


# --- rates ---


def rates(completed: Sequence[MetricPoint], failed: Sequence[MetricPoint], now: datetime) -> dict[str, Any]:
    """Ended jobs of the last hour by minute, of the last day by quarter of an hour, and both in all."""
    points = {"completed": completed, "failed": failed}
    return {
        "minutes": _spans(points, now - HOUR, timedelta(minutes=1)),
        "quarters": _spans(points, now - DAY, QUARTER),
        "hour": _total(points, now - HOUR),
        "day": _total(points, now - DAY),
    }


def _spans(
    points: Mapping[str, Sequence[MetricPoint]], since: datetime, span: timedelta
) -> list[dict[str, Any]]:
    """How many jobs ended in each span of time in which any did, and how long they ran."""
    width = span.total_seconds()
    found: dict[float, dict[str, list[MetricPoint]]] = {}
    for kind, some in points.items():
        for point in some:
            if point.at + timedelta(minutes=1) > since:
                begin = point.at.timestamp() // width * width
                found.setdefault(begin, {}).setdefault(kind, []).append(point)
    return [
        {
            "at": time_text(datetime.fromtimestamp(begin, UTC)),
            **{kind: _count(kinds.get(kind, ())) for kind in points},
            "mean": _mean(point for some in kinds.values() for point in some),
        }
        for begin, kinds in sorted(found.items())
    ]


def _total(points: Mapping[str, Sequence[MetricPoint]], since: datetime) -> dict[str, Any]:
    """In all; ``mean``: how many seconds a job ran."""
    recent = {kind: [one for one in some if one.at >= since] for kind, some in points.items()}
    counts = {kind: _count(some) for kind, some in recent.items()}
    return {**counts, "mean": _mean(point for some in recent.values() for point in some)}


def _count(points: Iterable[MetricPoint]) -> int:
    return sum(point.count for point in points)


def _mean(points: Iterable[MetricPoint]) -> float | None:
    some = list(points)
    count = _count(some)
    return sum(one.mean.total_seconds() * one.count for one in some) / count if count else None
