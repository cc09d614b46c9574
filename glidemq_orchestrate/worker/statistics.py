"""Adds up how long the jobs of a worker waited and ran, and reports it every few seconds.

A worker that is killed takes what it has not reported with it: the last seconds. The same goes for a report
whose connection breaks, since a repeat might count twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.queues.statistics import HandlerTally, record
from glidemq_orchestrate.wire import stored
from glidemq_orchestrate.wire.call import Run, ask
from glidemq_orchestrate.wire.keys import QueueKeys

REPORT_SECONDS: Final = 5.0
MILLISECONDS: Final = 1_000


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
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: dict[str, defaultdict[str, _Noted]] = {}

    def started(self, attempt: Attempt) -> None:
        """Count how long a job was ready, until now if it was prefetched, else until it was fetched."""
        since, _, number = attempt.entry_id.partition("-")
        if not number:  # from a list: nothing says since when it was ready
            return
        until = self._clock.now_ms() if attempt.is_ahead else stored.number(attempt.processed_on)
        self._of(attempt).waiting.append(until - stored.number(since))

    def settled(self, outcome: Outcome, verdict: str) -> None:
        """Count an accepted outcome."""
        if verdict == "ok" and outcome.kind in (Kind.DONE, Kind.SKIP):
            self._of(outcome.attempt).running.append(outcome.attempt.seconds * MILLISECONDS)
        elif verdict == "failed":
            self._of(outcome.attempt).failures += 1
        elif verdict == "retrying":
            self._of(outcome.attempt).retries += 1

    async def report(self, run: Run, queue: QueueKeys) -> None:
        """Report what was counted since the last report."""
        if found := self._noted.pop(queue.queue, None):
            tallies = {handler: noted.tally() for handler, noted in found.items()}
            await run(ask(record(queue, tallies, self._clock.now_ms())))

    def _of(self, attempt: Attempt) -> _Noted:
        found = self._noted.get(attempt.queue)
        if found is None:
            found = self._noted[attempt.queue] = defaultdict(_Noted)
        return found[attempt.name]
