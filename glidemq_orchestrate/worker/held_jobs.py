"""The jobs that a worker holds: batches, overdue jobs, suspects, and starts to report.

Batches collect jobs until a batch is full or has waited long enough. Jobs that wait too long are given back.

After the loss of a worker, each of its running jobs may be the cause: they are suspects. A suspect runs
beside other jobs, but not beside other suspects: if its worker is lost too, the suspect is the cause. The
next suspect starts when this one ends, or has run for long enough; each further loss makes that time longer.
With ``max_suspects`` a worker runs several suspects side by side; after each further loss fewer, down to one.

Only the starts of jobs that have run for a moment are reported: most short jobs end sooner and cost no call.
A job that kills its worker sooner counts as not started; its next start is reported before it runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.log import about, failure_of
from glidemq_orchestrate.worker.handlers.middleware import Execution, Middleware
from glidemq_orchestrate.worker.handlers.registered import JobEvent, Registered

logger = logging.getLogger("glidemq_orchestrate.worker")
WAITING_SECONDS: Final = 1.0
ASIDE_SECONDS: Final = 5.0
REST_SECONDS: Final = 0.25
"""After giving suspects back, a worker fetches no jobs for this long, so that others can take them."""
PATIENCE_SECONDS: Final = 30.0
GROWTH: Final = 4
MAX_SECONDS: Final = 86_400.0
SHRINKING: Final = 8
REPORT_AFTER_SECONDS: Final = 0.02


class Batches:
    """The batches of a worker that have not started.

    Args:
        on_closed: Called when a batch can start.

    Attributes:
        closed: The batches that can start, in order. A batch whose jobs are all withdrawn is empty.
    """

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed, self._loop = on_closed, asyncio.get_running_loop()
        self._open: dict[tuple[str, str], list[Attempt]] = {}
        self.closed: deque[list[Attempt]] = deque()

    @property
    def all(self) -> list[list[Attempt]]:
        """The batches that can start, and those that still collect jobs."""
        return [*self._open.values(), *self.closed]

    def add(self, attempt: Attempt, registered: Registered) -> None:
        """Add a job to the batch of its queue and name. Batches do not mix queues: limits are per queue."""
        kind = attempt.queue, attempt.name
        batch = self._open.setdefault(kind, [])
        batch.append(attempt)
        if len(batch) >= registered.batch_size:
            self._close(kind, batch)
        elif len(batch) == 1:
            self._loop.call_later(registered.batch_wait, self._close, kind, batch)

    def _close(self, kind: tuple[str, str], batch: list[Attempt]) -> None:
        if self._open.get(kind) is batch:
            del self._open[kind]
            self.closed.append(batch)
            self._on_closed()


class JobEvents:
    """Emits a ``JobEvent`` to the middleware that handles events.

    Args:
        middleware: All the middleware of the worker.
    """

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._listeners = [one for one in middleware if type(one).on_event is not Middleware.on_event]

    @property
    def has_listeners(self) -> bool:
        """Whether any middleware handles events now."""
        for one in self._listeners:
            try:
                if one.receives_events:
                    return True
            except BaseException:  # user code; logged once, as it would raise at every event
                logger.exception("%s.receives_events raised: it receives no events", type(one).__name__)
                self._listeners = [other for other in self._listeners if other is not one]
        return False

    def emit(self, kind: str, attempt: Attempt, seconds: float = 0.0, reason: str = "") -> None:
        """Emit an event of a job; an exception of a listener is logged."""
        if not self.has_listeners:
            return
        event = JobEvent(
            kind, attempt.queue, attempt.node_job_id, attempt.name, attempt.attempts_made + 1,
            attempt.flow_id, attempt.node, seconds, reason, attempt.epoch, attempt.element,
        )  # fmt: skip
        for one in self._listeners:
            try:
                one.on_event(event)
            except BaseException:  # user code
                logger.exception("%s raised", type(one).__name__, extra=about("hook_raised", attempt))

    def emit_verdict(self, outcome: Outcome, verdict: str) -> None:
        """Emit the event for the server's verdict on an outcome."""
        if not self.has_listeners or outcome.kind not in (Kind.FAIL, Kind.DONE):
            return
        seconds = outcome.attempt.seconds
        if verdict in ("retrying", "failed"):
            self.emit(verdict, outcome.attempt, seconds, failure_of(outcome))
        elif verdict == "ok":
            self.emit("completed", outcome.attempt, seconds)
        else:
            self.emit("lost", outcome.attempt, seconds)


class OverdueJobs:
    """Gives back the jobs that have waited too long.

    Args:
        seconds: How long a job may wait. It is given back after at most twice this time.
        waiting: Returns the jobs that are waiting.
        give_back: Called with the jobs that have waited too long.
    """

    def __init__(
        self, seconds: float, waiting: Callable[[], list[Attempt]], give_back: Callable[[list[Attempt]], None]
    ) -> None:
        self._seconds, self._waiting, self._give_back = seconds, waiting, give_back
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Start the timer, if a job waits and the timer is not running."""
        if self._timer is None and (waiting := self._waiting()):
            self._timer = self._loop.call_later(self._seconds, self._end, waiting)

    def _end(self, waiting: list[Attempt]) -> None:
        self._timer, still = None, set(map(id, self._waiting()))
        if left := [attempt for attempt in waiting if id(attempt) in still]:
            self._give_back(left)
        self.check()


class Suspects:
    """The suspects that a worker holds.

    Args:
        release: Called with the jobs that may start, in order.
        most: How many suspects of a single loss may run side by side; of each further loss an eighth as many,
            down to one. The suspect with the most losses decides, so that in the end it runs alone.

    Attributes:
        aside: The suspects that wait for another suspect to end.
    """

    def __init__(self, release: Callable[[list[Attempt]], None], most: int = 1) -> None:
        self._release, self._most = release, most
        self._running: dict[int, tuple[Attempt, asyncio.TimerHandle]] = {}
        self._worst = 0
        self.aside: deque[Attempt] = deque()

    @property
    def is_free(self) -> bool:
        """Whether a suspect may start now."""
        return not self._running

    def may_begin(self, attempt: Attempt) -> bool:
        """Whether a job may start now; if not, it is set aside, and released later."""
        if not attempt.suspect:
            return True
        worst = max(self._worst, attempt.suspect)
        if len(self._running) >= max(self._most // SHRINKING ** min(worst - 1, 10), 1):
            self.aside.append(attempt)
            return False
        seconds = min(PATIENCE_SECONDS * GROWTH ** min(attempt.suspect - 1, 10), MAX_SECONDS)
        timer = asyncio.get_running_loop().call_later(seconds, self.ended, attempt)
        self._running[id(attempt)], self._worst = (attempt, timer), worst
        return True

    def ended(self, attempt: Attempt) -> None:
        """Start the next suspects: this one has ended, or has run long enough."""
        _, timer = self._running.pop(id(attempt), (attempt, None))
        if timer is None:
            return
        timer.cancel()
        self._worst = max((other.suspect or 0 for other, _ in self._running.values()), default=0)
        released, self.aside = list(self.aside), deque()
        if released:
            self._release(released)


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
        """Start the timer of a queue, unless it runs or every start is reported."""
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
