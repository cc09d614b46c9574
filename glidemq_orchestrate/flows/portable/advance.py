"""Advances portable flows, and waits for their end; within one slot the server advances them.

``advance`` notifies dependents in every queue, opens gates, counts, and ends the flow. It is idempotent, also
concurrently. Each call concerns one round. If that round has ended by the time the nodes are read, or the
next one is noted, the call does nothing. A generation waits for the previous one: see ``succession``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import WaitTimeout
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import GONE
from glidemq_orchestrate.flows.portable import node_jobs, owners, records, rounds, succession
from glidemq_orchestrate.flows.portable.node_jobs import (
    add_deps,
    completed_while_waiting,
    gate,
    held_by,
    how_many,
    open_gate,
    send_fenced,
)
from glidemq_orchestrate.flows.portable.reading import status, unsuperseded
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.portable.staging import listed_as, relist
from glidemq_orchestrate.flows.portable.tables import (
    NOT_BEGUN,
    Decisions,
    Node,
    decide,
    note_waiting,
    read_nodes,
)
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.changes import complete_child
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, parts, send_all
from glidemq_orchestrate.wire.confirmation import unconfirmed

CANCELLED: Final = "cancelled: "


def advance(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Advance a running flow in all slots. Returns its state. Idempotent, also concurrently."""
    record = yield from ask(records.record(ref.home, ref.flow_id))
    while record.note and not record.is_expired:
        yield from rounds.begin(ref, record, clock)
        record = yield from ask(records.record(ref.home, ref.flow_id))
    if not is_running(record):
        return record.state
    if record.after and not (yield from _follow(ref, record, clock)):
        return FlowState.RUNNING
    return (yield from _advance(ref, record, clock))


def _advance(ref: FlowRef, record: Record, clock: Clock) -> Op[FlowState]:
    """Advance a running flow whose nodes may be released."""
    nodes = yield from read_nodes(ref)
    now = yield from ask(records.record(ref.home, ref.flow_id))
    if not _is_current(now, record):
        return now.state  # the nodes may belong to the next round
    if any(node.is_stray for node in nodes):
        return (yield from _refuse_strays(ref, nodes, now, clock))
    record, still_open = now, [node for node in nodes if not node.end]
    if not record.cancel:
        decided = yield from _decide(ref, nodes, record, clock)
        if decided is None:
            return (yield from ask(records.record(ref.home, ref.flow_id))).state
        nodes = decided
        if (yield from _expire_waiting(ref, nodes, record.number, clock)):
            nodes = yield from read_nodes(ref)  # a worker may just have begun one of them
            now = yield from ask(records.record(ref.home, ref.flow_id))
            if not _is_current(now, record):
                return now.state
        record = yield from _stop_if_due(ref, record, nodes, clock)
    if record.cancel:
        reason = f"{CANCELLED}{record.cancel['reason']}"
        yield from _cancel([node for node in nodes if not node.end], record.number, reason, clock.now_ms())
    if still_open and all(node.end for node in nodes):
        # A node to be ended here may have ended differently just before: that end counts.
        nodes = yield from read_nodes(ref)
    return (yield from _count(ref, nodes, record, clock))


def _refuse_strays(ref: FlowRef, nodes: Sequence[Node], record: Record, clock: Clock) -> Op[FlowState]:
    """Rerun nodes that Node workers ended after losing them, and what follows; skipped nodes stay skipped."""
    strays = [node.name for node in nodes if node.is_stray]
    yield from rounds.note(ref, record, "late", clock, names=strays)
    return (yield from advance(ref, clock))


def _follow(ref: FlowRef, record: Record, clock: Clock) -> Op[bool]:
    """Let a generation supersede the previous one; returns whether its nodes may be released."""
    if not (yield from succession.decide(ref)):
        return False
    yield from relist(ref)
    before = replace(ref, flow_id=record.after)
    ended = yield from _end_for(before, ref.generation, clock)
    if ended is None:
        return False
    yield from succession.retire(before, ended, clock)
    yield from ask(records.erase(ref.home, ref.flow_id, "after"))
    return True


