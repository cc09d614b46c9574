"""The owner of a flow, and the lease that it renews.

``lua/glidemq_orchestrate/parts/owners.lua`` describes how leases are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, get_args

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import OWNER
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

OnExpiry = Literal["cancel", "keep"]
MIN: Final = timedelta(seconds=15)
MAX: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, task or session for which a flow runs.

    A flow is needed as long as one of its owners lives. An owner lives as long as it renews its lease:
    ``wait``, ``watch`` and ``result`` renew it for the owner with which the flow was submitted or found;
    ``Flow.renew`` renews it explicitly. All flows of an owner with the same home queue share one lease. A
    generation that is begun without an owner has none: the owners of the previous one do not own it until
    they submit or renew it again.

    Attributes:
        name: 1 to 256 characters; a different one for each process that can die separately.
        lease: The owner is considered dead after this time without a renewal, 15 seconds to 7 days. While the
            server is down, no lease ends: after its return, at least half of the lease is left.
        on_expiry: Whether a flow without another owner is then cancelled (``cancel``) or continues
            (``keep``). With several owners, the one whose lease ends last decides.
        joins: Whether it also owns flows that others have begun or restarted. False: it owns only those that
            it begins by ``submit``, ``retry_failed``, ``restart`` or a change of nodes; for any other flow,
            ``wait``, ``watch`` and ``renew`` change nothing.

    Raises:
        ConfigurationError: A value is not valid.
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
        """The lease in milliseconds."""
        return milliseconds(self.lease)


def owner_words(owner: Owner) -> tuple[Word, ...]:
    """The owner as arguments of server functions."""
    return (owner.name, owner.lease_ms, owner.on_expiry)


def lease_name(name: str, lease_ms: int) -> str:
    """The stored name of a lease."""
    return f"{lease_ms}:{name}"


def own_flow(home: QueueKeys, flow_id: str, owner: Owner, now_ms: int) -> Call[FlowState]:
    """Add an owner to a flow, or renew its lease; returns the state of the flow. Idempotent.

    The lease of an owner that does not join flows is renewed only if it already owns the flow.
    """
    args = (now_ms, flow_id, *owner_words(owner), int(owner.joins))
    return function("gmo_own_flow", [home.flow(flow_id)], args, FlowState, repeatable=True)


def owner_names(home: QueueKeys, flow_id: str) -> Call[list[str]]:
    """The names of the owners of a flow, sorted."""
    return command("HKEYS", f"{home.flow(flow_id)}:owners", decode=lambda names: sorted(filter(None, names)))


def renew_lease(home: QueueKeys, owner: Owner, now_ms: int) -> Call[bool]:
    """Renew the lease of an owner for all its flows in this home; False if it has none. Idempotent."""
    member = lease_name(owner.name, owner.lease_ms)
    return command("ZADD", _leases(home), "XX", "CH", now_ms, member, decode=bool, repeatable=True)


def begin_lease(home: QueueKeys, owner: Owner, now_ms: int) -> Call[None]:
    """Begin or renew the lease of an owner, without a server function. Idempotent."""
    member = lease_name(owner.name, owner.lease_ms)
    return command("ZADD", _leases(home), "GT", now_ms, member, decode=replies.anything, repeatable=True)


def last_renewal(home: QueueKeys, name: str) -> Call[int | None]:
    """When a lease was last renewed (ms since the epoch); None if it does not exist."""
    return command("ZSCORE", _leases(home), name, decode=lambda reply: number(reply) if reply else None)


def silent_leases(home: QueueKeys, before_ms: int, max_: int) -> Call[list[str]]:
    """Up to ``max_`` leases that were last renewed before a time."""
    limit = ("LIMIT", 0, max_)
    return command("ZRANGEBYSCORE", _leases(home), "-inf", f"({before_ms}", *limit, decode=list)


def remove_leases(home: QueueKeys, leases: Sequence[str]) -> Call[None]:
    """Delete leases."""
    return command("ZREM", _leases(home), *leases, decode=replies.anything)


def _leases(home: QueueKeys) -> str:
    return home.key("gmo:owners")
