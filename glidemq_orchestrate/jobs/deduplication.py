"""When a job is not added because it was added before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.jobs.bounds import lasting, milliseconds, named


@dataclass(frozen=True, slots=True)
class Deduplication:
    """When to add a job although one with the same deduplication id was added before.

    Attributes:
        id: 1 to 256 characters; what is the same job.
        mode: ``simple``: not while the earlier job has not ended. ``throttle``: not within ``ttl`` of the
            earlier one. ``debounce``: replace the earlier one while it is delayed or waits by priority; not
            while it is anything else that has not ended.
        ttl: The window of ``throttle``.
    """

    id: str
    mode: Literal["simple", "throttle", "debounce"] = "simple"
    ttl: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse a mode nobody knows and a window that is missing or without use."""
        named("deduplication.id", self.id)
        if self.mode not in ("simple", "throttle", "debounce"):
            raise InvalidJob(
                f"deduplication.mode {self.mode!r} is unknown; use 'simple', 'throttle' or 'debounce'"
            )
        if self.ttl is not None:
            lasting("deduplication.ttl", self.ttl, least=timedelta(milliseconds=1))
        if (self.ttl is None) == (self.mode == "throttle"):
            raise InvalidJob("deduplication.ttl belongs to mode 'throttle', and to no other")


def deduplication_wire(deduplication: Deduplication) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": deduplication.id, "mode": deduplication.mode}
    if deduplication.ttl is not None:
        wire["ttl"] = milliseconds(deduplication.ttl)
    return wire
