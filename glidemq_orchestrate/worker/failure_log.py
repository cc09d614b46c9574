"""The log of the failures that a service survives."""

from __future__ import annotations

import logging
import time
from typing import Final

from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.worker.core import text_of

logger = logging.getLogger("glidemq_orchestrate.worker")

REPEAT_SECONDS: Final = 60.0


class FailureLog:
    """Logs the failures that a service survives: immediately at first, then once a minute with a count."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, tuple[str, float, int]] = {}

    def report(self, what: str, exc: BaseException) -> None:
        """Log a failure, unless the same one was logged within the last minute."""
        text, now = f"{type(exc).__name__}: {text_of(exc)}", time.monotonic()
        known, since, count = self._known.get(what, ("", 0.0, 0))
        if text == known and now - since < REPEAT_SECONDS:
            self._known[what] = text, since, count + 1
            return
        self._known[what] = text, now, 0
        again = f" ({count} more times since)" if count and text == known else ""
        is_outage = isinstance(exc, TransportError)
        logger.log(
            logging.WARNING if is_outage else logging.ERROR,
            "%s: %s failed and is retried%s: %s",
            self._name,
            what,
            again,
            text,
            exc_info=None if isinstance(exc, GlideMQError) else exc,
            extra={"action": "reconnect" if is_outage else "survived", "worker": self._name},
        )

    def clear(self, what: str) -> None:
        """Log that it works again; the next failure is logged immediately."""
        if self._known.pop(what, None) is not None:
            logger.info(
                "%s: %s works again", self._name, what, extra={"action": "recovered", "worker": self._name}
            )
