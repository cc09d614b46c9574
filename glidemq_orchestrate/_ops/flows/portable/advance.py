"""Moving portable flows on: what nobody else does for a flow whose nodes are in several slots.

``advance`` opens gates, tells dependents in whatever queue of what ended, counts, and ends the flow.
Repeatable, by several at once. Each look is of one round: who finds, after it has read the nodes, that the
round has ended does nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate._ops.flows.index import TOMBSTONE
from glidemq_orchestrate._ops.flows.portable import submit
from glidemq_orchestrate._ops.flows.portable.table import (
    GONE,
    NOT_BEGUN,
    Decisions,
    Node,
    decide,
    parts,
    read_nodes,
    send_all,
    send_fenced,
)
from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._protocol.call import Call, Op, ask, ask_all
from glidemq_orchestrate._protocol.flows import claim
from glidemq_orchestrate._protocol.flows import portable as calls
from glidemq_orchestrate._protocol.flows import portable_record as records
from glidemq_orchestrate._protocol.flows.portable_record import Record
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import TransportError
from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.keys import QueueKeys

ABANDONED_MS: Final = 15 * 60_000
PER_SWEEP: Final = 100
MOST_MS: Final = 2_000
CANCELLED: Final = "cancelled: "


def advance(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Do what a running flow needs in any slot. Answers its state. Repeatable, by several at once."""
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if not _is_running(record):
        return record.state
    nodes = yield from read_nodes(ref)
    now = yield from ask(records.record(ref.home, ref.flow_id))
    if not _is_running(now) or now.number != record.number:
        return now.state  # the nodes are perhaps those of the next round
    record = now
    if not record.cancel:
        decided = decide(nodes, record.started_ms, clock.now_ms())
        yield from _end(decided, record.number, clock.now_ms())
        yield from _release(decided.run, nodes, record, clock)
        yield from _expire_waiting(ref, nodes, record.number, clock)
        if reason := _stopped(record, nodes, clock.now_ms()):
            how = FlowState.FAILED
            yield from ask(records.cancel(ref.home, ref.flow_id, record.number, how, reason))
            record = yield from ask(records.record(ref.home, ref.flow_id))
    if record.cancel:
        reason, still_open = f"{CANCELLED}{record.cancel['reason']}", [node for node in nodes if not node.end]
        yield from _take_away(still_open, record.number, reason, clock.now_ms())
    return (yield from _count(ref, nodes, record, clock))


def _is_running(record: Record) -> bool:
    return record.number >= 0 and not record.end and not record.is_expired and bool(record.fields)


def _stopped(record: Record, nodes: Sequence[Node], now_ms: int) -> str:
    """Why all that is open is to end, or ''."""
    limit = int(record.fields.get("deadline", 0))
    if limit and now_ms >= record.started_ms + limit and any(not node.end for node in nodes):
        return f"deadline: it has not ended within {limit / 1000:g} s"
    if "fail_fast" in record.fields and (cause := _cause(nodes)):
        return f"{cause.name}: {cause.reason or GONE}"
    return ""


def _cause(nodes: Iterable[Node]) -> Node | None:
    """The first node whose failure fails the flow; one that was cancelled only if there is no other."""
    failures = [node for node in nodes if node.has_failed and not node.is_ignored]
    own = (node for node in failures if not node.reason.startswith(CANCELLED))
    return next(own, failures[0] if failures else None)


def _end(decided: Decisions, number: int, now_ms: int) -> Op[None]:
    todo: list[tuple[Call[int], Sequence[Call[Any]]]] = []
    for node in (*decided.fail, *decided.skip):
        place = (node.queue, node.job_id)
        plain: Sequence[Call[Any]] = [calls.fail(*place, node.reason, now_ms)]
        if node.state == "skipped":
            plain = calls.skip(*place, node.reason, now_ms)
        todo.append((calls.end_node(*place, number, node.state, node.reason, now_ms), plain))
    yield from send_fenced(todo)


def _release(due: Sequence[Node], nodes: Sequence[Node], record: Record, clock: Clock) -> Op[None]:
    """Tell nodes that may run that all they wait for is done, and open their gates."""
    by_name = {node.name: node for node in nodes}
    edges = [(node, by_name[name].ref) for node in due for name in node.after if name in by_name]
    yield from send_all(calls.complete_child(node.queue, node.job_id, ref) for node, ref in edges)
    numbers = range(record.number + 1)
    knows_gates = record.number == 0 and "begin:0" in record.fields
    for part in parts(due):
        gated = [node for node in part if node.has_gate or not knows_gates]
        held = yield from ask_all([calls.held_by(node.queue, node.job_id, numbers) for node in gated])
        gates = [(node, number) for node, some in zip(gated, held, strict=True) for number in some]
        yield from send_all(calls.open_gate(node.queue, node.job_id, number) for node, number in gates)
        yield from _wake(part, clock)


def _wake(told: Sequence[Node], clock: Clock) -> Op[None]:
    """Wake nodes that were told everything and wait all the same: whoever told them last was cut off.

    What was told once counts once, so a gate that was never there is opened; that wakes a job that waits.
    """
    waiting = yield from ask_all([calls.is_waiting(node.queue, node.job_id) for node in told])
    asleep = [node for node, is_waiting in zip(told, waiting, strict=True) if is_waiting]
    number = f"again-{clock.now_ms()}"
    for node in asleep:
        held = calls.add_members(node.queue, "deps", node.job_id, [calls.gate(node.queue, number)])
        yield from ask(held)
        yield from ask(calls.open_gate(node.queue, node.job_id, number))


def _expire_waiting(ref: FlowRef, nodes: Sequence[Node], number: int, clock: Clock) -> Op[None]:
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
            yield from _take_away([node], number, told, now_ms)


