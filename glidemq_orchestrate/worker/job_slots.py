"""The jobs that a worker holds, and how many more it may hold. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from glidemq_orchestrate.jobs.attempt import Attempt

AHEAD_SECONDS: Final = 0.02
BRIEF_SECONDS: Final = 0.001


MAX_AHEAD: Final = 128


@dataclass(slots=True)
class JobSlots:
    """The jobs that a worker holds, and how many more it may hold.

    ``concurrency`` jobs run at the same time. If jobs are short, the worker holds more, so that the next job
    starts without a round trip: as many as start within 20 ms, at most 128; or ``prefetch`` if it is set.

    Attributes:
        max_suspects: See ``held_jobs.Suspects``.
        held: Every attempt that the worker holds, started or not, by queue and job.
        waiting: The attempts that have not started, in order.
        taken: How many attempts it has ever held.
        running: Calls of handlers under way; a batch is one.
        reserved: The number of requested jobs.
        aside: How many held suspects wait although there is room; see ``held_jobs.Suspects``.
        is_blocked: Too many handlers run beyond their time limit: no job starts until one returns.
        is_resting: Suspects were given back, and other workers should fetch them first.
        is_slow: Waiting jobs were given back: no further jobs are held ahead until a handler returns.
    """

    concurrency: int
    prefetch: int | None = None
    max_suspects: int = 1
    batch_room: int = 0
    held: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    waiting: deque[Attempt] = field(default_factory=deque)
    taken: int = 0
    running: int = 0
    reserved: int = 0
    stopping: bool = False
    aside: int = 0
    is_blocked: bool = False
    is_slow: bool = False
    is_resting: bool = False
    mean_seconds: float = 1.0

    def room(self) -> int:
        """How many more jobs to request."""
        if (
            self.stopping
            or self.is_blocked
            or self.is_resting
            or (self.is_slow and self.running >= self.concurrency)
        ):
            return 0
        places = self.concurrency + self.batch_room + self.ahead() + min(self.aside, self.concurrency)
        return max(places - len(self.held) - self.reserved, 0)

    def starts(self) -> int:
        """How many more jobs would start immediately; jobs of batches wait for each other."""
        if self.batch_room:
            return 0
        return max(self.concurrency - self.running - len(self.waiting) - self.reserved, 0)

    def ahead(self) -> int:
        """How many jobs to hold beyond the running ones."""
        if self.prefetch is not None:
            return self.prefetch
        return min(int(self.concurrency * AHEAD_SECONDS / max(self.mean_seconds, 1e-5)), MAX_AHEAD)

    def ends_soon(self) -> bool:
        """Whether jobs run whose end is due at once, if they take as long as those before."""
        return bool(self.held) and self.mean_seconds < BRIEF_SECONDS

    def ran(self, seconds: float) -> None:
        """Update the mean duration of runs."""
        self.is_slow = False
        self.mean_seconds += (seconds - self.mean_seconds) / 16

    def take(self, attempt: Attempt) -> None:
        """Hold an attempt."""
        self.taken += len(attempt.slice.indexes) if attempt.slice else 1
        self.held[attempt.queue, attempt.job_id] = attempt

    def free(self, attempt: Attempt) -> None:
        """Release an attempt that has ended. A newer attempt of the same job stays."""
        if self.held.get((attempt.queue, attempt.job_id)) is attempt:
            del self.held[attempt.queue, attempt.job_id]
