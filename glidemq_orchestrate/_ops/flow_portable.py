"""The portable path: flows whose queues are in several slots, and servers without our functions.

No call touches two slots and none needs a function of ours. What a kill between two calls leaves behind:
nodes that gates hold back (submit again, or the sweep removes them), or a record that says the flow runs, and
then ``advance`` by anybody at any time does what is missing: it opens gates, tells dependents in whatever
queue of what ended, and counts. Nothing else moves a portable flow across queues, so somebody must call it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from glidemq_orchestrate._ops import events
from glidemq_orchestrate._ops.flow import FlowRef
from glidemq_orchestrate._protocol import portable as calls
from glidemq_orchestrate._protocol.call import Call, Op, ask, ask_all
from glidemq_orchestrate._protocol.orchestrate import failed_node, flow_home_queue, read_results, read_status
from glidemq_orchestrate._protocol.supervision import node_table
from glidemq_orchestrate.checked_flow import CheckedFlow, CheckedNode
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.errors import FlowConflict, FlowNotFound, WaitTimeout
from glidemq_orchestrate.flow import (
    FlowOutcome,
    FlowState,
    FlowStatus,
    NodeStatus,
)
from glidemq_orchestrate.keys import QueueKeys, node_job_id

T = TypeVar("T")

PER_TRIP: Final = 200
POLL_MS: Final = 500
ABANDONED_MS: Final = 15 * 60_000
UPSTREAM: Final = "upstream failed: "


class PortableRef(FlowRef):
    """Where a portable flow is."""

    __slots__ = ()


@dataclass(slots=True)
class Node:
    """A node as its table and its job have it."""

    name: str
    queue: QueueKeys
    job_id: str
    after: tuple[str, ...]
    row: str
    state: str = ""
    reason: str = ""
    result: str = "null"

    @property
    def ref(self) -> str:
        """The form in which dependents name it."""
        return f"{self.queue.base}:{self.job_id}"

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, or its job is gone and will never complete."""
        return self.state in ("failed", "")


def submit(prefix: str, flow: CheckedFlow, flow_id: str, clock: Clock) -> Op[PortableRef]:
    """Write a flow node by node and let it run; or go on with the equal flow that is there. Repeatable.

    Raises:
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
    """
    ref = PortableRef(QueueKeys(prefix, flow.home), flow_id)
    yield from ask(calls.claim(ref.home, flow_id))
    home = yield from ask(flow_home_queue(prefix, flow_id))
    if home == flow.home:
        yield from ask(calls.claim_record(ref.home, flow_id, flow.digest))
    found = yield from ask(calls.record(ref.home, flow_id))
    if home != flow.home or found["digest"] != flow.digest:
        raise FlowConflict(f"flow id {flow_id} belongs to another flow")
    if found.get("state", "staging") == "staging":
        yield from _stage(ref, flow, clock)
    if found.get("path", calls.PATH) == calls.PATH:
        yield from advance(ref, clock)
    return ref


def _stage(ref: FlowRef, flow: CheckedFlow, clock: Clock) -> Op[None]:
    now_ms = clock.now_ms()
    fields: dict[str, str | int] = {
        "id": ref.flow_id,
        "name": flow.name,
        "total": len(flow.nodes),
        "home": flow.home,
        "labels": json.dumps(dict(flow.labels)),
        "state": "staging",
        "path": calls.PATH,
        "created_at": now_ms,
    }
    yield from ask(calls.enlist(ref.home, ref.flow_id, now_ms))
    yield from ask(calls.write_record(ref.home, ref.flow_id, fields))
    for part in _parts(flow.nodes):
        rows = {node.name: _row(ref.flow_id, node) for node in part}
        yield from ask(calls.write_table(ref.home, ref.flow_id, rows))
    for part in _parts(flow.nodes[::-1]):  # dependents first: whoever looks finds no dependency without them
        yield from _add_nodes(ref, flow, part, now_ms)
    running: dict[str, str | int] = {"state": "running", "started_at": clock.now_ms(), "generation": 0}
    yield from ask(calls.write_record(ref.home, ref.flow_id, running))


def _row(flow_id: str, node: CheckedNode) -> str:
    row = [node.rank, node.queue, node_job_id(flow_id, node.name), node.job, *node.after]
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def _add_nodes(ref: FlowRef, flow: CheckedFlow, nodes: Sequence[CheckedNode], now_ms: int) -> Op[None]:
    def place(name: str) -> tuple[QueueKeys, str]:
        return QueueKeys(ref.home.prefix, flow.queue_of[name]), node_job_id(ref.flow_id, name)

    def member(name: str) -> str:
        queue, job_id = place(name)
        return f"{queue.base}:{job_id}"

    adding: list[Call[bool]] = []
    linking: list[Call[None]] = []
    for node in nodes:
        queue, job_id = place(node.name)
        deps = [member(name) for name in node.after] or [calls.gate(queue, 0)]
        adding.append(calls.add_node(queue, job_id, node, flow_id=ref.flow_id, deps=deps, now_ms=now_ms))
        if node.dependents:
            linking.append(calls.add_members(queue, "parents", job_id, map(member, node.dependents)))
    added = yield from ask_all(adding)
    taken = [place(node.name) for node, is_new in zip(nodes, added, strict=True) if not is_new]
    owners = yield from ask_all([calls.owner(*one) for one in taken])
    for (_, job_id), flow_id in zip(taken, owners, strict=True):
        if flow_id != ref.flow_id:
            yield from discard(ref)
            raise FlowConflict(f"job {job_id} exists already outside this flow")
    yield from ask_all(linking)


