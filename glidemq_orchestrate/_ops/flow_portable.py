"""The portable path: flows whose queues are in several slots, and servers without our functions.

No call touches two slots and none needs a function of ours. What a kill between two calls leaves behind:
nodes that gates hold back (submit again, or the sweep removes them), or a record that says the flow runs, and
then ``advance`` by anybody at any time does what is missing: it opens gates, tells dependents in whatever
queue of what ended, and counts. Nothing else moves a portable flow across queues, so somebody must call it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from glidemq_orchestrate._ops import events
from glidemq_orchestrate._ops.flow import FlowRef
from glidemq_orchestrate._ops.portable_table import (
    NOT_BEGUN,
    UPSTREAM,
    Decisions,
    Node,
    decide,
    parts,
    policy_text,
    read_nodes,
    send_all,
)
from glidemq_orchestrate._protocol import portable as calls
from glidemq_orchestrate._protocol.call import Call, Op, ask, ask_all
from glidemq_orchestrate._protocol.flow_index import forget_home
from glidemq_orchestrate._protocol.orchestrate import failed_node, flow_home_queue, read_results, read_status
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

POLL_MS: Final = 500
ABANDONED_MS: Final = 15 * 60_000
GONE: Final = "its job was removed"
MARKS_OF_THE_END: Final = ("cancel", "reason", "finished_at", "ended", "final")
CANCELLED: Final = "cancelled: "


class PortableRef(FlowRef):
    """Where a portable flow is."""

    __slots__ = ()


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
    if flow.deadline_ms is not None:
        fields["deadline"] = flow.deadline_ms
    if flow.fail_fast:
        fields["fail_fast"] = 1
    yield from ask(calls.enlist(ref.home, ref.flow_id, now_ms))
    yield from ask(calls.write_record(ref.home, ref.flow_id, fields))
    for part in parts(flow.nodes):
        rows = {node.name: _row(ref.flow_id, node) for node in part}
        yield from ask(calls.write_table(ref.home, ref.flow_id, rows))
    for part in parts(flow.nodes):
        texts = {node.name: text for node in part if (text := policy_text(node))}
        if texts:
            yield from ask(calls.write_policies(ref.home, ref.flow_id, texts))
    for part in parts(flow.nodes[::-1]):  # dependents first: whoever looks finds no dependency without them
        yield from _add_nodes(ref, flow, part, now_ms)
    yield from _list_as(ref, fields, FlowState.RUNNING)
    running: dict[str, str | int] = {"state": "running", "started_at": clock.now_ms(), "round": 0}
    yield from ask(calls.write_record(ref.home, ref.flow_id, running))


def _list_as(ref: FlowRef, fields: Mapping[str, str | int], state: FlowState) -> Op[None]:
    labels, at = json.loads(str(fields.get("labels", "{}"))), str(fields.get("created_at", 0))
    yield from ask_all(calls.index(ref.home, ref.flow_id, labels, state, at))


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
        deps = [member(name) for name in node.after]
        if not deps or policy_text(node):
            deps.append(calls.gate(queue, 0))
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
    nodes = yield from read_nodes(ref)
    for part in parts(nodes):
        owners = yield from ask_all([calls.owner(node.queue, node.job_id) for node in part if node.state])
        there = [node for node in part if node.state]
        ours = [node for node, owner in zip(there, owners, strict=True) if owner == ref.flow_id]
        yield from ask_all([calls.drop_job(node.queue, node.job_id) for node in ours])
    yield from ask(calls.delist(ref.home, ref.flow_id))
    labels = json.loads((yield from ask(calls.record(ref.home, ref.flow_id))).get("labels", "{}"))
    yield from ask_all(calls.unindex(ref.home, ref.flow_id, labels))
    if not (yield from ask(calls.has_flows(ref.home))):
        yield from ask(forget_home(ref.home))
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
    nodes = yield from read_nodes(ref)
    return read_results({node.name: node.result for node in nodes if node.state == "completed"})


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Every node, dependencies before dependents."""
    found: list[NodeStatus] = []
    for part in parts((yield from read_nodes(ref))):
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
        nodes = yield from read_nodes(ref)
        redo = [node for node in nodes if node.state == "failed" or _was_skipped_for_others(node)]
        yield from _begin_again(ref, fields, redo, {}, clock)
    return (yield from status(ref)).state


