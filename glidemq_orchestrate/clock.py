"""The only place that reads clocks. Durations here are monotonic; leases and due times are the server's."""

from __future__ import annotations

import time
from typing import Final, Protocol

SYNC_EVERY_MS: Final = 30_000
SLOWEST_MS: Final = 1_000
"""An answer that took longer tells the server's time too badly to correct what is known."""


class Clock(Protocol):
    """Where the present comes from; tests pass their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC, by the clock that leases and due times go by."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment in the past; never goes back. For durations on this machine."""


class SystemClock:
    """The wall clock of this machine: for looks from outside, such as the doctor's."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """See ``Clock``."""
        return _monotonic_ns() // 1_000_000


class ServerClock:
    """The server's time: monotonic time of this machine, plus an offset that the server's ``TIME`` tells.

    Until the server has told it, the offset is that of this machine's wall clock. Afterwards nothing that
    happens to the wall clock changes what ``now_ms`` answers. Thread-safe.
    """

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1_000_000 - self.monotonic_ms()
        self._asked_at: int | None = None
        self._is_told = False

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return self.monotonic_ms() + self._offset

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine was started; the time that it was asleep counts where known."""
        return _monotonic_ns() // 1_000_000

    def begin_sync(self, *, every_ms: int = SYNC_EVERY_MS) -> bool:
        """Whether the server should be asked again; then the caller does so."""
        now = self.monotonic_ms()
        if self._asked_at is not None and now - self._asked_at < every_ms:
            return False
        self._asked_at = now
        return True

    def forget_sync(self) -> None:
        """Have the server asked again before the next call: another one may be the primary now."""
        self._asked_at = None

    def learn(self, server_ms: int, asked_ms: int) -> None:
        """Take over what the server answered to a question asked at ``asked_ms`` of the monotonic time."""
        now = self.monotonic_ms()
        if now - asked_ms <= SLOWEST_MS or not self._is_told:
            self._offset = server_ms - (asked_ms + now) // 2
            self._is_told = True


def _monotonic_ns() -> int:
    # CLOCK_MONOTONIC stands still while a laptop sleeps, and the server's clock does not.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()
