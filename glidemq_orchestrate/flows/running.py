"""What workers and supervisors do for the nodes of flows, whichever way a flow goes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from glidemq_orchestrate.errors import FlowNotFound
from glidemq_orchestrate.flows import node_status
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.node_status import Inputs
from glidemq_orchestrate.flows.portable import node as portable
from glidemq_orchestrate.flows.record import flow_home_queue
from glidemq_orchestrate.flows.ref import FlowRef
from glidemq_orchestrate.flows.staged import growth, stalled
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import attempt as attempts
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys

add_nodes = growth.add_nodes
removal_marks = portable.removal_marks
check_open = stalled.check_open
bring_back = stalled.bring_back


def inputs(queue: QueueKeys, attempt: Attempt) -> Op[Inputs]:
    """What a node reads of its dependencies, in pages."""
    if attempt.options.portable:
        return (yield from portable.inputs(queue, attempt.job_id))
    texts: dict[str, str] = {}
    removed: set[str] = set()
    cursor = "0"
    while True:
        cursor, page, gone = yield from ask(node_status.node_inputs(queue, attempt.job_id, cursor))
        texts.update(page)
        removed.update(gone)
        if cursor == "0":
            return Inputs(texts, sorted(removed))


def hold(queue: QueueKeys, attempt: Attempt) -> Op[bool]:
    """Hold back a node that was fetched before all of its dependencies ended; see ``portable.node.hold``."""
    return (yield from portable.hold(queue, attempt.job_id, attempt.stored_flow, attempt.node or ""))


def has_queue_timeout(queue: QueueKeys, attempt: Attempt) -> Op[bool]:
    """Whether a node fails when no worker starts it in time."""
    if attempt.options.portable:
        return (yield from portable.has_queue_timeout(queue, *attempt.options.portable))
    return bool(attempt.flow_id) and (yield from ask(attempts.has_queue_timeout(queue, attempt.job_id)))


def carry(queue: QueueKeys, completed: Sequence[str], moved: Collection[str], clock: Clock) -> Op[None]:
    """Notify dependents of completed jobs in other slots; advance the flows that need more than that."""
    if completed or moved:
        yield from portable.carry(queue, completed, moved, clock)


def advance(queue: QueueKeys, flow_id: str, clock: Clock) -> Op[None]:
    """Do what a flow needs, given by the id under which it is stored."""
    home = yield from ask(flow_home_queue(queue.prefix, flow_id))
    if home is not None:
        yield from advance_at(QueueKeys(queue.prefix, home), flow_id, clock)


def advance_at(home: QueueKeys, flow_id: str, clock: Clock) -> Op[None]:
    """``advance`` for a flow of this home."""
    ref = FlowRef(home, flow_id)
    with suppress(FlowNotFound):
        yield from backend_of(ref).advance(ref, clock)
