"""Why a node that has not ended does not run now, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a node waits.

    Attributes:
        reason: For people.
        until: When that ends by itself, at the latest; None: nobody knows.
        is_turn: It only waits for its turn: workers serve its queue, and other jobs run or come first, or a
            rate limit lets it start later.
    """

    reason: str
    until: datetime | None = None
    is_turn: bool = False

    def __str__(self) -> str:
        """For people, in local time: ``until 14:05:30: to be tried again (attempt 1 of 3 failed: ...)``."""
        if self.until is None:
            return self.reason
        at = self.until.astimezone()
        is_today = at.date() == datetime.now(at.tzinfo).date()
        return f"until {at:{'%H:%M:%S' if is_today else '%Y-%m-%d %H:%M:%S'}}: {self.reason}"
