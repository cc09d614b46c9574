"""Ordering keys: jobs that start in the order of adding, and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, milliseconds
from glidemq_orchestrate.jobs.bounds import amount, lasting, named, whole


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``max`` starts in each window of ``per``; the window begins with its first start."""

    max: int
    per: Duration

    def __post_init__(self) -> None:
        """Refuse a limit that has no effect."""
        whole("rate_limit.max", self.max, 1)
        object.__setattr__(self, "per", lasting("rate_limit.per", self.per, min_=MILLISECOND))


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A bucket of ``capacity`` tokens that refills by ``refill_per_second``; a start takes its cost."""

    capacity: float
    refill_per_second: float

    def __post_init__(self) -> None:
        """Refuse a bucket that stays empty."""
        amount("token_bucket.capacity", self.capacity, least=0.001)
        amount("token_bucket.refill_per_second", self.refill_per_second, least=0.001)


@dataclass(frozen=True, slots=True)
class Ordering:
    """Jobs of one key start in the order of adding.

    Attributes:
        key: 1 to 256 characters, not ``__``.
        concurrency: How many jobs of the key run at once; 1 keeps them strictly in order.
        rate_limit: Starts per window for the key.
        token_bucket: Starts by cost for the key.
    """

    key: str
    concurrency: int = 1
    rate_limit: RateLimit | None = None
    token_bucket: TokenBucket | None = None

    def __post_init__(self) -> None:
        """Refuse keys and limits that the server could not store."""
        named("ordering.key", self.key)
        if self.key == "__":
            raise InvalidJob("ordering.key must not be '__', which glide-mq reserves")
        whole("ordering.concurrency", self.concurrency, 1)
        check_fields(self, InvalidJob)


def ordering_wire(ordering: Ordering) -> dict[str, Any]:
    wire: dict[str, Any] = {"key": ordering.key, "concurrency": ordering.concurrency}
    if limit := ordering.rate_limit:
        wire["rateLimit"] = {"max": limit.max, "duration": milliseconds(limit.per)}
    if bucket := ordering.token_bucket:
        wire["tokenBucket"] = {"capacity": bucket.capacity, "refillRate": bucket.refill_per_second}
    return wire
