"""Jobs that have waited too long in a worker are given back: another worker may have room for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from glidemq_orchestrate.jobs.attempt import Attempt

WAITING_SECONDS: Final = 1.0
ASIDE_SECONDS: Final = 5.0
REST_SECONDS: Final = 0.25
"""After giving jobs back, a worker leaves them to others for this long."""


class OverdueJobs:
    """Gives back the jobs that have waited too long.

    Args:
        seconds: How long a job may wait. It is given back after twice as long at the latest.
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
