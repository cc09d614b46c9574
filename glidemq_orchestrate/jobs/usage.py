"""The usage of one job, as its handler or any client reports it. Independent of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.jobs.bounds import amount, lasting, milliseconds, named


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one job. Every number is finite and not negative.

    Attributes:
        model: The model that was used; ``provider``: the company that runs it.
        tokens: By category, such as input and output.
        total_tokens: The sum of ``tokens`` when left out.
        costs: By category.
        total_cost: The sum of ``costs`` when left out.
        cost_unit: Such as USD.
        latency: How long the call took.
        cached: Whether the response came from a cache.
    """

    model: str | None = None
    provider: str | None = None
    tokens: Mapping[str, float] = field(default_factory=dict)
    total_tokens: float | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    total_cost: float | None = None
    cost_unit: str | None = None
    latency: timedelta | None = None
    cached: bool | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot be summed."""
        for name in ("model", "provider", "cost_unit"):
            if getattr(self, name) is not None:
                named(name, getattr(self, name))
        for name in ("tokens", "costs"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidJob(
                    f"{name} must be numbers by category, got {type(getattr(self, name)).__name__}"
                )
            for category, value in getattr(self, name).items():
                named(f"category of {name}", category)
                amount(f"{name}.{category}", value)
        for name in ("total_tokens", "total_cost"):
            if getattr(self, name) is not None:
                amount(name, getattr(self, name))
        if self.latency is not None:
            lasting("latency", self.latency)

    def to_wire(self) -> dict[str, Any]:
        """The form of glide-mq, with the sums; absent parts are left out."""
        total_tokens, total_cost = _sum(self.total_tokens, self.tokens), _sum(self.total_cost, self.costs)
        wire: dict[str, Any] = {
            "model": self.model,
            "provider": self.provider,
            "tokens": dict(self.tokens) or None,
            "totalTokens": total_tokens,
            "costs": dict(self.costs) or None,
            "totalCost": total_cost,
            "costUnit": self.cost_unit,
            "latencyMs": None if self.latency is None else milliseconds(self.latency),
            "cached": self.cached,
        }
        return {name: value for name, value in wire.items() if value is not None}


def _sum(total: float | None, parts: Mapping[str, float]) -> float | None:
    return sum(parts.values()) if total is None and parts else total
