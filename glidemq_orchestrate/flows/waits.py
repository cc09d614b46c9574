"""Why a node does not run yet, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a node waits.

    Attributes:
        reason: Human-readable.
        until: When that ends at the latest, without intervention; None if unknown.
        is_turn: Whether it only waits for its turn: workers serve its queue, but other jobs come first, or a
            rate limit delays it.
    """

    reason: str
    until: datetime | None = None
    is_turn: bool = False

    def __str__(self) -> str:
        """Human-readable, in local time: ``until 14:05:30: for its next attempt (attempt 1 of 3 failed)``."""
        if self.until is None:
            return self.reason
        at = self.until.astimezone()
        is_today = at.date() == datetime.now(at.tzinfo).date()
        return f"until {at:{'%H:%M:%S' if is_today else '%Y-%m-%d %H:%M:%S'}}: {self.reason}"
