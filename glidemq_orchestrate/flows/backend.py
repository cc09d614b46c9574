"""The two paths of flows, and the choice between them by topology, before anything is sent.

A call of a server function may touch only one slot. If all keys of a flow are in one slot, ``staged`` does
everything; if its queues are in several slots of a cluster, or a server lacks our functions, ``portable``
does the same in many small steps. An existing flow keeps its path, in all its generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from glidemq_orchestrate.errors import (
    ConnectionFailed,
    FlowConflict,
    FlowNotFound,
    GlideMQError,
    NodeNotRepeatable,
    OutcomeUnknown,
    Superseded,
    TransportError,
)
from glidemq_orchestrate.flows import generations, growth, staged
from glidemq_orchestrate.flows import home as claim
from glidemq_orchestrate.flows import home as neighbours
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.compare import differences, fields
from glidemq_orchestrate.flows.generations import CurrentGeneration, find_place, ref_of
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.portable import changes, owners, portable, reading
from glidemq_orchestrate.flows.ref import (
    BROKEN,
    FlowRef,
    OnExisting,
    Path,
    check_on_existing,
    raise_unless_completed,
)
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys, slot_of

__all__ = ["ONE_SERVER", "FlowBackend", "Reach", "backend_of", "find", "raise_unless_completed", "submit"]


class FlowBackend(Protocol):
    """The operations on flows of one path."""

    def submit(self, ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
        """Write a flow and let it run; or attach to the equal flow that exists already. Repeatable."""

    def status(self, ref: FlowRef) -> Op[FlowStatus]:
        """Read the record."""

    def nodes(self, ref: FlowRef) -> Op[list[NodeStatus]]:
        """Read every node, dependencies before dependents."""

    def results(self, ref: FlowRef) -> Op[dict[str, Any]]:
        """Read the result of every completed node by name."""

    def outcome(self, ref: FlowRef, ended: FlowStatus) -> Op[FlowOutcome]:
        """Read results and failures of a flow that has ended."""

    def wait(self, ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowOutcome]:
        """Wait for the end of a flow. A client that waits for a portable flow also advances it."""

    def cancel(self, ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
        """End every node that has not ended. Returns the state before."""

    def own(self, ref: FlowRef, owner: Owner, clock: Clock) -> Op[FlowState]:
        """Add an owner to a flow, or renew it; an ended one is not changed. Returns the state."""

    def owners(self, ref: FlowRef) -> Op[list[str]]:
        """The names of the owners of a flow that has not ended, sorted."""

    def retry_failed(self, ref: FlowRef, clock: Clock, owner: Owner | None = None) -> Op[FlowState]:
        """Run again every node that did not complete, for an owner. Returns the state afterwards.

        Raises:
            NodeNotRepeatable: Some are ``lost``. Nothing was changed.
        """

    def lost(self, ref: FlowRef) -> Op[Sequence[str]]:
        """The jobs that ``retry_failed`` cannot make again: they were removed, and their data with them."""

    def extend(self, ref: FlowRef, nodes: Iterable[FlowNode], clock: Clock) -> Op[FlowState]:
        """Add nodes, all or none. Returns the state afterwards."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What one call of a function can reach.

    Attributes:
        is_cluster: Keys are spread over slots.
        has_functions: Our functions are loaded, or can be.
    """

    is_cluster: bool = False
    has_functions: bool = True

    def path(self, prefix: str, queues: Iterable[str]) -> Path:
        """The path of a flow with these queues."""
        if not self.has_functions:
            return "portable"
        slots = {slot_of(QueueKeys(prefix, queue).base) for queue in queues} if self.is_cluster else {0}
        return "staged" if len(slots) == 1 else "portable"


ONE_SERVER: Final = Reach()
MAX_GENERATIONS: Final = 5


class _Staged:
    submit = staticmethod(staged.submit)
    status = staticmethod(staged.status)
    nodes = staticmethod(staged.nodes)
    results = staticmethod(staged.results)
    outcome = staticmethod(staged.outcome)
    wait = staticmethod(staged.wait)
    cancel = staticmethod(staged.cancel)
    own = staticmethod(staged.own)
    owners = staticmethod(staged.owners)
    retry_failed = staticmethod(staged.retry_failed)
    lost = staticmethod(staged.lost)
    extend = staticmethod(growth.extend)


class _Portable:
    submit = staticmethod(portable.submit)
    status = staticmethod(reading.status)
    nodes = staticmethod(reading.nodes)
    results = staticmethod(reading.results)
    outcome = staticmethod(reading.outcome)
    wait = staticmethod(portable.wait)
    cancel = staticmethod(portable.cancel)
    own = staticmethod(owners.own)
    owners = staticmethod(owners.names)
    retry_failed = staticmethod(changes.retry_failed)
    lost = staticmethod(changes.lost)
    extend = staticmethod(portable.extend)


_BACKENDS: Final[Mapping[Path, FlowBackend]] = {"staged": _Staged(), "portable": _Portable()}


def submit(  # noqa: PLR0913  a flow, its name, and where it goes
    prefix: str,
    flow: CheckedFlow,
    flow_id: str,
    on_existing: OnExisting,
    clock: Clock,
    *,
    reach: Reach = ONE_SERVER,
) -> Op[FlowRef]:
    """Write a flow and let it run, by the path that its topology requires. Repeatable.

    Where another generation takes the place of the one that it is about to join, it joins that.

    Raises:
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
        Superseded: Others kept beginning generations.
    """
    check_on_existing(on_existing)
    for _ in range(MAX_GENERATIONS):
        try:
            return (yield from _submit(prefix, flow, flow_id, on_existing, clock, reach))
        except Superseded as exc:
            superseded = exc
    raise superseded


def _submit(  # noqa: PLR0913, PLR0917  as submit
    prefix: str, flow: CheckedFlow, flow_id: str, on_existing: OnExisting, clock: Clock, reach: Reach
) -> Op[FlowRef]:
    home = QueueKeys(prefix, (yield from neighbours.choose_home(prefix, flow, flow_id, clock)))
    try:
        found = yield from claim.take(home, flow_id)
        place = CurrentGeneration(ref_of(home, found), found) if found else None
    except FlowConflict as exc:  # it has another home
        place = yield from _found(prefix, flow_id, exc)
    if place:  # it keeps its home, whichever queue has most of the nodes now
        home = place.ref.home
    if place and (on_existing == "restart" or place.found.digest != flow.digest):
        if on_existing == "attach" or not may_begin(place.ref, flow, reach):
            raise (yield from conflict(prefix, flow_id, flow))
        yield from neighbours.link(home, flow.queues)
        return (yield from generations.submit(place, flow, on_existing, clock))
    ref = place.ref if place else FlowRef(home, flow_id, reach.path(prefix, flow.queues))
    try:
        yield from neighbours.link(home, flow.queues)
        yield from backend_of(ref).submit(ref, flow, on_existing, clock)
    except NodeNotRepeatable:
        if place is None:
            raise
        return (yield from generations.submit(place, flow, on_existing, clock, anew=True))
    except (ConnectionFailed, OutcomeUnknown):
        raise
    except GlideMQError as exc:
        try:
            yield from claim.release(home, flow_id)
            yield from claim.leave(home)
        except TransportError as broken:
            raise exc from broken
        raise
    return ref


def is_lost(ref: FlowRef) -> Op[bool]:
    """Whether a failed flow cannot be retried as it is: jobs were removed, and their data with them."""
    backend = backend_of(ref)
    has_failed = (yield from backend.status(ref)).state in BROKEN
    return has_failed and bool((yield from backend.lost(ref)))


def _found(prefix: str, flow_id: str, otherwise: FlowConflict) -> Op[CurrentGeneration]:
    """Where a flow is; if it was removed meanwhile, the error that said that it exists."""
    try:
        return (yield from find_place(prefix, flow_id))
    except FlowNotFound:
        raise otherwise from None


def conflict(prefix: str, flow_id: str, flow: CheckedFlow) -> Op[FlowConflict]:
    """The error that says in what the flow with this id differs from another specification."""
    try:
        ref = yield from find(prefix, flow_id)
        if (yield from backend_of(ref).status(ref)).state is FlowState.STAGING:
            return claim.conflict(flow_id)
        return claim.conflict(flow_id, (yield from differences(ref, flow)), (yield from fields(ref, flow)))
    except GlideMQError:  # it was removed meanwhile, for example
        return claim.conflict(flow_id)


def find(prefix: str, flow_id: str) -> Op[FlowRef]:
    """Find a flow by its id.

    Raises:
        FlowNotFound: There is none with this id.
    """
    return (yield from find_place(prefix, flow_id)).ref


def may_begin(ref: FlowRef, flow: CheckedFlow, reach: Reach) -> bool:
    """Whether a specification can go the path of a flow: the portable one is open to all.

    A flow that took the staged path cannot go on with queues in other slots.
    """
    queues = (ref.home.queue, *flow.queues)
    return ref.path == "portable" or reach.path(ref.home.prefix, queues) == "staged"


def backend_of(ref: FlowRef) -> FlowBackend:
    """The operations for the path of a flow."""
    return _BACKENDS[ref.path]
