"""What Prometheus reads: ``GET /metrics``, in a few calls for each queue, however many jobs it has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from glidemq_orchestrate.clients.facade import AsyncFacade
from glidemq_orchestrate.clients.queue import AsyncQueue
from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.parts import Shared
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows.index import flow_counts
from glidemq_orchestrate.queues.gauges import QueueGauges, gauges
from glidemq_orchestrate.queues.listing import JobCounts
from glidemq_orchestrate.queues.statistics import BOUNDS_SECONDS, Durations, QueueStatistics
from glidemq_orchestrate.server.calls import server_memory
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys

logger = logging.getLogger(__name__)
router = APIRouter(dependencies=[Depends(check_queues)])
T = TypeVar("T")

SCRAPE_SECONDS: Final = 8.0
"""Prometheus waits 10 s by default."""
PART_SECONDS: Final = 3.0
AT_ONCE: Final = 8
PARTS: Final = ("names", "queue", "flows", "memory")
OTHERS: Final = "all others"

_BY_HANDLER: Final = ("queue", "handler")
_GAUGES: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "up": ("Whether anything could be read from the server", ()),
    "queue_up": ("Whether the queue could be read", ("queue",)),
    "queue_jobs": ("Jobs of the queue that the server has", ("queue", "state")),
    "queue_elements": ("Elements of open arrays; the ready ones wait, too", ("queue", "state")),
    "queue_last_minute_jobs": ("Jobs that ended in the last full minute", ("queue", "outcome")),
    "queue_oldest_waiting_seconds": ("How long the oldest job has been ready to run", ("queue",)),
    "queue_paused": ("Whether the queue is paused", ("queue",)),
    "queue_workers": ("Live workers of the queue", ("queue",)),
    "queue_dead_letters": ("Jobs in a queue that is the dead-letter queue of others", ("queue",)),
    "queue_late_schedules": ("Schedules that are due for more than 30 s", ("queue",)),
    "flows": ("Flows by state and home queue, until their retention ends", ("queue", "state")),
    "server_memory_used_bytes": ("Memory that the server uses", ("server",)),
    "server_memory_max_bytes": ("Memory that the server may use; 0 for no limit", ("server",)),
    "scrape_duration_seconds": ("How long this scrape has taken", ()),
}
_COUNTERS: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "jobs": ("Jobs that ended since midnight UTC", ("queue", "handler", "outcome")),
    "job_retries": (
        "Failed attempts that were followed by another one, since midnight UTC",
        ("queue", "handler"),
    ),
    "scrape_errors": ("Parts of scrapes that could not be read", ("part",)),
}
_HISTOGRAMS: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "job_waiting_seconds": ("How long jobs were ready before they ran, since midnight UTC", _BY_HANDLER),
    "job_running_seconds": ("How long the handlers of jobs ran, since midnight UTC", _BY_HANDLER),
}  # fmt: skip


class _Found(Collector):
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        for make, table in (
            (GaugeMetricFamily, _GAUGES),
            (CounterMetricFamily, _COUNTERS),
            (HistogramMetricFamily, _HISTOGRAMS),
        ):
            for name, (text, labels) in table.items():
                self._families[name] = make(f"glidemq_{name}", text, labels=labels)

    def collect(self) -> Iterable[Metric]:
        return self._families.values()

    def add(self, name: str, value: float, *labels: str) -> None:
        self._families[name].add_metric(labels, value)

    def add_durations(self, name: str, durations: Durations, *labels: str) -> None:
        bounds = ((bound, timedelta(seconds=bound)) for bound in BOUNDS_SECONDS)
        buckets = [
            (str(bound), sum(one.count for one in durations.buckets if one.end <= span))
            for bound, span in bounds
        ]
        total = (durations.mean or timedelta(0)).total_seconds() * durations.count
        self._families[name].add_metric(labels, [*buckets, ("+Inf", durations.count)], total)


class Scraper(AsyncFacade):
    """Reads the metrics of a server, with connections of its own.

    Args:
        console: The console.
        settings: The server.
    """

    def __init__(self, console: Any, settings: ConnectionSettings) -> None:
        super().__init__(settings, prefix=settings.prefix)
        self._console = console
        self._errors = Counter(dict.fromkeys(PARTS, 0))
        self._naming: asyncio.Task[list[str]] | None = None

    async def close(self) -> None:
        """Close the connections. Repeatable."""
        if self._naming is not None:
            self._naming.cancel()
        await super().close()

    async def scrape(self, accepted: str) -> tuple[bytes, str]:
        """The page, and its type.

        Args:
            accepted: The types that the reader accepts.
        """
        begun = time.monotonic()
        until = begun + SCRAPE_SECONDS
        found, gate = _Found(), asyncio.Semaphore(AT_ONCE)
        names = await self._part("names", self._names, until)
        if names is None:
            names = self._console.known_queues

        async def read(name: str) -> _QueueRow | None:
            async with gate:
                return await self._part("queue", lambda: self._read_queue(name), until)

        reading = asyncio.gather(*map(read, names))
        flows = await self._part("flows", self._read_flows, until)
        memory = await self._part("memory", self._read_memory, until)
        rows = await reading
        is_up = memory is not None or any(row is not None for row in rows)
        found.add("up", is_up)
        for name, row in zip(names, rows, strict=True):
            found.add("queue_up", row is not None, name)
            if row is not None:
                row.add_to(found, name)
        _add_letters(found, {name: row for name, row in zip(names, rows, strict=True) if row is not None})
        for (name, state), count in (flows or {}).items():
            found.add("flows", count, name, state)
        for where, (used, most) in (memory or {}).items():
            found.add("server_memory_used_bytes", used, where)
            found.add("server_memory_max_bytes", most, where)
        for part, count in self._errors.items():
            found.add("scrape_errors", count, part)
        found.add("scrape_duration_seconds", time.monotonic() - begun)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(found)
        encode, kind = choose_encoder(accepted)
        return encode(registry), kind

    async def _part(self, part: str, read: Callable[[], Awaitable[T]], until: float) -> T | None:
        """What ``read`` returns; None if it fails or takes too long, which is counted."""
        left = min(PART_SECONDS, until - time.monotonic())
        try:
            async with asyncio.timeout(left):
                return await read()
        except Exception as exc:  # noqa: BLE001  one part must not break the others
            self._errors[part] += 1
            logger.info("a scrape could not read %s: %s", part, exc or type(exc).__name__)
            return None

    async def _names(self) -> list[str]:
        """The names of the queues. To find them may take longer than a scrape may: the next one has them."""
        if self._naming is None or self._naming.done():
            self._naming = asyncio.create_task(self._console.queues())
            self._naming.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._naming)

    async def _read_queue(self, name: str) -> _QueueRow:
        queue: AsyncQueue = self._console.client.queue(name)
        row = _QueueRow()
        row.counts, row.is_paused, workers, row.statistics, row.letters, row.gauges = await asyncio.gather(
            queue.counts(indexed_only=True),
            queue.is_paused(),
            queue.workers(),
            queue.statistics(),
            queue.dead_letter_queue(),
            self._run(self._gauges_of(QueueKeys(self._prefix, name))),
        )
        row.workers = sum(worker.runs_jobs for worker in workers)
        return row

    async def _read_flows(self) -> dict[tuple[str, str], int]:
        counts: Counter[tuple[str, str]] = Counter()
        every = await self._run(flow_counts(self._prefix))
        for home, found in every.items():
            if isinstance(found, GlideMQError):
                self._errors["flows"] += 1
                continue
            for state, count in found.items():
                counts[split_shard(home)[0], state] += count
        return counts

    async def _read_memory(self) -> dict[str, tuple[int, int]]:
        driver = await self._connected()
        every = await driver.run_on_each(lambda _: ask(server_memory()))
        return {self._settings.node(place): found for place, found in every}

    def _gauges_of(self, queue: QueueKeys) -> Op[QueueGauges]:
        shards = yield from self._known_shards().of_one(queue, self._clock)
        members = [queue] if shards is None else shards.members()
        return (yield from gauges(members, self._clock.now_ms()))


class _QueueRow:
    """What was read of a queue."""

    counts: JobCounts
    is_paused: bool
    workers: int
    statistics: QueueStatistics
    letters: str | None
    gauges: QueueGauges

    def add_to(self, found: _Found, name: str) -> None:
        for state, count in self.counts.items():
            found.add("queue_jobs", count, name, state)
        for kind in ("waiting", "ready", "running"):
            found.add("queue_elements", getattr(self.counts.elements, kind), name, kind)
        for outcome, count in self.gauges.ended.items():
            found.add("queue_last_minute_jobs", count, name, outcome)
        found.add("queue_oldest_waiting_seconds", self.gauges.oldest_ms / 1_000, name)
        found.add("queue_paused", self.is_paused, name)
        found.add("queue_workers", self.workers, name)
        found.add("queue_late_schedules", self.gauges.late_schedules, name)
        for one in self.statistics.handlers:
            labels = name, one.handler or OTHERS
            found.add("jobs", one.running.count, *labels, "completed")
            found.add("jobs", one.failures, *labels, "failed")
            found.add("job_retries", one.retries, *labels)
            found.add_durations("job_waiting_seconds", one.waiting, *labels)
            found.add_durations("job_running_seconds", one.running, *labels)


def _add_letters(found: _Found, rows: dict[str, _QueueRow]) -> None:
    """The dead letters are jobs of queues that were read anyway, or of queues without any job."""
    for letters in sorted({row.letters for row in rows.values() if row.letters}):
        count = sum(rows[letters].counts.values()) if letters in rows else 0
        found.add("queue_dead_letters", count, letters)


@router.get("/metrics", include_in_schema=False)
async def metrics(console: Shared, request: Request) -> Response:
    """The metrics, in the text format of Prometheus."""
    text, kind = await console.scraper.scrape(request.headers.get("accept", ""))
    return Response(text, media_type=None, headers={"content-type": kind})
