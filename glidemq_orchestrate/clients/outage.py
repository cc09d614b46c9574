"""What a reader that goes on for ever does while the server is away."""

from __future__ import annotations

import logging
import time
from typing import Final

from glidemq_orchestrate.errors import ServerTooOld, TransportError
from glidemq_orchestrate.foundation.importing import importing

logger = logging.getLogger("glidemq_orchestrate.clients")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
REPEAT_SECONDS: Final = 60.0


class Outage:
    """The outages that a reader survives: each is logged at its begin, once a minute, and at its end.

    Args:
        what: What is read, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._has_read, self._pause, self._logged = False, 0.0, 0.0

    def pause(self, error: TransportError) -> float:
        """How long to wait before the next try.

        Raises:
            TransportError: Nothing has been read yet, so the address may be wrong; or no repeat helps.
        """
        if not self._has_read or isinstance(error, ServerTooOld):
            raise error
        now = time.monotonic()
        if not self._pause or now - self._logged >= REPEAT_SECONDS:
            self._logged = now
            logger.warning("%s: the server is away: %s", self._what, error, extra={"action": "reconnect"})
        self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        return self._pause

    def over(self) -> None:
        """Something was read."""
        if self._pause:
            logger.info("%s: the server is back", self._what, extra={"action": "recovered"})
        self._has_read, self._pause = True, 0.0


async def sleep(seconds: float) -> None:
    """Wait, on the event loop."""
    with importing():
        import asyncio  # noqa: PLC0415  slow, and seldom needed

    await asyncio.sleep(seconds)