def _end_for(ref: FlowRef, number: int, clock: Clock) -> Op[Record | None]:
    """End a superseded generation permanently; returns its record, or None while it has not ended."""
    yield from ask(records.write_once(ref.home, ref.flow_id, "superseded", number))
    while True:
        record = yield from ask(records.record(ref.home, ref.flow_id))
        if record.is_dropped or record.is_expired:
            return record
        if record.number < 0:
            yield from ask(records.drop(ref.home, ref.flow_id, uuid4().hex))
        elif record.end:  # a concurrent retry finds its round taken
            yield from ask(records.remove(ref.home, ref.flow_id, record.number + 1, clock.now_ms()))
        else:
            how, reason = FlowState.CANCELLED, records.superseding(number)
            yield from ask(records.cancel(ref.home, ref.flow_id, record.number, how, reason))
            if not (yield from advance(ref, clock)).is_terminal:
                return None


def is_running(record: Record) -> bool:
    """Whether a round of the flow runs."""
    return record.number >= 0 and not record.end and not record.is_expired and bool(record.fields)


def _is_current(now: Record, record: Record) -> bool:
    """Whether the same round still runs and no other one is noted."""
    return is_running(now) and now.number == record.number and not now.note


def _stop_if_due(ref: FlowRef, record: Record, nodes: Sequence[Node], clock: Clock) -> Op[Record]:
    """Request the end of all open nodes if a limit or an expired owner requires it. Returns the record."""
    how, reason = FlowState.FAILED, _stopped(record, nodes, clock.now_ms())
    if not reason and any(not node.end for node in nodes):
        how, reason = FlowState.CANCELLED, (yield from owners.abandoned(ref, record, clock))
    if not reason:
        return record
    yield from ask(records.cancel(ref.home, ref.flow_id, record.number, how, reason))
    return (yield from ask(records.record(ref.home, ref.flow_id)))


def _stopped(record: Record, nodes: Sequence[Node], now_ms: int) -> str:
    """Why all open nodes must end (deadline, fail-fast), or ''."""
    limit = int(record.fields.get("deadline", 0))
    if limit and now_ms >= record.started_ms + limit and any(not node.end for node in nodes):
        return f"deadline: it has not ended within {limit / 1000:g} s"
    if "fail_fast" in record.fields and (cause := _cause(nodes)):
        return f"{cause.name}: {cause.reason or GONE}"
    return ""


def _cause(nodes: Iterable[Node]) -> Node | None:
    """The first node whose failure fails the flow; a cancelled one only if there is no other."""
    failures = [node for node in nodes if node.has_failed and not node.is_ignored]
    own = (node for node in failures if not node.reason.startswith(CANCELLED))
    return next(own, failures[0] if failures else None)


def _decide(ref: FlowRef, nodes: list[Node], record: Record, clock: Clock) -> Op[list[Node] | None]:
    """Release or end waiting nodes, as far as their dependencies have ended.

    Returns the updated nodes; None if the round has ended in the meantime.
    """
    for _ in range(len(nodes)):
        decisions = decide(nodes, record.begun_ms, clock.now_ms())
        yield from _end(decisions, record.number, clock.now_ms())
        yield from _release(decisions.run, nodes, record, clock)
        if not any(node.is_unsure for node in nodes):
            break
        nodes = yield from read_nodes(ref)  # the outcome of these decides on others
        now = yield from ask(records.record(ref.home, ref.flow_id))
        if not _is_current(now, record):
            return None
    return nodes


def _end(decided: Decisions, number: int, now_ms: int) -> Op[None]:
    """End the nodes that were decided to fail or to be skipped."""
    todo: list[tuple[Call[int], Sequence[Call[Any]]]] = []
    for node in (*decided.fail, *decided.skip):
        place = (node.queue, node.job_id)
        plain: Sequence[Call[Any]] = [node_jobs.fail(*place, node.reason, now_ms)]
        if node.state == "skipped":
            plain = node_jobs.skip(*place, node.reason, now_ms)
        todo.append((node_jobs.end_node(*place, number, node.state, node.reason, now_ms), plain))
    yield from send_fenced(todo)


