"""The values of job options: backoff, retention, deduplication, ordering, fallbacks, references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from glidemq_orchestrate.errors import ConfigurationError, EncodeError, InvalidJob
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, duration, milliseconds, seconds
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import amount, lasting, named, whole
from glidemq_orchestrate.wire.codec import Json, encode
from glidemq_orchestrate.wire.keys import check_job_id, check_queue_name

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


Retention: TypeAlias = "bool | int | Keep"
"""``False``: kept until cleaned. ``True``: removed immediately. A number: a ``Keep`` with it. Or ``Keep``."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How many ended jobs are kept, and for how long: one of the two or both.

    It applies only to the job that has it. ``count``: the max number of jobs with the same end state and the
    same count; the newest remain. ``age``: the time after its end; any worker of the queue then removes the
    job within a few seconds. A job with a parent remains at least until the parent has ended; a node of a
    flow remains as long as its flow.
    """

    count: int | None = None
    age: Duration | None = None

    def __post_init__(self) -> None:
        """Refuse a retention that keeps everything or nothing."""
        if self.count is None and self.age is None:
            raise InvalidJob("keep needs a count, an age or both")
        if self.count is not None:
            whole("keep.count", self.count, 1)
        if self.age is not None:
            object.__setattr__(self, "age", lasting("keep.age", self.age, min_=timedelta(seconds=1)))


def check_retention(name: str, value: object) -> None:
    if isinstance(value, bool | Keep):
        return
    if not isinstance(value, int) or not 1 <= value <= 2**53:
        raise InvalidJob(
            f"{name} must be True, False, a count of at least 1 or a Keep, got {described(value)}"
        )


@dataclass(frozen=True, slots=True)
class Deduplication:
    """When to add a job despite an earlier job with the same deduplication id.

    Attributes:
        id: 1 to 256 characters; jobs with the same id are the same job.
        mode: ``simple``: not until the earlier job has ended. ``throttle``: not within ``ttl`` of the earlier
            one. ``debounce``: replaces an earlier job that is delayed or prioritized; not while the earlier
            job is in another state before its end.
        ttl: The window of ``throttle``.
    """

    id: str
    mode: Literal["simple", "throttle", "debounce"] = "simple"
    ttl: Duration | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown mode, and a window that is missing or has no effect."""
        named("deduplication.id", self.id)
        if self.mode not in ("simple", "throttle", "debounce"):
            raise InvalidJob(
                f"deduplication.mode {described(self.mode)} is unknown; "
                "use 'simple', 'throttle' or 'debounce'"
            )
        if self.ttl is not None:
            ttl = lasting("deduplication.ttl", self.ttl, min_=MILLISECOND)
            object.__setattr__(self, "ttl", ttl)
        if (self.ttl is None) == (self.mode == "throttle"):
            raise InvalidJob("deduplication.ttl is required with mode 'throttle' and not allowed otherwise")


def deduplication_wire(deduplication: Deduplication) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": deduplication.id, "mode": deduplication.mode}
    if deduplication.ttl is not None:
        wire["ttl"] = milliseconds(deduplication.ttl)
    return wire


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
        amount("token_bucket.capacity", self.capacity, min_=0.001)
        amount("token_bucket.refill_per_second", self.refill_per_second, min_=0.001)


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


@dataclass(frozen=True, slots=True)
class Fallback:
    """What an attempt after the first uses instead: ``fallbacks[0]`` on the second, and so on."""

    model: str
    provider: str | None = None
    metadata: Mapping[str, Json] | None = None

    def __post_init__(self) -> None:
        """Refuse a model that is not a name, and metadata that is not JSON."""
        named("fallbacks.model", self.model)
        check_fields(self, InvalidJob)
        try:
            encode(self.metadata, where="fallbacks.metadata")
        except EncodeError as exc:
            raise InvalidJob(str(exc)) from exc

    def to_wire(self) -> dict[str, Any]:
        """The element of the ``fallbacks`` list."""
        wire: dict[str, Any] = {"model": self.model}
        if self.provider is not None:
            wire["provider"] = self.provider
        if self.metadata is not None:
            wire["metadata"] = dict(self.metadata)
        return wire


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job of any queue under the same prefix."""

    queue: str
    id: str

    def __post_init__(self) -> None:
        """Refuse names that no job can have."""
        try:
            check_queue_name(self.queue)
            check_job_id(self.id)
        except (ConfigurationError, InvalidJob) as exc:
            raise InvalidJob(f"not a job: {exc}") from exc
