"""Jobs that may have been what ended a worker run one at a time, until it is known which of them did it.

After a loss nobody knows which of the jobs that ran has caused it. Beside a suspect run other jobs, but no
other suspect: if that worker is lost too, it is clear whose fault it was. A suspect that has run for a while
without harm lets the next one begin; the more often it was in doubt, the longer that is.
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
        release: Called with those that may be tried again, in order.
    """

    def __init__(self, release: Callable[[list[Attempt]], None]) -> None:
        self._release = release
        self._running: Attempt | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.aside: deque[Attempt] = deque()

    @property
    def is_free(self) -> bool:
        """Whether a suspect may begin now."""
        return self._running is None

    def may_begin(self, attempt: Attempt) -> bool:
        """Whether a job may begin now; if not, it is set aside, and released later."""
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
        """A job has ended, or has run for long enough: the next suspect may begin."""
        if self._running is not attempt:
            return
        self._running = None
        if self._timer is not None:
            self._timer.cancel()
        released, self.aside = list(self.aside), deque()
        if released:
            self._release(released)
