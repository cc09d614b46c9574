"""How often a session was lost in a row while a job ran, so that the one that ends it is found.

The first time costs no attempt, as any step of the session may be to blame; the job then runs in a session of
its own if that can be, and the loss of that is its own. What is known is of this process: another worker
counts for itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

MAX_KNOWN: Final = 10_000


class Losses:
    """Counts lost sessions by job; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: OrderedDict[str, int] = OrderedDict()

    def is_suspect(self, job: str) -> bool:
        """Whether a session was lost when the job last ran."""
        with self._lock:
            return job in self._counts

    def note(self, job: str) -> int:
        """A session was lost while the job ran: how often that was so in a row."""
        with self._lock:
            self._counts[job] = self._counts.pop(job, 0) + 1
            while len(self._counts) > MAX_KNOWN:
                self._counts.popitem(last=False)
            return self._counts[job]

    def forget(self, job: str) -> None:
        """The job has run, and the session is there."""
        with self._lock:
            self._counts.pop(job, None)
