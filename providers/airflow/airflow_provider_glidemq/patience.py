"""Failures to reach the server while something waits for it: for minutes they are taken for passing ones.

A secrets backend that does not answer, a password that is being rotated, a right that is missing for a
while: none of it tells anything about the flow. So whoever waits warns, looks the connection up again, and
goes on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    LibraryError,
    ProtocolError,
    TransportError,
)

T = TypeVar("T")

PATIENCE_SECONDS: Final = 600.0
CALM_SECONDS: Final = 60.0  # what goes on for longer has gone well before it failed
_PASSING: Final = (TransportError, ConfigurationError, LibraryError, ProtocolError)


class LookupFailed(ConfigurationError):
    """Airflow did not tell the connection: it has none of this id, or its secrets backend does not answer."""

    retryable = True


@contextmanager
def looking_up(conn_id: str) -> Iterator[None]:
    """Let it be known as such when Airflow cannot tell a connection.

    Raises:
        LookupFailed: Instead of whatever Airflow or a secrets backend raises, whose text may hold a secret.
    """
    try:
        yield
    except GlideMQError:
        raise
    except Exception as exc:
        raise LookupFailed(f"Airflow cannot tell the connection {conn_id}: {type(exc).__name__}") from exc


class Patience:
    """What to do about failures while something is waited for. Not for answers, such as that it is gone.

    A server that cannot be reached is waited for without end, and all else, such as a refused password, for
    ten minutes. The time begins anew when all has gone well for a minute.

    Args:
        log: Where it is told.
        what: What is waited for.
        seconds: Another number of seconds; None: ten minutes.
    """

    def __init__(self, log: Any, what: str, seconds: float | None = None) -> None:
        self._log, self._what = log, what
        self._seconds = PATIENCE_SECONDS if seconds is None else seconds
        self._pauses = reconnect_pauses()
        self._since: float | None = None
        self._last = 0.0

    def pause(self, error: GlideMQError) -> float:
        """Seconds to the next try.

        Raises:
            GlideMQError: The error itself: it is an answer, or has been there for too long.
        """
        now = time.monotonic()
        if self._since is None or now - self._last > CALM_SECONDS:
            self._since, self._pauses = now, reconnect_pauses()
        self._last = now
        is_away = isinstance(error, TransportError) and error.retryable
        if not isinstance(error, _PASSING) or not (is_away or now - self._since < self._seconds):
            raise error
        pause = next(self._pauses)
        if not is_away:
            pause = min(pause, max(self._since + self._seconds - now, 0.0))
        name = "" if is_away else f"{type(error).__name__}: "
        self._log.warning("%s cannot be watched, retrying in %.1f s: %s%s", self._what, pause, name, error)
        return pause


def patiently(call: Callable[[], T], patience: Patience) -> T:
    """Repeat a call of a process that waits, until it succeeds or ``patience`` ends. It must be repeatable.

    Raises:
        GlideMQError: As ``Patience.pause``.
    """
    while True:
        try:
            return call()
        except GlideMQError as exc:
            time.sleep(patience.pause(exc))


def reconnect_pauses() -> Iterator[float]:
    """Seconds between attempts to reach the server: from half a second to 15, each shortened at random.

    The randomness keeps a thousand triggers from reconnecting at the same moment.
    """
    pause = 0.5
    while True:
        yield pause * (1 - random.random() / 2)  # noqa: S311  jitter
        pause = min(pause * 2, 15.0)
