"""Says for whose leases an idle worker waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from glidemq_orchestrate.attempts.upkeep import SilentWorker
from glidemq_orchestrate.worker.job_slots import JobSlots

logger = logging.getLogger("glidemq_orchestrate.worker")
IDLE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 10.0
SILENT_MS: Final = 5_000


class SilentWorkers:
    """The silent workers of a queue, each of which is logged once while this worker is idle.

    Args:
        queue: The queue.
        slots: The jobs of this worker.
    """

    def __init__(self, queue: str, slots: JobSlots) -> None:
        self._queue, self._slots = queue, slots
        self._taken, self._due = slots.taken, time.monotonic() + IDLE_SECONDS
        self._has_asked = False
        self._logged: set[str] = set()

    def wanted_ms(self) -> int:
        """How long the workers to look for are silent; 0 while this worker has work, or has just looked."""
        now = time.monotonic()
        if self._slots.held or self._slots.taken != self._taken:
            self._taken, self._due = self._slots.taken, now + IDLE_SECONDS
        self._has_asked = now >= self._due
        if self._has_asked:
            self._due = now + AGAIN_SECONDS
        return SILENT_MS if self._has_asked else 0

    def note(self, found: Iterable[SilentWorker], now_ms: int) -> None:
        """Log those that are new, if this worker has looked for them."""
        if not self._has_asked:
            return
        silent = {one.worker: one for one in found}
        for name in silent.keys() - self._logged:
            self._log(silent[name], now_ms)
        self._logged = set(silent)

    def _log(self, one: SilentWorker, now_ms: int) -> None:
        text = (
            "queue %s: worker %s has sent no heartbeat for %d s and holds %d jobs: "
            "other workers run them when its leases end, at %s, unless it sends one"
        )
        ends = f"{datetime.fromtimestamp(one.until_ms / 1000, UTC).astimezone():%H:%M:%S}"
        values = self._queue, one.worker, (now_ms - one.renewed_ms) // 1000, one.jobs, ends
        extra = {"action": "worker_silent", "queue": self._queue, "worker": one.worker}
        logger.info(text, *values, extra=extra)
