"""The portable path: flows whose queues are in several slots, and servers without our functions.

No call touches two slots and none needs a function of ours. What a kill between two calls leaves behind:
nodes that gates hold back (submit again, or the sweep removes them), or a record that says the flow runs,
and then ``advance`` by anybody at any time does what is missing. Nothing else moves a portable flow across
queues, so somebody must call it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from glidemq_orchestrate._ops import events
from glidemq_orchestrate._ops.flows.portable import submit as portable_submit
from glidemq_orchestrate._ops.flows.portable.advance import advance
from glidemq_orchestrate._ops.flows.portable.table import GONE, UPSTREAM, Node, parts, read_nodes, send_fenced
from glidemq_orchestrate._ops.flows.staged import FlowRef, OnExisting
from glidemq_orchestrate._protocol.call import Op, ask, ask_all
from glidemq_orchestrate._protocol.flows import portable as calls
from glidemq_orchestrate._protocol.flows import portable_record as records
from glidemq_orchestrate._protocol.flows.flow import read_status
from glidemq_orchestrate._protocol.flows.nodes import failed_node, read_results
from glidemq_orchestrate._protocol.flows.portable_record import Record
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.errors import ConfigurationError, FlowExpired, FlowNotFound, WaitTimeout
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowState, FlowStatus, NodeStatus

POLL_MS: Final = 500
MOST_REST_MS: Final = 2_000
_BROKEN: Final = (FlowState.FAILED, FlowState.CANCELLED)


def submit(ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
    """Write a flow node by node and let it run; or go on with the equal flow that is there. Repeatable.

    Raises:
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
        FlowIncomplete: Others gave the submission up, again and again.
    """
    yield from portable_submit.stage(ref, flow, clock)
    yield from advance(ref, clock)
    if on_existing == "retry_failed":
        yield from retry_failed(ref, clock)
    elif on_existing == "restart":
        yield from restart(ref, clock)


def status(ref: FlowRef) -> Op[FlowStatus]:
    """The record as the last ``advance`` has left it."""
    record = yield from _record(ref)
    return read_status(ref.home, ref.flow_id, record.fields)


def _record(ref: FlowRef) -> Op[Record]:
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if "name" not in record.fields:
        raise FlowNotFound(f"no flow {ref.flow_id} in queue {ref.home.queue}")
    return record


def _nodes(ref: FlowRef) -> Op[list[Node]]:
    yield from _living(ref)
    return (yield from read_nodes(ref))


def _living(ref: FlowRef) -> Op[Record]:
    """The record of a flow whose jobs are there."""
    record = yield from _record(ref)
    if record.is_expired:
        raise FlowExpired(f"the jobs of flow {ref.flow_id} were removed after its retention")
    return record


def results(ref: FlowRef) -> Op[dict[str, Json]]:
    """The result of every completed node by name."""
    nodes = yield from _nodes(ref)
    return read_results({node.name: node.result for node in nodes if node.state == "completed"})


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Every node, dependencies before dependents."""
    found: list[NodeStatus] = []
    for part in parts((yield from _nodes(ref))):
        told = [calls.node_status(node.queue, node.job_id, node.name, node.row, GONE) for node in part]
        found += yield from ask_all(told)
    return found


def outcome(ref: FlowRef, ended: FlowStatus) -> Op[FlowOutcome]:
    """Results and failures, causes first."""
    broken = [node for node in (yield from nodes(ref)) if node.state == "failed"]
    broken.sort(key=lambda node: node.reason.startswith(UPSTREAM))
    values = yield from results(ref)
    return FlowOutcome(status=ended, results=values, failed=[failed_node(node) for node in broken])


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowOutcome]:
    """Move the flow on until it has ended: at each event of its home queue, and every half second.

    Looking takes a third of the time at most, so that a large flow leaves the server to those who run it.

    Raises:
        WaitTimeout: It has not ended in time.
    """
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    position = yield from events.tail(ref.home)
    while True:
        began = clock.monotonic_ms()
        if (yield from advance(ref, clock)).is_terminal:
            break
        now = clock.monotonic_ms()
        if deadline is not None and now >= deadline:
            raise WaitTimeout(f"flow {ref.flow_id} is still running after {timeout_ms} ms")
        rested = now + min(2 * (now - began), MOST_REST_MS)
        until = max(rested, now + POLL_MS)
        if deadline is not None:
            rested, until = min(rested, deadline), min(until, deadline)
        position = yield from _rest(ref, position, rested, until, clock)
    return (yield from outcome(ref, (yield from status(ref))))