def _take_away(nodes: Sequence[Node], number: int, reason: str, now_ms: int) -> Op[None]:
    todo: list[tuple[Call[int], Sequence[Call[Any]]]] = []
    for node in nodes:
        place = (node.queue, node.job_id)
        plain: list[Call[Any]] = [calls.revoke(*place, now_ms), calls.fail(*place, reason, now_ms)]
        plain.append(calls.explain(*place, reason))
        todo.append((calls.end_node(*place, number, "cancelled", reason, now_ms), plain))
    yield from send_fenced(todo)
    for node in nodes:
        node.state, node.reason, node.ended_ms = "failed", reason, now_ms


def _count(ref: FlowRef, nodes: Sequence[Node], record: Record, clock: Clock) -> Op[FlowState]:
    ends = Counter(node.end for node in nodes)
    counts: dict[str, str | int] = {end: ends[end] for end in ("completed", "failed", "skipped")}
    cause = _cause(nodes)
    counts["reason"] = f"{cause.name}: {cause.reason or GONE}" if cause else ""
    if record.cancel:
        counts["reason"] = str(record.cancel["reason"])
    if ends[None] or len(nodes) < int(record.fields.get("total", 0)):
        yield from ask(records.count(ref.home, ref.flow_id, record.number, counts))
        yield from submit.relist(ref)
        return FlowState.RUNNING
    ended = FlowState.FAILED if cause else FlowState.COMPLETED
    if record.cancel:
        ended = FlowState(record.cancel["how"])
    counts |= {"state": ended, "finished_at": clock.now_ms()}
    if (yield from ask(records.end(ref.home, ref.flow_id, record.number, counts))):
        yield from ask(calls.announce_end(ref.home, ref.flow_id, ended))
    return (yield from close(ref, clock))


def close(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Do what follows the end of a flow: list it as ended, and let its retention begin. Repeatable."""
    record = yield from ask(records.record(ref.home, ref.flow_id))
    retention = record.fields.get("retention")
    if record.end and retention is not None:
        due_ms = int(record.end["finished_at"]) + int(retention)
        yield from ask(records.expire_at(ref.home, ref.flow_id, due_ms))
    yield from submit.relist(ref)
    yield from ask(records.delist(ref.home, ref.flow_id))
    # Whoever let it run again in the moment of its end has perhaps listed it before it was taken off the
    # list.
    now = yield from ask(records.record(ref.home, ref.flow_id))
    if _is_running(now):
        yield from ask(records.enlist(ref.home, ref.flow_id, clock.now_ms()))
        yield from ask(records.expire_never(ref.home, ref.flow_id))
    return now.state


def sweep(home: QueueKeys, clock: Clock, *, tombstone: timedelta = TOMBSTONE) -> Op[None]:
    """See to portable flows of a home: move on what runs, remove what was given up or is over its retention.

    At most 100 flows of each and for some seconds, those first that were not looked at longest. Repeatable,
    by several at once. One that cannot be seen to keeps no other waiting: the first such error is raised at
    the end.
    """
    refused: Exception | None = None
    looking = [records.listed(home, PER_SWEEP), records.expiring(home, clock.now_ms(), PER_SWEEP)]
    running, over = yield from ask_all(looking)
    todo = [_look(FlowRef(home, flow_id, "portable"), clock) for flow_id in running]
    todo += [_expire(FlowRef(home, flow_id, "portable"), clock, tombstone) for flow_id in over]
    until = clock.monotonic_ms() + MOST_MS
    for step in todo:
        if clock.monotonic_ms() > until:
            step.close()
            continue
        try:
            yield from step
        except TransportError:
            raise
        except Exception as exc:  # noqa: BLE001  raised in the end
            refused = refused or exc
    if refused is not None:
        raise refused


def _look(ref: FlowRef, clock: Clock) -> Op[None]:
    yield from ask(records.looked_at(ref.home, ref.flow_id, clock.now_ms()))
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if _is_running(record):
        yield from advance(ref, clock)
    elif record.end or record.is_expired:
        yield from close(ref, clock)
    elif not record.fields:
        yield from ask(records.delist(ref.home, ref.flow_id))
    elif record.is_dropped:
        yield from submit.remove(ref)
    elif _heard_ms(record) < clock.now_ms() - ABANDONED_MS:
        yield from submit.discard(ref)


def _heard_ms(record: Record) -> int:
    return int(record.fields.get("heard_at", record.fields.get("created_at", 0)))


def _expire(ref: FlowRef, clock: Clock, tombstone: timedelta) -> Op[None]:
    """Remove the jobs of a flow after its retention; a tombstone stays for a while. Repeatable."""
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if record.fields and not record.is_expired:
        if not record.end:
            yield from ask(records.expire_never(ref.home, ref.flow_id))
            return
        yield from ask(records.write_once(ref.home, ref.flow_id, "expired_at", clock.now_ms()))
        now = yield from ask(records.record(ref.home, ref.flow_id))
        if now.number != record.number:  # it was let run again: that came first
            yield from ask(records.erase(ref.home, ref.flow_id, "expired_at"))
            return
    for part in parts((yield from read_nodes(ref))):
        owners = yield from ask_all([calls.owner(node.queue, node.job_id) for node in part])
        ours = [node for node, owner in zip(part, owners, strict=True) if owner == ref.flow_id]
        yield from send_all(call for node in ours for call in calls.drop_job(node.queue, node.job_id))
    ms = milliseconds(tombstone)
    yield from ask(records.bury(ref.home, ref.flow_id, ms))
    yield from ask(claim.unclaim_after(ref.home.prefix, ref.flow_id, ms))
    yield from submit.forget(ref, record)  # last: until then it is listed as due
