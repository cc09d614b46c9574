"""Notices what waits in a worker for longer than expected: another worker may have a place for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from glidemq_orchestrate.jobs.attempt import Attempt

WAITING_SECONDS: Final = 1.0
ASIDE_SECONDS: Final = 5.0
ASIDE_PAUSE_MS: Final = 1_000


class Overdue:
    """The jobs that have waited here since the last look, once that was some time ago.

    Args:
        seconds: For how long they may wait; none waits for twice as long.
        waiting: What waits now.
        give_back: Called with those that have waited for too long.
    """

    def __init__(
        self, seconds: float, waiting: Callable[[], list[Attempt]], give_back: Callable[[list[Attempt]], None]
    ) -> None:
        self._seconds, self._waiting, self._give_back = seconds, waiting, give_back
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Begin to wait, if something does and no look is under way."""
        if self._timer is None and (waiting := self._waiting()):
            self._timer = self._loop.call_later(self._seconds, self._end, waiting)

    def _end(self, waiting: list[Attempt]) -> None:
        self._timer, still = None, set(map(id, self._waiting()))
        if left := [attempt for attempt in waiting if id(attempt) in still]:
            self._give_back(left)
        self.look()
