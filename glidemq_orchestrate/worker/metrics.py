"""What a worker counts of its jobs for Prometheus, and the port where it is read.

The port is served by a thread of the worker; with several processes, by the loop of their parent, which has
no second thread since it forks. Each process sends it what it has counted once a second, and at its end.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.queues.statistics import BOUNDS_SECONDS
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.worker.job_slots import JobSlots

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger("glidemq_orchestrate.worker")

MAX_ROWS: Final = 1_000
OTHERS: Final = "all others"
"""The name of the handlers beyond so many rows."""
PREFIX: Final = "glidemq_worker"
_ENDS: Final = {Kind.DONE: "completed", Kind.SKIP: "skipped", Kind.BACK: "returned"}
_TIMES: Final = ("waiting", "running")


class _Times:
    """Durations by bucket, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(BOUNDS_SECONDS) + 1), 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self.sum += seconds * count

    def merge(self, counts: list[int], total: float) -> None:
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)]
        self.sum += total


@dataclass(slots=True)
class _Row:
    """What was counted for a handler of a queue."""

    active: int = 0
    started: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    waiting: _Times = field(default_factory=_Times)
    running: _Times = field(default_factory=_Times)


class Counts:
    """What one or more workers have counted.

    Attributes:
        rows: By queue and handler.
        lost: How many leases were lost, by queue.
        exchanged: When a call to the server last succeeded, by queue: seconds since the epoch.
        places: How many jobs may run at once.
        taken: How many run.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], _Row] = {}
        self.lost: Counter[str] = Counter()
        self.exchanged: dict[str, float] = {}
        self.places = self.taken = 0

    def row(self, queue: str, handler: str) -> _Row:
        """The row of a handler."""
        found = self.rows.get((queue, handler))
        if found is None:
            key = (queue, handler if len(self.rows) < MAX_ROWS else OTHERS)
            found = self.rows.setdefault(key, _Row())
        return found

    def text(self) -> str:
        """Them as JSON; from any thread."""
        rows = [
            [*key, row.active, row.started, dict(row.ended)]
            + [part for name in _TIMES for part in (getattr(row, name).counts, getattr(row, name).sum)]
            for key, row in list(self.rows.items())
        ]
        parts = rows, dict(self.lost), self.exchanged.copy(), self.places, self.taken
        return json.dumps(parts)

    def add(self, text: str, *, ended: bool = False) -> None:
        """Add what another worker has counted, with the shards of a queue as one.

        Args:
            text: Its counts.
            ended: It has ended: it runs nothing and has no places.
        """
        rows, lost, exchanged, places, taken = json.loads(text)
        for queue, handler, active, started, ends, *times in rows:
            row = self.row(split_shard(queue)[0], handler)
            row.started += started
            row.ended.update(ends)
            row.waiting.merge(*times[:2])
            row.running.merge(*times[2:])
            row.active += 0 if ended else active
        for queue, count in lost.items():
            self.lost[split_shard(queue)[0]] += count
        if ended:
            return
        for queue, at in exchanged.items():
            name = split_shard(queue)[0]
            self.exchanged[name] = min(at, self.exchanged.get(name, at))
        self.places, self.taken = self.places + places, self.taken + taken


class JobMeter:
    """Counts the jobs of a worker.

    Args:
        slots: The jobs that it holds.
        handler: Stands for all names of jobs.
    """

    def __init__(self, slots: JobSlots, handler: str | None = None) -> None:
        self._slots, self._handler, self._counts = slots, handler, Counts()

    def _row(self, attempt: Attempt) -> _Row:
        return self._counts.row(attempt.queue, self._handler or attempt.name)

    def started(self, attempt: Attempt) -> None:
        """Count the start of a handler."""
        row = self._row(attempt)
        row.started, row.active = row.started + 1, row.active + 1

    def waited(self, attempt: Attempt, seconds: float) -> None:
        """Count how long a job was ready before it started."""
        self._row(attempt).waiting.add(max(seconds, 0.0))

    def returned(self, attempt: Attempt) -> None:
        """Count the return of a handler, however it ended."""
        self._row(attempt).active -= 1

    def settled(self, outcome: Outcome, verdict: str) -> None:
        """Count the verdict of the server on an outcome."""
        attempt = outcome.attempt
        row = self._row(attempt)
        if verdict == "ok":
            is_unbegun = outcome.kind is Kind.LATER and outcome.second == UNBEGUN
            row.ended["returned" if is_unbegun else _ENDS.get(outcome.kind, "paused")] += 1
            if outcome.kind in (Kind.DONE, Kind.SKIP):
                row.running.add(attempt.seconds)
        elif verdict in ("failed", "retrying"):
            row.ended["failed" if verdict == "failed" else "retried"] += 1
        elif verdict.startswith("stale "):
            self.lost(attempt)

    def elements(self, attempt: Attempt, count: int) -> None:
        """Count elements of an array that ended well."""
        row = self._row(attempt)
        row.ended["completed"] += count
        row.running.add(attempt.seconds / count, count)

    def lost(self, attempt: Attempt) -> None:
        """Count a lost lease."""
        self._counts.lost[attempt.queue] += 1

    def exchanged(self, queue: str) -> None:
        """Note that a call to the server about a queue has succeeded."""
        self._counts.exchanged[queue] = time.time()

    def text(self) -> str:
        """What was counted, for ``Counts.add``; from any thread."""
        self._counts.places, self._counts.taken = self._slots.concurrency, self._slots.running
        return self._counts.text()


def families(counts: Counts, processes: Mapping[int, int]) -> Iterator[Metric]:
    """The metrics of these counts and processes.

    Args:
        counts: What was counted.
        processes: The pid of each process of the worker, by its number.
    """
    from prometheus_client.core import (  # noqa: PLC0415  of an extra
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    by_handler, by_queue = ("queue", "handler"), ("queue",)
    active = GaugeMetricFamily(f"{PREFIX}_jobs_running", "Jobs that run now", labels=by_handler)
    started = CounterMetricFamily(f"{PREFIX}_jobs_started", "Calls of handlers", labels=by_handler)
    ended = CounterMetricFamily(
        f"{PREFIX}_jobs_ended", "Outcomes that the server accepted", labels=(*by_handler, "outcome")
    )
    waited = HistogramMetricFamily(
        f"{PREFIX}_job_waiting_seconds", "How long jobs were ready before they ran", labels=by_handler
    )
    ran = HistogramMetricFamily(
        f"{PREFIX}_job_running_seconds", "How long handlers ran whose jobs ended well", labels=by_handler
    )
    for key, row in counts.rows.items():
        active.add_metric(key, row.active)
        started.add_metric(key, row.started)
        for outcome, count in row.ended.items():
            ended.add_metric((*key, outcome), count)
        for family, times in ((waited, row.waiting), (ran, row.running)):
            family.add_metric(key, _cumulative(times.counts), times.sum)
    yield from (active, started, ended, waited, ran)
    lost = CounterMetricFamily(f"{PREFIX}_lost_leases", "Jobs that other workers took over", labels=by_queue)
    at = GaugeMetricFamily(
        f"{PREFIX}_last_exchange_timestamp_seconds",
        "When the server last answered",
        labels=by_queue,
    )
    for queue in {**counts.exchanged, **counts.lost}:
        lost.add_metric((queue,), counts.lost[queue])
    for queue, since in counts.exchanged.items():
        at.add_metric((queue,), since)
    yield from (lost, at)
    yield GaugeMetricFamily(f"{PREFIX}_places", "How many jobs may run at once", counts.places)
    yield GaugeMetricFamily(f"{PREFIX}_places_taken", "How many places are taken", counts.taken)
    yield from _of_processes(processes)


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    total, found = 0, list[tuple[str, float]]()
    for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), counts, strict=True):
        total += count
        found.append((bound, total))
    return found


def _of_processes(processes: Mapping[int, int]) -> Iterator[Metric]:
    """Memory, processor time and files of each process, by its number."""
    from prometheus_client import ProcessCollector  # noqa: PLC0415  of an extra
    from prometheus_client.core import Metric  # noqa: PLC0415

    found: dict[str, Metric] = {}
    for number, pid in processes.items():
        with suppress(OSError):  # it has just ended
            for one in ProcessCollector(PREFIX, pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                family = found.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                for sample in one.samples:
                    family.add_sample(sample.name, {"process": str(number)}, sample.value)
    yield from found.values()


# --- the port ---

MAX_HEAD: Final = 16_384
MAX_CONNECTIONS: Final = 32
SEND_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 0.5
_TEXTS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}


class MetricsPort:
    """Serves metrics by HTTP. It never waits for those who read: whoever drives it has other work.

    Args:
        host: The address.
        port: The port; 0 for any free one.
        read: Returns what was counted, and the pids of the processes by number.

    Raises:
        ConfigurationError: It cannot be opened, or the library is not installed. Nothing is open then.
    """

    def __init__(self, host: str, port: int, read: Callable[[], tuple[Counts, Mapping[int, int]]]) -> None:
        whole("metrics_port", port, 0, 65_535, error=ConfigurationError)
        try:
            with importing():
                import prometheus_client  # noqa: F401, PLC0415  of an extra
        except ModuleNotFoundError as exc:
            fix = "pip install 'glidemq-orchestrate[metrics]'"
            raise ConfigurationError(f"metrics_port needs prometheus-client. Fix: {fix}") from exc
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family)
        except OSError as exc:
            raise ConfigurationError(f"metrics cannot be served at {host}:{port}: {exc}") from exc
        self._listener.setblocking(False)
        self._read, self._heads = read, dict[socket.socket, bytes]()
        self._is_closed, self._thread = False, threading.Thread(target=self._serve, daemon=True)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._listener.getsockname()[1]}/metrics"

    @property
    def sockets(self) -> list[socket.socket]:
        """Those to wait for."""
        return [self._listener, *self._heads]

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Close all connections. Repeatable."""
        self._is_closed = True
        if self._thread.is_alive():
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._thread.join()
        for one in self.sockets:
            one.close()
        self._heads.clear()

    def _serve(self) -> None:
        while not self._is_closed:
            with selectors.DefaultSelector() as selector:
                for one in self.sockets:
                    selector.register(one, selectors.EVENT_READ)
                found = selector.select(CHECK_SECONDS)
            for key, _ in found:
                self.attend(key.fileobj)

    def attend(self, ready: object) -> None:
        """Take a connection, or read what has arrived on one, and answer a request that is complete."""
        if ready is self._listener:
            with suppress(OSError):  # whoever wanted to connect has gone
                taken, _ = self._listener.accept()
                taken.setblocking(False)
                self._heads[taken] = b""
                if len(self._heads) > MAX_CONNECTIONS:
                    self._drop(next(iter(self._heads)))
        elif isinstance(ready, socket.socket) and ready in self._heads:
            try:
                arrived = ready.recv(MAX_HEAD)
                self._heads[ready] = head = self._heads[ready] + arrived
                if b"\r\n\r\n" in head:
                    ready.settimeout(SEND_SECONDS)
                    ready.sendall(self._answer(head))
                elif arrived and len(head) < MAX_HEAD:
                    return
            except OSError:
                pass
            except Exception:
                logger.exception("the metrics cannot be served", extra={"action": "survived"})
            self._drop(ready)

    def _drop(self, connection: socket.socket) -> None:
        del self._heads[connection]
        connection.close()

    def _answer(self, head: bytes) -> bytes:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  of an extra
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415

        request, *lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        status = 405 if method not in ("GET", "HEAD") else 200 if path == "/metrics" else 404
        body, kind = _TEXTS[status].encode(), "text/plain; charset=utf-8"
        if status == 200:
            encode, kind = choose_encoder(fields.get("accept", ""))
            registry = CollectorRegistry(auto_describe=False)
            registry.register(_Collected(*self._read()))
            body = encode(registry)
        answer = f"HTTP/1.1 {status} {_TEXTS[status]}\r\ncontent-type: {kind}\r\n"
        answer += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        return answer.encode() + (b"" if method == "HEAD" else body)


class _Collected:
    """A collector for the registry of one answer."""

    def __init__(self, counts: Counts, processes: Mapping[int, int]) -> None:
        self._counts, self._processes = counts, processes

    def collect(self) -> Iterator[Any]:
        return families(self._counts, self._processes)
