"""Which steps ran when a session was lost: they run again alone, so that the one that ends it is found.

A lost session costs no step an attempt, unless it was lost again while the step ran alone, or for the third
time in a row. What is known is of this process: another worker counts for itself.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

FREE: Final = 2
"""So many losses in a row, beside other steps, cost a job no attempt."""
MOST_KNOWN: Final = 10_000
ALONE_SECONDS: Final = 60.0
"""How long a step waits for others to end, to run alone."""
LOOK_SECONDS: Final = 0.1


class Losses:
    """Counts lost sessions by job, and lets suspects run alone; every method may be called from any thread.

    Args:
        alone_seconds: How long a suspect waits for the steps that run; then it runs beside them.
    """

    def __init__(self, alone_seconds: float = ALONE_SECONDS) -> None:
        self._lock = threading.Lock()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._running = 0
        self._is_alone = False
        self._alone_seconds = alone_seconds

    @contextmanager
    def place(self, job: str, is_cancelled: Callable[[], bool]) -> Iterator[bool]:
        """Run a step in the block, a suspect alone if it can be. The value is whether it is alone."""
        until = time.monotonic() + self._alone_seconds
        while (alone := self._enter(job, waits=time.monotonic() < until and not is_cancelled())) is None:
            time.sleep(LOOK_SECONDS)
        try:
            yield alone
        finally:
            with self._lock:
                self._running -= 1
                self._is_alone = self._is_alone and not alone

    def _enter(self, job: str, *, waits: bool) -> bool | None:
        """Begin to run, if it is time: whether alone; None when the step has to wait."""
        with self._lock:
            is_suspect = job in self._counts
            alone = is_suspect and not self._running
            if waits and not alone and (is_suspect or self._is_alone):
                return None
            self._running += 1
            self._is_alone = self._is_alone or alone
            return alone

    def note(self, job: str) -> int:
        """A session was lost while the job ran: how often that was so in a row."""
        with self._lock:
            self._counts[job] = self._counts.pop(job, 0) + 1
            while len(self._counts) > MOST_KNOWN:
                self._counts.popitem(last=False)
            return self._counts[job]

    def forget(self, job: str) -> None:
        """The job has run, and the session is there."""
        with self._lock:
            self._counts.pop(job, None)
