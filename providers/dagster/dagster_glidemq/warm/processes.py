"""The warm processes of a worker: one for each code location, and one that waits for the first."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from dagster_glidemq.warm.process import Stale, WarmProcess
from glidemq_orchestrate import Unrecoverable
from glidemq_orchestrate.worker.context import Cancelled

MOST: Final = 8
TRIES: Final = 3


class WarmProcesses:
    """Runs steps and runs in the process that has their code. Thread-safe; a forked child starts empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_location: dict[str, WarmProcess] = {}
        self._spare: WarmProcess | None = None
        self._owner = os.getpid()

    def warm_up(self) -> None:
        """Start the process that waits for the first location."""
        with self._lock:
            self._owner = os.getpid()
            self._spare = self._spare or WarmProcess()

    def run(self, kind: str, location: str, job: Any, cancelled: Cancelled, grace: float) -> None:
        """Run a job; see ``WarmProcess.run``. A process whose code has changed is replaced.

        Raises:
            Unrecoverable: It ended otherwise than by itself, or could not begin.
        """
        for _ in range(TRIES):
            process = self._take(location)
            try:
                process.run(kind, job, cancelled, grace)
            except Stale:
                self._forget(location, process)
            else:
                return
        raise Unrecoverable(f"{TRIES} warm processes ended, or had their code changed, before it began")

    def close(self) -> None:
        """End all processes. Does nothing in a forked child."""
        if self._owner != os.getpid():
            return
        with self._lock:
            left = [*self._by_location.values(), *([self._spare] if self._spare else [])]
            self._by_location, self._spare = {}, None
        for process in left:
            process.close()

    def _take(self, location: str) -> WarmProcess:
        with self._lock:
            process = self._by_location.get(location)
            if process is None or not process.is_usable:
                spare, self._spare = self._spare, None
                process = spare if spare is not None and spare.is_usable else WarmProcess()
                self._by_location[location] = process
                self._drop_idle()
            return process

    def _forget(self, location: str, process: WarmProcess) -> None:
        """Let no further job go to it; it ends with its last one."""
        with self._lock:
            if self._by_location.get(location) is process:
                del self._by_location[location]

    def _drop_idle(self) -> None:
        """End the process that was idle for longest when there are too many."""
        idle = [place for place, process in self._by_location.items() if process.is_idle]
        if len(self._by_location) > MOST and len(idle) > 1:
            oldest = min(idle, key=lambda place: self._by_location[place].used_at)
            threading.Thread(target=self._by_location.pop(oldest).close, daemon=True).start()
