"""Suspects: jobs that may have killed a worker. They run one at a time, until it is known which one did.

After a worker is lost, it is not known which of its running jobs caused that. A suspect runs beside other
jobs, but not beside other suspects: if its worker is lost too, the suspect is to blame. The next suspect
starts when it ends, or has run long enough without harm; the more often it was suspected, the longer that
takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from glidemq_orchestrate.jobs.attempt import Attempt

PATIENCE_SECONDS: Final = 30.0
GROWTH: Final = 4
MAX_SECONDS: Final = 86_400.0


class Suspects:
    """The suspects that a worker holds.

    Args:
        release: Called with the jobs that may start, in order.

    Attributes:
        aside: The suspects that wait for another one.
    """

    def __init__(self, release: Callable[[list[Attempt]], None]) -> None:
        self._release = release
        self._running: Attempt | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.aside: deque[Attempt] = deque()

    @property
    def is_free(self) -> bool:
        """Whether a suspect may start now."""
        return self._running is None

    def may_begin(self, attempt: Attempt) -> bool:
        """Whether a job may start now; if not, it is set aside, and released later."""
        if not attempt.suspect:
            return True
        if self._running is not None:
            self.aside.append(attempt)
            return False
        self._running = attempt
        seconds = min(PATIENCE_SECONDS * GROWTH ** min(attempt.suspect - 1, 10), MAX_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.ended, attempt)
        return True

    def ended(self, attempt: Attempt) -> None:
        """Let the next suspect start: this one has ended, or has run long enough."""
        if self._running is not attempt:
            return
        self._running = None
        if self._timer is not None:
            self._timer.cancel()
        released, self.aside = list(self.aside), deque()
        if released:
            self._release(released)