def _release(due: Sequence[Node], nodes: Sequence[Node], record: Record, clock: Clock) -> Op[None]:
    """Release nodes that may run: complete all their remaining dependencies, and open their gates."""
    by_name = {node.name: node for node in nodes}
    edges = [(node, by_name[name].ref) for node in due for name in node.after if name in by_name]
    yield from send_all(complete_child(node.queue, node.job_id, ref) for node, ref in edges)
    numbers = range(record.number + 1)
    knows_gates = record.number == 0
    for part in parts(due):
        gated = [node for node in part if node.has_gate or not knows_gates]
        held = yield from ask_all([held_by(node.queue, node.job_id, numbers) for node in gated])
        closed = [(node, number) for node, some in zip(gated, held, strict=True) for number in some]
        yield from send_all(open_gate(node.queue, node.job_id, number) for node, number in closed)
        yield from _wake(part, clock)


def _wake(released: Sequence[Node], clock: Clock) -> Op[None]:
    """Wake nodes that still wait although nothing blocks them: the client that released them was killed.

    The server counts each completed dependency once, so these nodes get a new gate, and that is opened.
    """
    counting: list[Call[int]] = []
    for node in released:
        counting.append(completed_while_waiting(node.queue, node.job_id))
        counting.append(how_many(node.queue, node.job_id))
    counts = yield from ask_all(counting)
    # Skip a node that waits for its own child job: every call would add another gate.
    pairs = zip(released, counts[::2], counts[1::2], strict=True)
    asleep = [node for node, completed, total in pairs if completed >= total]
    number = f"again-{clock.now_ms()}"
    for node in asleep:
        held = add_deps(node.queue, node.job_id, [gate(node.queue, number)])
        yield from ask(held)
        yield from ask(open_gate(node.queue, node.job_id, number))


def _expire_waiting(ref: FlowRef, nodes: Sequence[Node], number: int, clock: Clock) -> Op[bool]:
    """Fail nodes that no worker has begun within their ``queue_timeout``; returns whether there are any."""
    now_ms, found = clock.now_ms(), False
    waiting = [n for n in nodes if n.policy.queue_timeout_ms and n.state in NOT_BEGUN and not n.has_begun]
    for part in parts(waiting):
        seen = yield from ask_all(
            [call for node in part for call in note_waiting(ref.home, ref.flow_id, node.name, now_ms)]
        )
        late = [
            node
            for node, since in zip(part, seen[1::2], strict=True)
            if now_ms - since >= (node.policy.queue_timeout_ms or 0)
        ]
        for node in late:
            limit = (node.policy.queue_timeout_ms or 0) / 1000
            queue, _ = split_shard(node.queue.queue)
            reason = f"queue timeout: no worker of queue {queue} began it within {limit:g} s"
            yield from _cancel([node], number, reason, now_ms, how="unstarted")
            found = True
    return found


def _cancel(
    nodes: Sequence[Node], number: int, reason: str, now_ms: int, *, how: str = "cancelled"
) -> Op[None]:
    """End nodes in any state, running ones too."""
    todo: list[tuple[Call[int], Sequence[Call[Any]]]] = []
    for node in nodes:
        place = (node.queue, node.job_id)
        plain: list[Call[Any]] = [node_jobs.revoke(*place, now_ms), node_jobs.fail(*place, reason, now_ms)]
        plain.append(node_jobs.explain(*place, reason))
        todo.append((node_jobs.end_node(*place, number, how, reason, now_ms), plain))
    yield from send_fenced(todo)
    for node in nodes:
        node.state, node.reason, node.ended_ms = "failed", reason, now_ms


