"""What else the page shows of a queue: its ordering keys, tags, tracked jobs and flows, and statistics."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query

from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.parts import Name, Shared, flow_row, job_row
from glidemq_orchestrate.console.rates import durations_row
from glidemq_orchestrate.console.shown import time_text
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues.ordering import OrderingKey, OrderingKeys
from glidemq_orchestrate.queues.statistics import KEPT_DAYS, Durations, QueueStatistics

router = APIRouter(dependencies=[Depends(check_queues)])
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
            "waiting": durations_row(one.waiting),
            "running": durations_row(one.running),
        }
        for one in found.handlers
    ]


def _buckets(durations: Durations) -> list[dict[str, float]]:
    return [
        {"start": one.start.total_seconds(), "end": one.end.total_seconds(), "count": one.count}
        for one in durations.buckets
    ]
