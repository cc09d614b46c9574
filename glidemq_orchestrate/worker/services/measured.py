"""What a service counts of its jobs, and the port where Prometheus reads it."""

from __future__ import annotations

import asyncio
import logging
import os

from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.metrics import Counts, JobMeter, MetricsPort

logger = logging.getLogger("glidemq_orchestrate.worker")


class Measured:
    """The counts of a service.

    Args:
        slots: The jobs that it holds.
        port: The port; 0 for any free one, None for none.
        host: The address of the port.
        handler: Stands for all names of jobs.
    """

    def __init__(self, slots: JobSlots, port: int | None, host: str, *, handler: str | None = None) -> None:
        self.meter = JobMeter(slots, handler)
        self.is_metered = port is not None
        self._place = None if port is None else (host, port)
        self._port: MetricsPort | None = None

    @property
    def url(self) -> str | None:
        """Where it is read; None while it is not served."""
        return None if self._port is None else self._port.url

    def serve(self) -> None:
        """Open the port, if there is to be one.

        Raises:
            ConfigurationError: It cannot be opened, or the library is not installed.
        """
        if self._place is not None:
            self._port = MetricsPort(*self._place, self._read)
            self._port.start()
            logger.info("metrics at %s", self._port.url, extra={"action": "metrics"})

    async def close(self) -> None:
        """Close the port. Repeatable."""
        if (port := self._port) is not None:
            self._port = None
            await asyncio.to_thread(port.close)

    def _read(self) -> tuple[Counts, dict[int, int]]:
        """What the port serves; in its thread."""
        counts = Counts()
        counts.add(self.meter.text())
        return counts, {0: os.getpid()}
