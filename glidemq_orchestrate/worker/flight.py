"""A call of a worker under way, and the lane in which one follows the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glidemq_orchestrate.attempts.exchange import Outcome, Request


@dataclass(slots=True)
class Flight:
    """A call under way.

    Attributes:
        request: The outcomes it carries, and how many jobs it requests.
        unsent: The outcomes that would still have to be reported if it ended now.
        is_out: Its places are reserved.
    """

    request: Request
    unsent: Sequence[Outcome] = ()
    is_out: bool = False

    def __post_init__(self) -> None:
        """Start with every outcome unsent."""
        self.unsent = self.request.outcomes


@dataclass(slots=True)
class Lane:
    """A task that makes one call after the other, and the one under way."""

    flight: Flight | None