def restart(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Run every node of an ended flow again. Answers the state afterwards. Repeatable until it ends."""
    fields = yield from ask(calls.record(ref.home, ref.flow_id))
    if fields.get("state") in ("completed", "failed", "cancelled"):
        nodes = yield from read_nodes(ref)
        redo = [node for node in nodes if node.state and node.end]
        generation = int(fields.get("generation", 0)) + 1
        yield from _begin_again(ref, fields, redo, {"generation": generation}, clock)
    return (yield from status(ref)).state


def _was_skipped_for_others(node: Node) -> bool:
    return node.state == "skipped" and node.reason.startswith(UPSTREAM)


def _begin_again(
    ref: FlowRef, fields: Mapping[str, str], redo: Iterable[Node], also: Mapping[str, int], clock: Clock
) -> Op[None]:
    """A kill in between leaves nodes behind a gate that nobody opens, in a flow that has ended: repeat it."""
    number = int(fields.get("round", 0)) + 1
    for node in redo:
        held = calls.add_members(node.queue, "deps", node.job_id, [calls.gate(node.queue, number)])
        yield from ask_all([held, *calls.reset(node.queue, node.job_id)])
    yield from ask(calls.enlist(ref.home, ref.flow_id, clock.now_ms()))
    yield from ask(calls.forget_waiting(ref.home, ref.flow_id))
    yield from ask(
        calls.clear_record(ref.home, ref.flow_id, ("cancel", "reason", "finished_at", "ended", "final"))
    )
    again: dict[str, str | int] = {"state": "running", "started_at": clock.now_ms(), "round": number, **also}
    yield from _list_as(ref, fields, FlowState.RUNNING)
    yield from ask(calls.write_record(ref.home, ref.flow_id, again))
    yield from advance(ref, clock)


def advance(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Do what a running flow needs in any slot. Answers its state. Repeatable, by several at once."""
    fields = yield from ask(calls.record(ref.home, ref.flow_id))
    state = FlowState(fields["state"])
    if state is not FlowState.RUNNING or fields.get("path") != calls.PATH:
        return state
    nodes = yield from read_nodes(ref)
    if "cancel" not in fields:
        decided = decide(nodes, int(fields.get("started_at", 0)), clock.now_ms())
        yield from _end(decided, clock)
        yield from _release(decided.run, nodes, int(fields.get("round", 0)))
        yield from _expire_waiting(ref, nodes, clock)
        if reason := _stopped(fields, nodes, clock.now_ms()):
            fields |= {"cancel": "failed", "reason": reason}
            if (yield from ask(calls.mark_once(ref.home, ref.flow_id, "cancel", "failed"))):
                yield from ask(calls.write_record(ref.home, ref.flow_id, {"reason": reason}))
    if "cancel" in fields:
        yield from _abort(nodes, fields.get("reason", ""), clock)
    return (yield from _count(ref, nodes, fields, clock))


def _stopped(fields: Mapping[str, str], nodes: Sequence[Node], now_ms: int) -> str:
    """Why all that is open is to end, or ''."""
    limit = int(fields.get("deadline", 0))
    if limit and now_ms >= int(fields.get("started_at", 0)) + limit and any(not node.end for node in nodes):
        return f"deadline: it has not ended within {limit / 1000:g} s"
    if "fail_fast" in fields and (cause := _cause(nodes)):
        return f"{cause.name}: {cause.reason or GONE}"
    return ""


def _cause(nodes: Iterable[Node]) -> Node | None:
    """The first node whose failure fails the flow; one that was cancelled only if there is no other."""
    failures = [node for node in nodes if node.has_failed and not node.is_ignored]
    own = (node for node in failures if not node.reason.startswith(CANCELLED))
    return next(own, failures[0] if failures else None)


def _end(decided: Decisions, clock: Clock) -> Op[None]:
    now_ms = clock.now_ms()
    yield from send_all(calls.fail(node.queue, node.job_id, node.reason, now_ms) for node in decided.fail)
    skipping = (calls.skip(node.queue, node.job_id, node.reason, now_ms) for node in decided.skip)
    yield from send_all(call for steps in skipping for call in steps)


def _release(due: Sequence[Node], nodes: Sequence[Node], rounds: int) -> Op[None]:
    """Tell nodes that may run that all they wait for is done, and open their gates."""
    by_name = {node.name: node for node in nodes}
    edges = [(node, by_name[name].ref) for node in due for name in node.after]
    yield from send_all(calls.complete_child(node.queue, node.job_id, ref) for node, ref in edges)
    for number in range(rounds + 1):
        for part in parts(due):
            held = yield from ask_all([calls.has_gate(node.queue, node.job_id, number) for node in part])
            gated = [node for node, has_gate in zip(part, held, strict=True) if has_gate]
            yield from ask_all([calls.open_gate(node.queue, node.job_id, number) for node in gated])


def _expire_waiting(ref: FlowRef, nodes: Sequence[Node], clock: Clock) -> Op[None]:
    """Fail nodes that no worker has begun in time."""
    now_ms = clock.now_ms()
    waiting = [n for n in nodes if n.policy.queue_timeout_ms and n.state in NOT_BEGUN and not n.has_begun]
    for part in parts(waiting):
        seen = yield from ask_all(
            [call for node in part for call in calls.see_waiting(ref.home, ref.flow_id, node.name, now_ms)]
        )
        late = [
            node
            for node, since in zip(part, seen[1::2], strict=True)
            if now_ms - since >= (node.policy.queue_timeout_ms or 0)
        ]
        for node in late:
            limit = (node.policy.queue_timeout_ms or 0) / 1000
            told = f"queue timeout: no worker of queue {node.queue.queue} began it within {limit:g} s"
            yield from _take_away([node], told, now_ms)


def _abort(nodes: Sequence[Node], reason: str, clock: Clock) -> Op[None]:
    yield from _take_away([node for node in nodes if not node.end], f"{CANCELLED}{reason}", clock.now_ms())


def _take_away(nodes: Sequence[Node], reason: str, now_ms: int) -> Op[None]:
    yield from send_all(calls.revoke(node.queue, node.job_id, now_ms) for node in nodes)
    yield from send_all(calls.fail(node.queue, node.job_id, reason, now_ms) for node in nodes)
    yield from send_all(calls.explain(node.queue, node.job_id, reason) for node in nodes)
    for node in nodes:
        node.state, node.reason, node.ended_ms = "failed", reason, now_ms


def _count(ref: FlowRef, nodes: Sequence[Node], fields: Mapping[str, str], clock: Clock) -> Op[FlowState]:
    ends = Counter(node.end for node in nodes)
    counts: dict[str, str | int] = {end: ends[end] for end in ("completed", "failed", "skipped")}
    cause = _cause(nodes)
    if cause and "reason" not in fields:
        counts["reason"] = f"{cause.name}: {cause.reason or GONE}"
    state = FlowState.RUNNING
    if ends[None] == 0:
        ended = "failed" if cause else "completed"
        if "cancel" in fields:
            ended = "failed" if fields["cancel"] == "failed" else "cancelled"
        state = FlowState(ended)
        final = json.dumps({end: str(count) for end, count in counts.items()})
        # Another that looked earlier may write its counts later: the last ones are kept apart.
        counts |= {"state": ended, "finished_at": clock.now_ms(), "final": final}
    yield from ask(calls.write_record(ref.home, ref.flow_id, counts))
    if state.is_terminal:
        if (yield from ask(calls.mark_once(ref.home, ref.flow_id, "ended"))):
            yield from ask(calls.tell_end(ref.home, ref.flow_id, state))
        yield from _list_as(ref, fields, state)
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
            yield from _list_as(ref, fields, FlowState(fields["state"]))
            yield from ask(calls.delist(home, flow_id))
        elif int(fields.get("created_at", 0)) < clock.now_ms() - ABANDONED_MS:
            yield from discard(ref)
