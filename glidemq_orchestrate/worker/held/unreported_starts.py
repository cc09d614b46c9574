"""Prefetched jobs that have started, while the server still counts them as not started.

Only the starts of jobs that have run for a moment are reported: most short jobs end sooner and cost no call.
A job that kills its worker sooner counts as not started; its next start is reported before it begins.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.execution import Execution

REPORT_AFTER_SECONDS: Final = 0.02


class UnreportedStarts:
    """The unreported starts of a worker, by queue.

    Args:
        execution_of: The execution of an attempt; None when it does not run.
        wake: Called when a start becomes due.
    """

    def __init__(self, execution_of: Callable[[Attempt], Execution | None], wake: Callable[[], None]) -> None:
        self._execution_of, self._wake, self._loop = execution_of, wake, asyncio.get_running_loop()
        self._started: dict[str, deque[Attempt]] = {}
        self._timers: set[str] = set()

    def add(self, attempt: Attempt) -> None:
        """Add a job that has just started."""
        self._started.setdefault(attempt.queue, deque()).append(attempt)

    def is_due(self, queue: str) -> bool:
        """Whether a job of the queue has run for a moment."""
        return self._seconds_left(queue) <= 0

    def take(self, queue: str) -> list[Attempt]:
        """Remove and return the jobs of the queue that have run for a moment."""
        due = []
        while self.is_due(queue):
            attempt = self._started[queue].popleft()
            if not attempt.is_mute:
                due.append(attempt)
        self.wake_when_due(queue)
        return due

    def wake_when_due(self, queue: str) -> None:
        """Start the timer of a queue, unless it runs or no start is unreported."""
        if queue not in self._timers and (left := self._seconds_left(queue)) < math.inf:
            self._timers.add(queue)
            self._loop.call_later(max(left, 0.0), self._timer_ended, queue)

    def _timer_ended(self, queue: str) -> None:
        self._timers.discard(queue)
        if self.is_due(queue):
            self._wake()
        else:
            self.wake_when_due(queue)

    def _seconds_left(self, queue: str) -> float:
        """Seconds until the oldest running job is due; infinite for none."""
        started = self._started.get(queue)
        while started:
            if (execution := self._execution_of(started[0])) is not None:
                return execution.started + REPORT_AFTER_SECONDS - self._loop.time()
            started.popleft()  # it has ended
        return math.inf
