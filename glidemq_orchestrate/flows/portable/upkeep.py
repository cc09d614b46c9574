"""The upkeep of portable flows by workers and supervisors.

A supervisor sweeps a home queue: it advances its flows, and removes abandoned and expired ones. A worker
reads the inputs of a node and notifies its dependents in other queues; the server notifies those in the same
queue. ``advance`` completes what a kill interrupted, and notifies the dependents of nodes with many of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate.errors import TransportError
from glidemq_orchestrate.flows.dependencies import EARLY, ORDINARY, Policy
from glidemq_orchestrate.flows.generation import TOMBSTONE, FlowRef
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.flows.node_table import Inputs
from glidemq_orchestrate.flows.portable import node_jobs, owners, records, succession, tables
from glidemq_orchestrate.flows.portable.advance import advance, close, is_running
from glidemq_orchestrate.flows.portable.node_jobs import PAGE, add_deps, gate
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.portable.staging import discard, drop_own, forget, remove
from glidemq_orchestrate.flows.portable.tables import read_nodes
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.changes import complete_child
from glidemq_orchestrate.wire import keys
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, members, members_page, parts, send_all
from glidemq_orchestrate.wire.keys import QueueKeys, is_node_id

ABANDONED_MS: Final = 15 * 60_000
UNSETTLED_MS: Final = 60_000
PER_SWEEP: Final = 100
BUDGET_MS: Final = 2_000


def sweep(home: QueueKeys, clock: Clock, *, tombstone: timedelta = TOMBSTONE) -> Op[None]:
    """Advance the running portable flows of a home; remove aborted flows and those past their retention.

    Handles up to 100 flows of each kind in about two seconds, least recently checked first. Idempotent, also
    concurrently. An error with one flow does not delay the others: the first error is raised at the end.
    """
    refused: Exception | None = None
    now_ms = clock.now_ms()
    reading: list[Call[Any]] = [
        records.unsettled(home, now_ms - UNSETTLED_MS, PER_SWEEP),
        records.listed(home, PER_SWEEP),
        records.expiring(home, now_ms, PER_SWEEP),
    ]
    left, running, expired = yield from ask_all(reading)
    for mark, flow_id in left.items():  # the client that delisted it was killed: the next sweep checks it
        yield from ask_all([records.enlist(home, flow_id, now_ms), records.delisted(home, mark)])
    todo = [_check(FlowRef(home, flow_id, "portable"), clock) for flow_id in running]
    todo += [_expire(FlowRef(home, flow_id, "portable"), clock, tombstone) for flow_id in expired]
    until = clock.monotonic_ms() + BUDGET_MS
    for step in todo:
        if clock.monotonic_ms() > until:
            step.close()
            continue
        try:
            yield from step
        except TransportError:
            raise
        except Exception as exc:  # noqa: BLE001  raised at the end
            refused = refused or exc
    if refused is not None:
        raise refused


def _check(ref: FlowRef, clock: Clock) -> Op[None]:
    """Check the record of one listed flow, and do what is due."""
    yield from ask(records.requeue(ref.home, ref.flow_id, clock.now_ms()))
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if is_running(record) or (record.note and not record.is_expired):
        yield from advance(ref, clock)
    elif record.is_expired:  # another client that found the tombstone may have listed it late
        yield from ask(records.expire_at(ref.home, ref.flow_id, clock.now_ms()))
        _, mark = yield from records.delist(ref.home, ref.flow_id, clock.now_ms())
        yield from ask(records.delisted(ref.home, mark))
    elif record.end:
        yield from ask(
            records.erase(ref.home, ref.flow_id, "listed")
        )  # another client may have listed it late
        yield from close(ref, clock)
    elif not record.fields:
        now, mark = yield from records.delist(ref.home, ref.flow_id, clock.now_ms())
        if now.fields:  # a submission has just listed it, and written its record
            yield from ask(records.enlist(ref.home, ref.flow_id, clock.now_ms()))
        yield from ask(records.delisted(ref.home, mark))
    elif record.is_dropped:
        yield from remove(ref)
    elif record.is_superseded or _last_heartbeat_ms(record) < clock.now_ms() - ABANDONED_MS:
        yield from discard(ref)


def _last_heartbeat_ms(record: Record) -> int:
    return int(record.fields.get("heard_at", record.fields.get("created_at", 0)))


def _expire(ref: FlowRef, clock: Clock, tombstone: timedelta) -> Op[None]:
    """Remove the jobs of a flow after its retention; its record stays as a tombstone. Idempotent.

    Jobs of a superseded generation are removed too; its record stays as long as the flow.
    """
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if record.is_dropped:
        yield from remove(ref)
        return
    if record.fields and not record.is_expired:
        if not record.end:
            # The client that ends it may have just scheduled its removal: the next sweep does so again.
            enlisting = records.enlist(ref.home, ref.flow_id, clock.now_ms())
            yield from ask_all([enlisting, records.expire_never(ref.home, ref.flow_id), enlisting])
            return
        yield from ask(records.remove(ref.home, ref.flow_id, record.number + 1, clock.now_ms()))
        record = yield from ask(records.record(ref.home, ref.flow_id))
        if not record.is_expired:  # a restart came first
            return
    if record.fields:
        yield from ask(records.write_once(ref.home, ref.flow_id, "expired_at", clock.now_ms()))
    for part in parts((yield from read_nodes(ref))):
        yield from drop_own(ref, [(node.queue, node.job_id) for node in part])
    if record.fields and not record.is_superseded:
        yield from succession.end_with(ref, milliseconds(tombstone))
    yield from owners.forget(ref.home, record, clock)
    yield from forget(ref, record)  # last, so that it stays listed as due until then


def inputs(queue: QueueKeys, attempt: Attempt) -> Op[Inputs]:
    """Read the inputs of a node from its dependencies, in any slot."""
    found, removed, has_open = dict[str, str](), list[str](), False
    job_id, cursor = attempt.job_id, "0"
    while True:
        cursor, refs = yield from ask(members_page(queue.deps(job_id), cursor, PAGE))
        for part in parts(refs):
            places = [keys.read_ref(queue.prefix, ref) for ref in part if not keys.is_gate(ref)]
            rows = yield from ask_all([node_jobs.result(*place) for place in places])
            found.update({row.name: row.text for row in rows if row and row.text is not None})
            missing = [
                (place[1], row) for place, row in zip(places, rows, strict=True) if row and row.text is None
            ]
            removed += [job for job, row in missing if not row.is_open and is_node_id(job_id, job)]
            has_open = has_open or any(row.is_open for _, row in missing)
        if cursor == "0":
            return Inputs(found, removed, has_open)


def hold(queue: QueueKeys, attempt: Attempt) -> Op[bool]:
    """Put a fetched node behind the gate of the next round, since its dependencies rerun.

    Returns False, and does nothing, if its rule lets it run before all dependencies have ended. Otherwise the
    caller must then let the job wait for its dependencies. Idempotent.
    """
    home, policy = yield from _policy(queue, attempt.stored_flow, attempt.node or "")
    if home is None or policy.rule in EARLY:
        return False
    record = yield from ask(records.record(home, attempt.stored_flow))
    number = record.number + bool(record.note)
    yield from ask(add_deps(queue, attempt.job_id, [gate(queue, number)]))
    return True


def queue_timeout(queue: QueueKeys, attempt: Attempt) -> Op[int]:
    """How many ms after it may run a node fails if no worker has started it; 0 for no limit."""
    _, policy = yield from _policy(queue, *(attempt.options.portable or ("", "")))
    return policy.queue_timeout_ms or 0


def _policy(queue: QueueKeys, flow_id: str, node: str) -> Op[tuple[QueueKeys | None, Policy]]:
    """The home of a flow, None if its id is unclaimed; and the policy of a node."""
    home = yield from ask(home_of(queue.prefix, flow_id))
    if home is None:
        return None, ORDINARY
    text = yield from ask(tables.policy(home, flow_id, node))
    return home, Policy.read(text) if text else ORDINARY


def carry(queue: QueueKeys, completed: Sequence[str], moved: Collection[str], clock: Clock) -> Op[None]:
    """Notify dependents of completed jobs in other queues; advance the flows if that is not enough."""
    dependents = yield from ask_all([members(queue.parents(job_id)) for job_id in completed])
    notifying = [
        complete_child(other, parent, f"{queue.base}:{job_id}")
        for job_id, refs in zip(completed, dependents, strict=True)
        for other, parent in (keys.read_ref(queue.prefix, ref) for ref in refs)
        if other != queue
    ]
    yield from send_all(notifying)
    for flow_id in moved:
        home = yield from ask(home_of(queue.prefix, flow_id))
        if home is not None:
            yield from advance(FlowRef(home, flow_id, "portable"), clock)


def removal_marks(queue: QueueKeys, nodes: Sequence[str]) -> Op[dict[str, str]]:
    """The nodes whose flows have ended, each with its argument for ``gmo_remove_jobs``."""
    owners = yield from ask_all([node_jobs.owner(queue, one) for one in nodes])
    marks: dict[str, str] = {}
    for flow_id in {*owners}:
        home = yield from ask(home_of(queue.prefix, flow_id))
        marks[flow_id] = "-"
        if home is not None:
            record = yield from ask(records.record(home, flow_id))
            marks[flow_id] = "!" if record.state.is_terminal else ""
    flows = dict(zip(nodes, owners, strict=True))
    return {job_id: marks[flow_id] for job_id, flow_id in flows.items() if marks[flow_id]}
