"""Readers and waiters survive an outage of the server, such as a failover."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final, Self

from glidemq_orchestrate.errors import TransportError
from glidemq_orchestrate.foundation.durations import Duration, duration, seconds
from glidemq_orchestrate.foundation.importing import importing

logger = logging.getLogger("glidemq_orchestrate.clients")
FIRST_PAUSE: Final = 0.1
MAX_PAUSE: Final = 2.0
SILENT_SECONDS: Final = 1.0
REPEAT_SECONDS: Final = 60.0


class Outage:
    """Waits during an outage. Logs one of over a second, once a minute, and its end.

    Args:
        what: What is read, for the log.
        timeout: How long the caller reads at most: then the error of the outage is raised. None: no limit.
        has_read: Whether the server has replied before. If it never has, the address may be wrong.
    """

    def __init__(self, what: str, *, timeout: Duration | None = None, has_read: bool = False) -> None:
        self._what, self._has_read = what, has_read
        limit = math.inf if timeout is None else seconds(duration("timeout", timeout))
        self._deadline = time.monotonic() + limit
        self._since = self._pause = 0.0
        self._logged = -math.inf
        self._closings: Callable[[], int] = int
        self._closed_before = 0

    def end_with(self, closings: Callable[[], int]) -> Self:
        """Let it end when the client is closed by another thread or task; ``closings`` counts that."""
        self._closings, self._closed_before = closings, closings()
        return self

    def wait(self, error: TransportError) -> None:
        """Wait before the next try.

        Raises:
            TransportError: The client was closed; the time is over; the address may be wrong; or the error is
                permanent.
        """
        time.sleep(self._next_pause(error))
        self._check_open(error)

    async def wait_async(self, error: TransportError) -> None:
        """``wait`` on the event loop."""
        await sleep(self._next_pause(error))
        self._check_open(error)

    def _next_pause(self, error: TransportError) -> float:
        self._check_open(error)
        now = time.monotonic()
        if not self._has_read or not error.retryable or now >= self._deadline:
            raise error
        if not self._pause:
            self._since = now
        if now - self._since >= SILENT_SECONDS and now - self._logged >= REPEAT_SECONDS:
            self._logged = now
            logger.warning(
                "%s: the server is unreachable: %s", self._what, error, extra={"action": "reconnect"}
            )
        self._pause = min(self._pause * 2 or FIRST_PAUSE, MAX_PAUSE)
        return min(self._pause, self._deadline - now)

    def _check_open(self, error: TransportError) -> None:
        """Raise the error if the client was closed: the next try would open it again."""
        if self._closings() != self._closed_before:
            raise error

    def over(self) -> None:
        """End the outage, after a successful read."""
        if self._logged > -math.inf:
            logger.info("%s: the server is reachable again", self._what, extra={"action": "recovered"})
        self._has_read, self._pause, self._logged = True, 0.0, -math.inf


async def sleep(seconds: float) -> None:
    """Wait, on the event loop."""
    with importing():
        import asyncio  # noqa: PLC0415  slow, and rarely needed

    await asyncio.sleep(seconds)