def _rest(ref: FlowRef, position: str, rested: int, until: int, clock: Clock) -> Op[str]:
    """Wait for an event, at least until ``rested`` unless the flow has ended; answers the new position."""
    while (left := until - clock.monotonic_ms()) > 0:
        found = yield from events.read(ref.home, position, left)
        position = found[-1].id if found else position
        is_over = any(event.flow_id == ref.flow_id and event.kind.startswith("flow.") for event in found)
        if is_over or not found or clock.monotonic_ms() >= rested:
            break
        until = rested
    return position


def cancel(ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
    """End every node that has not ended. Answers the state before. Repeatable."""
    record = yield from _record(ref)
    if not record.state.is_terminal:
        # A flow that has not begun ends as soon as its submission, or the repeat of it, lets it begin.
        number, how = max(record.number, 0), FlowState.CANCELLED
        yield from ask(records.cancel(ref.home, ref.flow_id, number, how, reason))
        yield from advance(ref, clock)
    return record.state


def retry_failed(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Run again what did not complete of an ended flow. Answers the state afterwards. Repeatable.

    A node whose job is gone cannot run again; it stays failed, with what depends on it.
    """
    record = yield from _living(ref)
    if record.state in _BROKEN and record.end:
        nodes = yield from read_nodes(ref)
        redo = [node for node in nodes if node.state == "failed" or _was_skipped_for_others(node)]
        yield from _begin_again(ref, record, redo, record.generation, clock)
    return (yield from _record(ref)).state


def restart(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Run every node of an ended flow again. Answers the state afterwards. Repeatable until it ends."""
    record = yield from _living(ref)
    if record.end:
        redo = [node for node in (yield from read_nodes(ref)) if node.state and node.end]
        yield from _begin_again(ref, record, redo, record.generation + 1, clock)
    return (yield from _record(ref)).state


def _was_skipped_for_others(node: Node) -> bool:
    return node.state == "skipped" and node.reason.startswith(UPSTREAM)


def _begin_again(
    ref: FlowRef, record: Record, redo: Iterable[Node], generation: int, clock: Clock
) -> Op[None]:
    """A kill in between leaves nodes behind a gate that nobody opens, in a flow that has ended: repeat it."""
    number = record.number + 1
    for part in parts(list(redo)):
        # Another has begun the same round: what it let run must not be reset.
        if (yield from _record(ref)).number >= number:
            return
        places = [(node.queue, node.job_id, number) for node in part]
        yield from send_fenced((calls.run_again(*place), calls.reset(*place)) for place in places)
    yield from ask(calls.forget_waiting(ref.home, ref.flow_id))
    yield from ask(records.expire_never(ref.home, ref.flow_id))
    yield from ask(records.enlist(ref.home, ref.flow_id, clock.now_ms()))
    yield from ask(records.begin(ref.home, ref.flow_id, number, clock.now_ms(), generation))
    # Once more: whoever ended the round before may just have taken it off the list.
    yield from ask(records.enlist(ref.home, ref.flow_id, clock.now_ms()))
    yield from _living(ref)
    yield from portable_submit.relist(ref)
    yield from advance(ref, clock)


def extend(ref: FlowRef, nodes: Iterable[FlowNode], clock: Clock) -> Op[FlowState]:
    """Refuse: a portable flow keeps the nodes with which it was submitted.

    Raises:
        ConfigurationError: Always, before anything is changed.
    """
    del nodes, clock
    yield from _living(ref)
    raise ConfigurationError(
        f"flow {ref.flow_id} takes no more nodes: its queues are in several slots of a cluster, or the "
        "server lacks our functions. Submit them as a flow of their own, "
        "or keep all queues of a flow in one slot"
    )
