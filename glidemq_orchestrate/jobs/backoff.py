"""The pause between attempts. Pure: the random number for the jitter is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.foundation.durations import Duration, duration, seconds
from glidemq_orchestrate.foundation.names import described

MAX_DELAY_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause between attempts, as glide-mq computes it.

    Attributes:
        kind: ``fixed``: always ``delay``. ``exponential``: ``delay`` doubled after each failure.
        delay: The first pause; not negative.
        jitter: 0 to 1: up to this share of the pause is added at random.
    """

    kind: Literal["fixed", "exponential"] = "exponential"
    delay: Duration = timedelta(seconds=1)
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no worker could apply."""
        if self.kind not in ("fixed", "exponential"):
            raise InvalidJob(f"backoff kind {described(self.kind)} is unknown; use 'fixed' or 'exponential'")
        object.__setattr__(self, "delay", duration("backoff.delay", self.delay, error=InvalidJob))
        check_fields(self, InvalidJob)
        if not 0 <= self.jitter <= 1:
            raise InvalidJob(f"backoff jitter must be between 0 and 1, got {described(self.jitter)}")


def delay_ms(backoff: Backoff | None, failures: int, random: float) -> int:
    """Milliseconds to wait after the ``failures``-th failure (1 is the first); at most seven days.

    Source of the formula: client behaviour of glide-mq, ``2^(n-1) * delay`` plus ``random * jitter`` of it.
    """
    if backoff is None:
        return 0
    base = seconds(backoff.delay) * 1000
    if backoff.kind == "exponential":
        base *= 2.0 ** min(failures - 1, 62)
    return min(round(base + random * backoff.jitter * base), MAX_DELAY_MS)
