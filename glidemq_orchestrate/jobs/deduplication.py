"""Deduplication of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, milliseconds
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs.bounds import lasting, named


@dataclass(frozen=True, slots=True)
class Deduplication:
    """When to add a job although one with the same deduplication id was added earlier.

    Attributes:
        id: 1 to 256 characters; jobs with the same id are the same job.
        mode: ``simple``: not until the earlier job has ended. ``throttle``: not within ``ttl`` of the earlier
            one. ``debounce``: replace the earlier one while it is delayed or prioritized; not while it is in
            any other state that is not an end.
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