def discard(ref: FlowRef) -> Op[None]:
    """Remove a flow that never started: its own jobs, then the record, then the claim. Repeatable."""
    nodes = yield from _nodes(ref)
    for part in _parts(nodes):
        owners = yield from ask_all([calls.owner(node.queue, node.job_id) for node in part if node.state])
        there = [node for node in part if node.state]
        ours = [node for node, owner in zip(there, owners, strict=True) if owner == ref.flow_id]
        yield from ask_all([calls.drop_job(node.queue, node.job_id) for node in ours])
    yield from ask(calls.delist(ref.home, ref.flow_id))
    for call in calls.drop_record(ref.home, ref.flow_id):
        yield from ask(call)


def is_portable(ref: FlowRef) -> Op[bool]:
    """Whether the flow was submitted by this path."""
    return (yield from ask(calls.record(ref.home, ref.flow_id))).get("path") == calls.PATH


def status(ref: FlowRef) -> Op[FlowStatus]:
    """The record as the last ``advance`` has left it."""
    fields = yield from ask(calls.record(ref.home, ref.flow_id))
    if "state" not in fields:
        raise FlowNotFound(f"no flow {ref.flow_id} in queue {ref.home.queue}")
    return read_status(ref.home, ref.flow_id, fields)


def results(ref: FlowRef) -> Op[dict[str, Json]]:
    """The result of every completed node by name."""
    nodes = yield from _nodes(ref)
    return read_results({node.name: node.result for node in nodes if node.state == "completed"})


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Every node, dependencies before dependents."""
    found: list[NodeStatus] = []
    for part in _parts((yield from _nodes(ref))):
        told = [calls.node_status(node.queue, node.job_id, node.name, node.row) for node in part]
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

    Raises:
        WaitTimeout: It has not ended in time.
    """
    deadline = None if timeout_ms is None else clock.now_ms() + timeout_ms
    position = yield from events.tail(ref.home)
    while not (yield from advance(ref, clock)).is_terminal:
        left = POLL_MS if deadline is None else min(POLL_MS, deadline - clock.now_ms())
        if left <= 0:
            raise WaitTimeout(f"flow {ref.flow_id} is still running after {timeout_ms} ms")
        for event in (yield from events.read(ref.home, position, left)):
            position = event.id
    return (yield from outcome(ref, (yield from status(ref))))


