"""The only module that reads clocks. Durations are monotonic; leases and due times use the server's clock."""

from __future__ import annotations

import time
from typing import Final, Protocol

SYNC_EVERY_MS: Final = 30_000
DRIFT: Final = 1e-4
"""How far two clocks may drift apart, in seconds per second, unless one is set."""

# CLOCK_MONOTONIC stops while a laptop sleeps; the server's clock does not.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A source of time; tests pass their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC, by the clock that decides leases and due times."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary moment; never goes back. For durations on this machine."""


class SystemClock:
    """The wall clock of this machine, for observers that run no jobs, such as the doctor."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """See ``Clock``."""
        return _monotonic_ns() // 1_000_000


class ServerClock:
    """The server's time: monotonic time of this machine plus an offset measured by the server's ``TIME``.

    Until the server has replied, the offset is that of this machine's wall clock. Afterwards ``now_ms`` does
    not depend on the wall clock. Thread-safe.
    """

    def __init__(self) -> None:
        self._offset_us = (time.time_ns() - _monotonic_ns()) // 1_000
        self._asked_at: int | None = None
        self._synced_at_us: int | None = None
        self._error_us = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return (self.monotonic_us() + self._offset_us) // 1_000

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine started, including time asleep if the system counts it."""
        return _monotonic_ns() // 1_000_000

    def is_due(self, every_ms: int = SYNC_EVERY_MS) -> bool:
        """Whether it is time to read the server's clock again."""
        return self._asked_at is None or self.monotonic_ms() - self._asked_at >= every_ms

    def begin_sync(self, *, every_ms: int = SYNC_EVERY_MS) -> bool:
        """Whether the caller should read the server's clock now; if True, other callers get False."""
        if not self.is_due(every_ms):
            return False
        self._asked_at = self.monotonic_ms()
        return True

    def forget_sync(self) -> None:
        """Make a sync due before the next call, since another server may be the primary now."""
        self._asked_at = None

    def monotonic_us(self) -> int:
        """``monotonic_ms`` in microseconds."""
        return _monotonic_ns() // 1_000

    def learn(self, server_us: int, sent_us: int) -> None:
        """Update the offset from the server's reply to a request sent at ``sent_us`` (monotonic).

        A reply may be off by half its round trip. A reply within the error bounds is used only if it is more
        precise. Any other means that a clock was set.
        """
        now = self.monotonic_us()
        offset, error = server_us - (sent_us + now) // 2, (now - sent_us) // 2
        if self._synced_at_us is not None:
            known_error = self._error_us + int((now - self._synced_at_us) * DRIFT)
            if abs(offset - self._offset_us) <= error + known_error and error >= known_error:
                return
        self._offset_us, self._error_us, self._synced_at_us = offset, error, now


def _monotonic_ns() -> int:
    return time.clock_gettime_ns(_CLOCK)
