"""Renews the leases of owners: one call for all flows of an owner with the same home, a few times per lease.

A flow that is submitted, retried or restarted gets its owner in the call that starts it. A flow that already
runs, or in which only some nodes rerun, gets it in a later call. A kill between the two calls leaves it with
its previous owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, WaitTimeout
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import RequestedChange
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.flows.owner import Owner, renew_lease
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op, ask

PER_LEASE: Final = 3


@dataclass(slots=True)
class Renewals:
    """When a client last renewed each lease, in monotonic ms, by home queue and owner."""

    done: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(slots=True)
class Ownership:
    """The ownership of one flow by a client; all of one client share the ``renewals``.

    Attributes:
        owned_id: The stored id of the last generation that got the owner.

    Raises:
        ConfigurationError: The owner is not an ``Owner``.
    """

    owner: Owner
    renewals: Renewals
    owned_id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.owner, Owner):
            raise ConfigurationError(f"owner must be Owner or None, got {type(self.owner).__name__}")

    def own(self, ref: FlowRef, clock: Clock, *, has_begun: bool = False) -> Op[FlowState]:
        """Add the owner to a flow, or renew its lease. An ended flow is not changed. Returns the state.

        Args:
            ref: The flow.
            clock: The clock.
            has_begun: Whether the owner has started it: then it owns it even if it does not join flows.

        Raises:
            FlowNotFound, Superseded: The flow cannot be owned.
        """
        began = clock.monotonic_ms()
        owner = replace(self.owner, joins=True) if has_begun else self.owner
        state = yield from backend_of(ref).own(ref, owner, clock)
        self.renewals.done[ref.home.base, self.owner.name] = began
        self.owned_id = ref.flow_id
        return state

    def renew_if_due(self, ref: FlowRef, clock: Clock) -> Op[None]:
        """Own the flow, or renew the lease unless it was renewed recently for any flow."""
        if self.owned_id != ref.flow_id:
            yield from self.own(ref, clock)
            return
        began = clock.monotonic_ms()
        at = self.renewals.done.get((ref.home.base, self.owner.name))
        if at is not None and began - at < self.owner.lease_ms // PER_LEASE:
            return
        if (yield from ask(renew_lease(ref.home, self.owner, clock.now_ms()))):
            self.renewals.done[ref.home.base, self.owner.name] = began
        else:
            yield from self.own(ref, clock)

    def wait(self, ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowStatus]:
        """Wait for the end of a flow, and renew its lease in the meantime; returns its status."""
        deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
        while True:
            yield from self.renew_if_due(ref, clock)
            step = self.owner.lease_ms // PER_LEASE
            left = step if deadline is None else max(deadline - clock.monotonic_ms(), 0)
            try:
                return (yield from backend_of(ref).wait(ref, min(step, left), clock))
            except WaitTimeout:
                if deadline is not None and clock.monotonic_ms() >= deadline:
                    raise


def owner_of(owned: Ownership | None) -> Owner | None:
    """The owner on whose behalf a handle acts."""
    return None if owned is None else owned.owner


def change_and_own(
    ref: FlowRef, picked: Selection, requested: RequestedChange, clock: Clock, owned: Ownership | None
) -> Op[Sequence[str]]:
    """``change_nodes``; a flow that reruns as a result gets the owner."""
    has_ended = False
    if owned is not None and not owned.owner.joins:
        has_ended = (yield from backend_of(ref).status(ref)).state.is_terminal
    names = yield from change_nodes(ref, picked, requested, clock)
    if owned is not None and names:
        yield from owned.own(ref, clock, has_begun=has_ended)
    return names