def _count(ref: FlowRef, nodes: Sequence[Node], record: Record, clock: Clock) -> Op[FlowState]:
    """Record how many nodes have ended, and with the last one the end of the flow; returns its state."""
    ends = Counter(node.end for node in nodes)
    counts: dict[str, str | int] = {end: ends[end] for end in ("completed", "failed", "skipped")}
    cause = _cause(nodes)
    counts["reason"] = f"{cause.name}: {cause.reason or GONE}" if cause else ""
    if record.cancel:
        counts["reason"] = str(record.cancel["reason"])
    if ends[None] or len(nodes) < int(record.fields.get("total", 0)):
        yield from ask(records.count(ref.home, ref.flow_id, record.number, counts))
        yield from relist(ref)
        return FlowState.RUNNING
    ended = FlowState.FAILED if cause else FlowState.COMPLETED
    if record.cancel:
        ended = FlowState(record.cancel["how"])
    counts |= {"state": ended, "finished_at": clock.now_ms()}
    if (yield from ask(records.end(ref.home, ref.flow_id, record.number, counts))):
        yield from ask(records.announce(ref.home, ref.flow_id, ended))
    return (yield from close(ref, clock))


def close(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Finish an ended flow: list it as ended and begin its retention. Idempotent."""
    record = yield from ask(records.record(ref.home, ref.flow_id))
    retention = record.fields.get("retention")
    if record.end and retention is not None:
        due_ms = int(record.end["finished_at"]) + int(retention)
        yield from ask(records.expire_at(ref.home, ref.flow_id, due_ms))
    yield from relist(ref)
    if (yield from ask(records.record(ref.home, ref.flow_id))).is_expired:
        # It may have been listed after its removal: the sweep delists it again.
        yield from ask(records.expire_at(ref.home, ref.flow_id, clock.now_ms()))
    now, mark = yield from records.delist(ref.home, ref.flow_id, clock.now_ms())
    if is_running(now) or now.note:
        yield from ask(records.enlist(ref.home, ref.flow_id, clock.now_ms()))
        yield from ask(records.expire_never(ref.home, ref.flow_id))
    else:  # a disconnected client may have listed it under an older state: the sweep corrects that
        others = [state for state in FlowState if state is not now.state]
        if any((yield from ask_all([records.is_indexed(ref.home, ref.flow_id, state) for state in others]))):
            yield from ask(records.enlist(ref.home, ref.flow_id, clock.now_ms()))
    yield from ask(records.delisted(ref.home, mark))
    return now.state


def _list_end(ref: FlowRef, clock: Clock) -> Op[None]:
    """List an ended flow as ended, unless the client that ended it has done so: it may be slow, or killed."""
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if record.end and record.fields.get("listed") != listed_as(record):
        yield from unconfirmed(close(ref, clock))


POLL_MS: Final = 500
MAX_REST_MS: Final = 2_000


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowStatus]:
    """Advance the flow until it has ended: at each event of its home queue, and every half second.

    At most a third of the time is spent on advancing, so that a large flow leaves the server to its workers.

    Raises:
        WaitTimeout: It has not ended in time.
        Superseded: Another generation has begun.
    """
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    position = yield from events.tail(ref.home)
    while True:
        began = clock.monotonic_ms()
        state = yield from unconfirmed(advance(ref, clock))
        yield from unsuperseded(ref)
        if state.is_terminal:
            yield from _list_end(ref, clock)
            break
        now = clock.monotonic_ms()
        if deadline is not None and now >= deadline:
            raise WaitTimeout(f"flow {ref.public_id} is still running")
        rested = now + min(2 * (now - began), MAX_REST_MS)
        until = max(rested, now + POLL_MS)
        if deadline is not None:
            rested, until = min(rested, deadline), min(until, deadline)
        position = yield from _rest(ref, position, rested, until, clock)
    return (yield from status(ref))


def _rest(ref: FlowRef, position: str, rested: int, until: int, clock: Clock) -> Op[str]:
    """Wait for an event, at least until ``rested`` unless the flow has ended; returns the new position."""
    while (left := until - clock.monotonic_ms()) > 0:
        found = yield from events.read(ref.home, position, left)
        position = found[-1].id if found else position
        has_ended = any(event.flow_id == ref.public_id and event.kind.startswith("flow.") for event in found)
        if has_ended or not found or clock.monotonic_ms() >= rested:
            break
        until = rested
    return position
