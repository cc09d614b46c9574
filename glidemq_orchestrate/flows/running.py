"""What workers and supervisors do for nodes of flows, on any path."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from glidemq_orchestrate.errors import FlowNotFound
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.flows.node_table import Inputs, node_inputs
from glidemq_orchestrate.flows.portable import node as portable
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
    """Read the inputs of a node from its dependencies, in pages."""
    if attempt.options.portable:
        return (yield from portable.inputs(queue, attempt.job_id))
    texts: dict[str, str] = {}
    removed: set[str] = set()
    cursor = "0"
    while True:
        cursor, page, gone = yield from ask(node_inputs(queue, attempt.job_id, cursor))
        texts.update(page)
        removed.update(gone)
        if cursor == "0":
            return Inputs(texts, sorted(removed))


def hold(queue: QueueKeys, attempt: Attempt) -> Op[bool]:
    """Block a node that was fetched before all of its dependencies ended; see ``portable.node.hold``."""
    return (yield from portable.hold(queue, attempt.job_id, attempt.stored_flow, attempt.node or ""))


def has_queue_timeout(queue: QueueKeys, attempt: Attempt) -> Op[bool]:
    """Whether a node fails if no worker starts it in time."""
    if attempt.options.portable:
        return (yield from portable.has_queue_timeout(queue, *attempt.options.portable))
    return bool(attempt.flow_id) and (yield from ask(attempts.has_queue_timeout(queue, attempt.job_id)))


def carry(queue: QueueKeys, completed: Sequence[str], moved: Collection[str], clock: Clock) -> Op[None]:
    """Notify dependents of completed jobs in other slots; advance the flows where that is not enough."""
    if completed or moved:
        yield from portable.carry(queue, completed, moved, clock)


def advance(queue: QueueKeys, flow_id: str, clock: Clock) -> Op[None]:
    """Advance a flow by its stored id."""
    home = yield from ask(home_of(queue.prefix, flow_id))
    if home is not None:
        yield from advance_at(QueueKeys(queue.prefix, home), flow_id, clock)


def advance_at(home: QueueKeys, flow_id: str, clock: Clock) -> Op[None]:
    """``advance`` for a flow of this home."""
    ref = FlowRef(home, flow_id)
    with suppress(FlowNotFound):
        yield from backend_of(ref).advance(ref, clock)
