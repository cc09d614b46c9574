"""Adds up how long the jobs of a worker waited and ran, and reports it every few seconds.

A worker that is killed takes what it has not reported with it: the last seconds. The same goes for a report
whose connection breaks, since a repeat might count twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.queues import recent
from glidemq_orchestrate.queues.statistics import HandlerTally, record
from glidemq_orchestrate.wire import stored
from glidemq_orchestrate.wire.call import Run, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.metrics import JobMeter

REPORT_SECONDS: Final = 5.0
MILLISECONDS: Final = 1_000
_RAN: Final = (Kind.DONE, Kind.SKIP)


@dataclass(slots=True)
class _Noted:
    """What a handler took since the last report, with each duration in ms."""

    waiting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    failures: int = 0
    retries: int = 0

    def tally(self) -> HandlerTally:
        found = HandlerTally(failures=self.failures, retries=self.retries)
        found.waiting.add(self.waiting)
        found.running.add(self.running)
        return found


class JobStatistics:
    """What the jobs of a worker took, by queue and handler.

    Args:
        clock: The time of the server.
        meter: Counts them for Prometheus; None if nobody reads that.
    """

    def __init__(self, clock: Clock, meter: JobMeter | None = None) -> None:
        self._clock, self._meter = clock, meter
        self._noted: defaultdict[str, defaultdict[str, _Noted]] = defaultdict(partial(defaultdict, _Noted))

    def started(self, attempt: Attempt) -> None:
        """Count how long a job was ready, until now if it was prefetched, else until it was fetched."""
        if self._meter is not None:
            self._meter.started(attempt)
        since, _, number = attempt.entry_id.partition("-")
        if not number:  # from a list: nothing says since when it was ready
            return
        until = self._clock.now_ms() if attempt.is_ahead else stored.exact(attempt.processed_on)
        if until is not None:
            self._noted[attempt.queue][attempt.name].waiting.append(until - int(since))
            if self._meter is not None:
                self._meter.waited(attempt, (until - int(since)) / MILLISECONDS)

    def returned(self, attempt: Attempt) -> None:
        """Note that the handler of an attempt has returned, however it ended."""
        if self._meter is not None:
            self._meter.returned(attempt)

    def lost(self, attempt: Attempt) -> None:
        """Note that an attempt has lost its job."""
        if self._meter is not None:
            self._meter.lost(attempt)

    def settled(self, outcome: Outcome, verdict: str) -> None:
        """Count an accepted outcome."""
        attempt = outcome.attempt
        if self._meter is not None:
            self._meter.settled(outcome, verdict)
        if verdict == "ok" and outcome.kind in _RAN:
            self._noted[attempt.queue][attempt.name].running.append(attempt.seconds * MILLISECONDS)
        elif verdict == "failed":
            self._noted[attempt.queue][attempt.name].failures += 1
        elif verdict == "retrying":
            self._noted[attempt.queue][attempt.name].retries += 1

    def elements(self, attempt: Attempt, count: int) -> None:
        """Count elements of an array that ended well."""
        if self._meter is not None:
            self._meter.elements(attempt, count)
        self._noted[attempt.queue][attempt.name].running += [attempt.seconds * MILLISECONDS / count] * count

    async def report(self, run: Run, queue: QueueKeys) -> None:
        """Report what was counted since the last report."""
        if found := self._noted.pop(queue.queue, None):
            tallies = {handler: noted.tally() for handler, noted in found.items()}
            now_ms = self._clock.now_ms()
            await run(ask_all([record(queue, tallies, now_ms), recent.record(queue, tallies, now_ms)]))
