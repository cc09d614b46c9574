"""How many jobs of a queue ended in the last hour and day, and how long they waited and ran."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from glidemq_orchestrate.clients.client import AsyncClient
from glidemq_orchestrate.console.shown import time_text
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.queues.recent import RecentStatistics
from glidemq_orchestrate.queues.statistics import Durations

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
PERIODS: Final = {"hour": HOUR, "day": DAY}
QUARTER: Final = timedelta(minutes=15)
LATELY_SECONDS: Final = 10.0
MAX_QUEUES: Final = 100


def rates(
    completed: Sequence[MetricPoint],
    failed: Sequence[MetricPoint],
    now: datetime,
    lately: Mapping[str, RecentStatistics],
) -> dict[str, Any]:
    """Ended jobs of the last hour by minute, of the last day by quarter of an hour, and both in all."""
    points = {"completed": completed, "failed": failed}
    return {
        "minutes": _spans(points, now - HOUR, timedelta(minutes=1)),
        "quarters": _spans(points, now - DAY, QUARTER),
        **{key: {**_total(points, now - PERIODS[key]), **_lately(one)} for key, one in lately.items()},
    }


def _lately(found: RecentStatistics) -> dict[str, Any]:
    return {
        "retried": found.retries,
        "waiting": durations_row(found.waiting),
        "running": durations_row(found.running),
        "since": time_text(found.durations_since),
    }


class Lately:
    """How long the jobs of queues waited and ran in the last hour and day, at most some seconds old.

    Args:
        client: Reads it.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._kept: OrderedDict[str, tuple[float, dict[str, RecentStatistics]]] = OrderedDict()

    async def of(self, queue: str) -> dict[str, RecentStatistics]:
        """That of a queue, by period."""
        now = asyncio.get_running_loop().time()
        at, known = self._kept.get(queue, (-LATELY_SECONDS, {}))
        if now - at < LATELY_SECONDS:
            return known
        found = self._client.queue(queue)
        every = await asyncio.gather(*(found.recent_statistics(period) for period in PERIODS.values()))
        known = dict(zip(PERIODS, every, strict=True))
        self._kept[queue] = now, known
        while len(self._kept) > MAX_QUEUES:
            self._kept.popitem(last=False)
        return known


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


def durations_row(durations: Durations) -> dict[str, float | None]:
    """Mean and percentiles in seconds."""

    def seconds(span: timedelta | None) -> float | None:
        return None if span is None else span.total_seconds()

    mean = durations.mean if durations.count else None
    named = {f"p{percent}": seconds(durations.percentile(percent)) for percent in (50, 95, 99)}
    return {"mean": seconds(mean), **named}
