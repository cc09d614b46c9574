"""The only place that reads clocks. Durations here are monotonic; leases and due times are the server's."""

from __future__ import annotations

import time
from typing import Final, Protocol

SYNC_EVERY_MS: Final = 30_000
DRIFT: Final = 1e-4
"""How far two clocks may drift apart, in seconds per second, when neither was set."""

# CLOCK_MONOTONIC stands still while a laptop sleeps, and the server's clock does not.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A source of time; tests pass their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC, by the clock that leases and due times go by."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment in the past; never goes back. For durations on this machine."""


class SystemClock:
    """The wall clock of this machine: for observers that run no jobs, such as the doctor."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """See ``Clock``."""
        return _monotonic_ns() // 1_000_000


class ServerClock:
    """The server's time: monotonic time of this machine, plus an offset learned from the server's ``TIME``.

    Until the server has replied, the offset is that of this machine's wall clock. Afterwards changes of the
    wall clock do not change what ``now_ms`` returns. Thread-safe.
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
        """Milliseconds since the machine was started; time asleep counts where the system counts it."""
        return _monotonic_ns() // 1_000_000

    def is_due(self, every_ms: int = SYNC_EVERY_MS) -> bool:
        """Whether the server should be asked again."""
        return self._asked_at is None or self.monotonic_ms() - self._asked_at >= every_ms

    def begin_sync(self, *, every_ms: int = SYNC_EVERY_MS) -> bool:
        """Whether the caller should ask the server now; if so, others are not asked to."""
        if not self.is_due(every_ms):
            return False
        self._asked_at = self.monotonic_ms()
        return True

    def forget_sync(self) -> None:
        """Make a sync due before the next call: another server may be the primary now."""
        self._asked_at = None

    def monotonic_us(self) -> int:
        """``monotonic_ms`` in microseconds."""
        return _monotonic_ns() // 1_000

    def learn(self, server_us: int, asked_us: int) -> None:
        """Learn the offset from the reply to a request sent to the server at ``asked_us`` of monotonic time.

        A reply may be off by half its round trip. One that agrees with what is known, within the errors of
        both, is used only if it is more precise; one that does not means that a clock was set.
        """
        now = self.monotonic_us()
        offset, error = server_us - (asked_us + now) // 2, (now - asked_us) // 2
        if self._synced_at_us is not None:
            known = self._error_us + int((now - self._synced_at_us) * DRIFT)
            if abs(offset - self._offset_us) <= error + known and error >= known:
                return
        self._offset_us, self._error_us, self._synced_at_us = offset, error, now


def _monotonic_ns() -> int:
    return time.clock_gettime_ns(_CLOCK)
