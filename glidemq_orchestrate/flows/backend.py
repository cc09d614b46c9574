"""The paths of flows, and the choice between them by topology before anything is sent.

A call of a server function may access only one slot. If all keys of a flow are in one slot, it takes the
``staged`` path: the server does everything. If its queues are in several slots of a cluster, or the server
lacks our functions, ``portable`` does the same in many small steps. A flow keeps its path in all its
generations. Nothing else depends on the number of paths: ``FlowBackend`` has all operations that differ; the
functions below it are for workers and supervisors, which start from a job instead of its flow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from glidemq_orchestrate.errors import FlowConflict, FlowNotFound
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.definitions import PolicyForm, Ran, StoredNodes
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.flows.generation import Before, FlowRef, Generation, status_of_record
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.flows.node_table import GONE, Inputs, RequestedChange, Row
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.portable import advance as portable_advance
from glidemq_orchestrate.flows.portable import changes as portable_changes
from glidemq_orchestrate.flows.portable import owners as portable_owners
from glidemq_orchestrate.flows.portable import reading as portable_reading
from glidemq_orchestrate.flows.portable import records, tables, upkeep
from glidemq_orchestrate.flows.portable import submit as portable_submit
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.flows.staged import changes as staged_changes
from glidemq_orchestrate.flows.staged import growth, lost_jobs
from glidemq_orchestrate.flows.staged import reading as staged_reading
from glidemq_orchestrate.flows.staged import submit as staged_submit
from glidemq_orchestrate.flows.status import FlowState, FlowStatus, NodeStatus, OnExisting
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys, slot_of


class FlowBackend(Protocol):
    """A path: all operations that depend on how flows are stored and run.

    Attributes:
        is_carried: Whether clients and workers advance a flow, whose queues may be in other slots than its
            home. Otherwise the server advances it.
        missing: Why a node without a job counts as failed; '' if the record contains its end.
    """

    @property
    def is_carried(self) -> bool: ...

    @property
    def missing(self) -> str: ...

    def submit(self, ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
        """Write a flow and start it, or attach to the equal flow that exists. Idempotent."""

    def begin(self, ref: FlowRef, flow: CheckedFlow, before: Before, clock: Clock) -> Op[None]:
        """Write a generation and start it in place of the current one. Idempotent.

        Raises:
            GenerationTaken: Another generation has begun. The staged nodes are removed.
        """

    def advance(self, ref: FlowRef, clock: Clock) -> Op[Any]:
        """Do everything that is due for the flow now. Idempotent."""

    def sweep(self, home: QueueKeys, clock: Clock) -> Op[None]:
        """Advance flows of a home that no other client advances, and remove those past their retention."""

    def read_record(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        """The fields of a stored record in the form that ``status_of_record`` reads."""

    def status(self, ref: FlowRef) -> Op[FlowStatus]:
        """Read the record."""

    def nodes(self, ref: FlowRef) -> Op[list[NodeStatus]]:
        """Read every node, dependencies before dependents."""

    def failed(self, ref: FlowRef) -> Op[list[NodeStatus]]:
        """Read the nodes that failed or did not run because of others, and perhaps other nodes."""

    def ranked(self, ref: FlowRef) -> Op[dict[str, tuple[float, NodeStatus]]]:
        """Read every node with its rank, by name; dependencies have a lower rank."""

    def resolved(self, ref: FlowRef, found: Sequence[NodeStatus]) -> Op[list[NodeStatus]]:
        """The nodes, with ends from the record where jobs do not exist."""

    def results(self, ref: FlowRef) -> Op[tuple[dict[str, Any], list[str]]]:
        """Read the result of every completed node by name, and the names of nodes with removed results."""

    def wait(self, ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowStatus]:
        """Wait for the end of a flow; returns its status."""

    def delayed(self, ref: FlowRef) -> Op[dict[str, int]]:
        """Nodes that wait only for a delay that no job has, and until when (ms since the epoch)."""

    def stored(self, ref: FlowRef, record: Mapping[str, str]) -> Op[StoredNodes | None]:
        """Read the definitions of the nodes of a flow; None if not all of them are stored."""

    def policies(self, ref: FlowRef, flow: CheckedFlow, rows: Mapping[str, Row]) -> Op[PolicyForm]:
        """How the flow stores the policies of its nodes, to compare them with a specification."""

    def dependency_policies(
        self, ref: FlowRef, nodes: StoredNodes, after: Mapping[str, Sequence[str]]
    ) -> Op[dict[str, dict[str, OnFailure]]]:
        """The failure policies for single dependencies, by node. May complete the settings of the nodes."""

    def inputs(self, queue: QueueKeys, attempt: Attempt) -> Op[Inputs]:
        """Read the inputs of a node from its dependencies."""

    def queue_timeout(self, queue: QueueKeys, attempt: Attempt) -> Op[int]:
        """How many ms after it may run a node fails if no worker has started it; 0 for no limit."""

    def ran(self, ref: FlowRef) -> Op[dict[str, Ran]]:
        """Read how each node has run, and its definition."""

    def cancel(self, ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
        """End every node that has not ended. Returns the state before."""

    def own(self, ref: FlowRef, owner: Owner, clock: Clock) -> Op[FlowState]:
        """Add an owner to a flow, or renew its lease. An ended flow is not changed. Returns the state."""

    def owners(self, ref: FlowRef) -> Op[list[str]]:
        """The names of the owners of a flow that has not ended, sorted."""

    def retry_failed(self, ref: FlowRef, clock: Clock, owner: Owner | None = None) -> Op[FlowState]:
        """Rerun every node that did not complete, for an owner. Returns the state afterwards.

        Raises:
            NodeNotRepeatable: Some of them are ``lost``. Nothing was changed.
        """

    def retried(self, ref: FlowRef, nodes: Sequence[NodeStatus]) -> Op[set[str]]:
        """The names of the nodes of an ended flow that ``retry_failed`` would rerun."""

    def lost(self, ref: FlowRef) -> Op[Sequence[str]]:
        """The jobs that ``retry_failed`` cannot recreate, since they were removed with their data."""

    def max_changes(self, size: int) -> int:
        """The max number of nodes, each with a text of this length, that ``change`` changes atomically."""

    def change(
        self, ref: FlowRef, names: Sequence[str], change: RequestedChange, clock: Clock, *, strict: bool
    ) -> Op[list[str]]:
        """Change nodes; returns the names of those that the request has changed, now or in an earlier try.

        ``strict``: a node in an unsuitable state is an error, and nothing is changed.
        """

    def change_elements(  # noqa: PLR0913  like ``change``
        self,
        ref: FlowRef,
        array: str,
        indexes: Sequence[int],
        change: RequestedChange,
        clock: Clock,
        *,
        strict: bool,
        has_more: bool,
    ) -> Op[list[int]]:
        """``change`` for elements of an array, all or none; returns their positions.

        ``has_more``: another call of the same request follows, and the array does not end before it.
        """

    def extend(self, ref: FlowRef, nodes: Iterable[FlowNode], clock: Clock) -> Op[FlowState]:
        """Add nodes, all or none. Returns the state afterwards."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What one function call can access.

    Attributes:
        is_cluster: Whether keys are spread over slots.
        has_functions: Whether our functions are loaded or can be.
    """

    is_cluster: bool = False
    has_functions: bool = True

    def path(self, prefix: str, queues: Iterable[str]) -> str:
        """The path for a flow with these queues."""
        if not self.has_functions:
            return "portable"
        slots = {slot_of(QueueKeys(prefix, queue).base) for queue in queues} if self.is_cluster else {0}
        return "staged" if len(slots) == 1 else "portable"


ONE_SERVER: Final = Reach()


class _Staged:
    is_carried = False
    missing = ""
    submit = staticmethod(staged_submit.submit)
    begin = staticmethod(staged_submit.begin)
    advance = staticmethod(staged_submit.advance)
    sweep = staticmethod(staged_submit.sweep)
    retry_failed = staticmethod(staged_submit.retry_failed)
    lost = staticmethod(lost_jobs.lost)
    read_record = staticmethod(staged_reading.read_record)
    status = staticmethod(staged_reading.status)
    nodes = staticmethod(staged_reading.nodes)
    failed = staticmethod(staged_reading.failed)
    ranked = staticmethod(staged_reading.ranked)
    resolved = staticmethod(staged_reading.resolved)
    results = staticmethod(staged_reading.results)
    wait = staticmethod(staged_reading.wait)
    delayed = staticmethod(staged_reading.delayed)
    retried = staticmethod(staged_reading.retried)
    ran = staticmethod(staged_reading.ran)
    stored = staticmethod(staged_reading.stored)
    policies = staticmethod(staged_reading.policies)
    dependency_policies = staticmethod(staged_reading.dependency_policies)
    inputs = staticmethod(staged_reading.inputs)
    queue_timeout = staticmethod(staged_reading.queue_timeout)
    cancel = staticmethod(staged_changes.cancel)
    own = staticmethod(staged_changes.own)
    owners = staticmethod(staged_changes.owners)
    max_changes = staticmethod(staged_changes.max_changes)
    change = staticmethod(staged_changes.change)
    change_elements = staticmethod(staged_changes.change_elements)
    extend = staticmethod(growth.extend)


class _Portable:
    is_carried = True
    missing = GONE
    submit = staticmethod(portable_submit.submit)
    begin = staticmethod(portable_submit.begin)
    advance = staticmethod(portable_advance.advance)
    wait = staticmethod(portable_advance.wait)
    sweep = staticmethod(upkeep.sweep)
    inputs = staticmethod(upkeep.inputs)
    queue_timeout = staticmethod(upkeep.queue_timeout)
    read_record = staticmethod(records.plain)
    status = staticmethod(portable_reading.status)
    nodes = failed = staticmethod(portable_reading.nodes)
    ranked = staticmethod(portable_reading.ranked)
    resolved = staticmethod(portable_reading.resolved)
    results = staticmethod(portable_reading.results)
    delayed = staticmethod(portable_reading.delayed)
    retried = staticmethod(portable_reading.retried)
    ran = staticmethod(portable_reading.ran)
    stored = staticmethod(portable_reading.stored)
    policies = staticmethod(tables.policies)
    dependency_policies = staticmethod(tables.dependency_policies)
    own = staticmethod(portable_owners.own)
    owners = staticmethod(portable_owners.names)
    cancel = staticmethod(portable_changes.cancel)
    retry_failed = staticmethod(portable_changes.retry_failed)
    lost = staticmethod(portable_changes.lost)
    max_changes = staticmethod(portable_changes.max_changes)
    change = staticmethod(portable_changes.change)
    change_elements = staticmethod(portable_changes.change_elements)
    extend = staticmethod(portable_changes.extend)


_BACKENDS: Final[Mapping[str, FlowBackend]] = {"staged": _Staged(), "portable": _Portable()}


def backend_of(ref: FlowRef) -> FlowBackend:
    """The backend of a flow."""
    return _BACKENDS[ref.path]


def ref_of(home: QueueKeys, found: Generation) -> FlowRef:
    """The reference to a generation."""
    return FlowRef(home, found.stored_as, path_of(found.path))


def path_of(stored: object) -> str:
    """The path with a stored name; flows that were stored without one are staged."""
    return stored if isinstance(stored, str) and stored in _BACKENDS else "staged"


def read_status(home: QueueKeys, flow_id: str, fields: Mapping[str, str]) -> FlowStatus:
    """The status of a flow from the fields of its record, even if they are not valid."""
    backend = _BACKENDS[path_of(fields.get("path"))]
    return status_of_record(home, flow_id, backend.read_record(fields))


def sweep_all(home: QueueKeys, clock: Clock) -> Op[None]:
    """Sweep a home for every path; see ``FlowBackend.sweep``."""
    for backend in _BACKENDS.values():
        yield from backend.sweep(home, clock)


def check_path(ref: FlowRef, flow: CheckedFlow, reach: Reach) -> None:
    """Check that a specification can use the path of a flow; any can use the portable path.

    Raises:
        FlowConflict: The flow is on the staged path, and the specification has queues in other slots.
    """
    queues = (ref.home.queue, *flow.queues)
    if ref.path != "portable" and reach.path(ref.home.prefix, queues) != "staged":
        raise FlowConflict(
            f"flow {ref.public_id} began with all its queues in one slot of the cluster, and cannot continue "
            "with queues in several. Fix: submit it under another id"
        )


add_nodes = growth.add_nodes
check_open = lost_jobs.check_open
bring_back = lost_jobs.bring_back
hold = upkeep.hold
removal_marks = upkeep.removal_marks


def _backend_of_job(attempt: Attempt) -> FlowBackend:
    return _BACKENDS["portable" if attempt.options.portable else "staged"]


def inputs(queue: QueueKeys, attempt: Attempt) -> Op[Inputs]:
    """Read the inputs of a node from its dependencies."""
    return (yield from _backend_of_job(attempt).inputs(queue, attempt))


def queue_timeout(queue: QueueKeys, attempt: Attempt) -> Op[int]:
    """How many ms after it may run a node fails if no worker has started it; 0 for no limit."""
    return (yield from _backend_of_job(attempt).queue_timeout(queue, attempt))


def carry(queue: QueueKeys, completed: Sequence[str], moved: Collection[str], clock: Clock) -> Op[None]:
    """Notify dependents of completed jobs in other slots; advance the flows if that is not enough."""
    if completed or moved:
        yield from upkeep.carry(queue, completed, moved, clock)


def advance(queue: QueueKeys, flow_id: str, clock: Clock) -> Op[None]:
    """Advance a staged flow by its stored id."""
    home = yield from ask(home_of(queue.prefix, flow_id))
    if home is not None:
        yield from advance_at(home, flow_id, clock)


def advance_at(home: QueueKeys, flow_id: str, clock: Clock) -> Op[None]:
    """``advance`` for a flow of this home."""
    ref = FlowRef(home, flow_id)
    with suppress(FlowNotFound):
        yield from backend_of(ref).advance(ref, clock)
