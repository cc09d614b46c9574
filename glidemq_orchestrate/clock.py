"""The only place that reads the wall clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the present comes from; tests pass their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000
