"""Endless readers survive an outage of the server, such as a failover."""

from __future__ import annotations

import logging
import time
from typing import Final

from glidemq_orchestrate.errors import ServerTooOld, TransportError
from glidemq_orchestrate.foundation.importing import importing

logger = logging.getLogger("glidemq_orchestrate.clients")
FIRST_PAUSE: Final = 0.1
MAX_PAUSE: Final = 2.0
REPEAT_SECONDS: Final = 60.0


class Outage:
    """Logs an outage that a reader survives: at its start, once a minute, and at its end.

    Args:
        what: What is read, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._has_read, self._pause, self._logged = False, 0.0, 0.0

    def pause(self, error: TransportError) -> float:
        """The seconds to wait before the next try.

        Raises:
            TransportError: The address may be wrong, as nothing was read yet; or the error is permanent.
        """
        if not self._has_read or isinstance(error, ServerTooOld):
            raise error
        now = time.monotonic()
        if not self._pause or now - self._logged >= REPEAT_SECONDS:
            self._logged = now
            logger.warning(
                "%s: the server is unreachable: %s", self._what, error, extra={"action": "reconnect"}
            )
        self._pause = min(self._pause * 2 or FIRST_PAUSE, MAX_PAUSE)
        return self._pause

    def over(self) -> None:
        """End the outage, after a successful read."""
        if self._pause:
            logger.info("%s: the server is reachable again", self._what, extra={"action": "recovered"})
        self._has_read, self._pause = True, 0.0


async def sleep(seconds: float) -> None:
    """Wait, on the event loop."""
    with importing():
        import asyncio  # noqa: PLC0415  slow, and rarely needed

    await asyncio.sleep(seconds)
