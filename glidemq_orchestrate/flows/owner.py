"""Owner: who keeps a flow alive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, get_args

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.foundation.names import OWNER, described

OnExpiry = Literal["cancel", "keep"]
MIN: Final = timedelta(seconds=15)
MAX: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody for whom a flow runs: a process, a task, a session.

    A flow is wanted while one of its owners lives. An owner lives while it renews its lease: ``wait``,
    ``watch`` and ``result`` do so for the owner with which the flow was submitted or found, ``Flow.renew``
    does it explicitly. The lease is one for all flows of an owner with the same home queue. Whoever begins a
    generation without an owner leaves it without one: the owners of the one before own it only when they
    ask for it again.

    Attributes:
        name: Who, 1 to 256 characters: different for each that may vanish by itself.
        lease: The owner is considered dead after this long without a renewal, 15 seconds to 7 days. Time in
            which the server itself is away ends no lease: half of it is always left for coming back.
        on_expiry: What then happens to a flow that nobody else owns: ``cancel`` it, or ``keep`` it running.
            Of several owners, the one whose lease ends last decides.
        joins: Whether it also owns what others have begun, or set running again after its end. False: it owns
            only what it begins by ``submit``, ``retry_failed``, ``restart`` or a change of nodes; in all else
            ``wait``, ``watch`` and ``renew`` change nothing.

    Raises:
        ConfigurationError: One of them is not valid.
    """

    name: str
    lease: Duration = timedelta(minutes=5)
    on_expiry: OnExpiry = "cancel"
    joins: bool = True

    def __post_init__(self) -> None:
        OWNER.check(self.name)
        span = duration("lease", self.lease, min_=MIN, max_=MAX)
        object.__setattr__(self, "lease", span)
        if self.on_expiry not in get_args(OnExpiry):
            raise ConfigurationError(f"on_expiry must be cancel or keep, got {described(self.on_expiry)}")
        if not isinstance(self.joins, bool):
            raise ConfigurationError(f"joins must be True or False, got {described(self.joins)}")

    @property
    def lease_ms(self) -> int:
        """The same in milliseconds."""
        return milliseconds(self.lease)