def cancel(ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
    """End every node that has not ended. Answers the state before. Repeatable."""
    before = (yield from status(ref)).state
    if not before.is_terminal:
        fields = {"cancel": "1", "reason": reason, "state": "running"}
        yield from ask(calls.write_record(ref.home, ref.flow_id, fields))
        yield from advance(ref, clock)
    return before


def retry_failed(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Run again what did not complete of an ended flow. Answers the state afterwards. Repeatable.

    A node whose job is gone cannot run again; it stays failed, with what depends on it.
    """
    fields = yield from ask(calls.record(ref.home, ref.flow_id))
    if fields.get("state") in ("failed", "cancelled"):
        generation = int(fields.get("generation", 0)) + 1
        nodes = yield from _nodes(ref)
        for node in nodes:
            if node.state == "failed":
                gate = calls.gate(node.queue, generation)
                held = calls.add_members(node.queue, "deps", node.job_id, [gate])
                yield from ask_all([held, *calls.reset(node.queue, node.job_id)])
        yield from ask(calls.enlist(ref.home, ref.flow_id, clock.now_ms()))
        yield from ask(
            calls.clear_record(ref.home, ref.flow_id, ("cancel", "reason", "finished_at", "ended"))
        )
        again: dict[str, str | int] = {"state": "running", "generation": generation}
        yield from ask(calls.write_record(ref.home, ref.flow_id, again))
        yield from advance(ref, clock)
    return (yield from status(ref)).state


def advance(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Do what a running flow needs in any slot. Answers its state. Repeatable, by several at once."""
    fields = yield from ask(calls.record(ref.home, ref.flow_id))
    state = FlowState(fields["state"])
    if state is not FlowState.RUNNING or fields.get("path") != calls.PATH:
        return state
    nodes = yield from _nodes(ref)
    if "cancel" in fields:
        yield from _abort(nodes, fields.get("reason", ""), clock)
    else:
        yield from _fail_blocked(nodes, clock)
        yield from _tell_completed(nodes)
        yield from _open_gates(nodes, int(fields.get("generation", 0)))
    return (yield from _count(ref, nodes, fields, clock))


def _fail_blocked(nodes: Sequence[Node], clock: Clock) -> Op[None]:
    """In topological order, so that a failure reaches the last dependent in one go."""
    causes: dict[str, str] = {}
    failing: list[Call[str]] = []
    for node in nodes:
        if node.has_failed:
            told = node.reason.startswith(UPSTREAM)
            causes[node.name] = node.reason.removeprefix(UPSTREAM) if told else node.name
        cause = next((causes[name] for name in node.after if name in causes), None)
        if cause is not None and node.state == "waiting-children":
            node.state, node.reason, causes[node.name] = "failed", UPSTREAM + cause, cause
            failing.append(calls.fail(node.queue, node.job_id, node.reason, clock.now_ms()))
    yield from _all(failing)


def _tell_completed(nodes: Sequence[Node]) -> Op[None]:
    by_name = {node.name: node for node in nodes}
    yield from _all(
        calls.complete_child(node.queue, node.job_id, by_name[name].ref)
        for node in nodes
        if node.state == "waiting-children"
        for name in node.after
        if by_name[name].state == "completed"
    )


def _open_gates(nodes: Sequence[Node], generation: int) -> Op[None]:
    waiting = [node for node in nodes if node.state == "waiting-children"]
    for number in range(generation + 1):
        for part in _parts([node for node in waiting if number or not node.after]):
            held = yield from ask_all([calls.has_gate(node.queue, node.job_id, number) for node in part])
            gated = [node for node, has_gate in zip(part, held, strict=True) if has_gate]
            yield from ask_all(
                [
                    calls.complete_child(node.queue, node.job_id, calls.gate(node.queue, number))
                    for node in gated
                ]
            )


def _abort(nodes: Sequence[Node], reason: str, clock: Clock) -> Op[None]:
    open_nodes = [node for node in nodes if node.state not in ("completed", "failed", "")]
    told, now_ms = f"cancelled: {reason}", clock.now_ms()
    yield from _all(calls.revoke(node.queue, node.job_id, now_ms) for node in open_nodes)
    yield from _all(calls.fail(node.queue, node.job_id, told, now_ms) for node in open_nodes)
    for node in open_nodes:
        node.state, node.reason = "failed", told


def _count(ref: FlowRef, nodes: Sequence[Node], fields: dict[str, str], clock: Clock) -> Op[FlowState]:
    failed = [node for node in nodes if node.has_failed]
    completed = Counter(node.state for node in nodes)["completed"]
    counts: dict[str, str | int] = {"completed": completed, "failed": len(failed)}
    if failed and "reason" not in fields:
        counts["reason"] = f"{failed[0].name}: {failed[0].reason or 'its job was removed'}"
    state = FlowState.RUNNING
    if completed + len(failed) == len(nodes):
        ended = "cancelled" if "cancel" in fields else "failed" if failed else "completed"
        state = FlowState(ended)
        counts |= {"state": ended, "finished_at": clock.now_ms()}
    yield from ask(calls.write_record(ref.home, ref.flow_id, counts))
    if state.is_terminal:
        if (yield from ask(calls.mark_once(ref.home, ref.flow_id, "ended"))):
            yield from ask(calls.tell_end(ref.home, ref.flow_id, state))
        yield from ask(calls.delist(ref.home, ref.flow_id))
    return state


def sweep(home: QueueKeys, clock: Clock) -> Op[None]:
    """Advance the portable flows of a home, and remove those whose submission was abandoned. Repeatable."""
    for flow_id in (yield from ask(calls.listed(home))):
        ref = FlowRef(home, flow_id)
        fields = yield from ask(calls.record(home, flow_id))
        if fields.get("state") == "running":
            yield from advance(ref, clock)
        elif fields.get("state") in ("completed", "failed", "cancelled"):
            yield from ask(calls.delist(home, flow_id))
        elif int(fields.get("created_at", 0)) < clock.now_ms() - ABANDONED_MS:
            yield from discard(ref)


def _nodes(ref: FlowRef) -> Op[list[Node]]:
    """Every node with the state of its job, dependencies before dependents."""
    found: dict[str, tuple[float, Node]] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(node_table(ref.home, ref.flow_id, cursor))
        for name, row in page.items():
            rank, queue, job_id, _job, *after = row
            place = QueueKeys(ref.home.prefix, queue)
            found[name] = (rank, Node(name, place, job_id, tuple(after), json.dumps(row)))
        if cursor == "0":
            break
    nodes = [node for _, node in sorted(found.values(), key=lambda pair: pair[0])]
    for part in _parts(nodes):
        states = yield from ask_all([calls.job(node.queue, node.job_id) for node in part])
        for node, (state, reason, result) in zip(part, states, strict=True):
            node.state, node.reason, node.result = state, reason, result
    return nodes


def _all(todo: Iterable[Call[T]]) -> Op[None]:
    for part in _parts(list(todo)):
        yield from ask_all(part)


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), PER_TRIP):
        yield items[first : first + PER_TRIP]
