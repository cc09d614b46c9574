"""Running again what did not complete in an ended portable flow: each run is a round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from glidemq_orchestrate._ops.flows.portable import owners
from glidemq_orchestrate._ops.flows.portable import submit as portable_submit
from glidemq_orchestrate._ops.flows.portable.advance import advance
from glidemq_orchestrate._ops.flows.portable.reading import living, record_of
from glidemq_orchestrate._ops.flows.portable.table import UPSTREAM, Node, read_nodes
from glidemq_orchestrate._ops.flows.portable.trips import parts, send_fenced
from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._protocol.call import Op, ask
from glidemq_orchestrate._protocol.flows.portable import lists, node_jobs, tables
from glidemq_orchestrate._protocol.flows.portable import record as records
from glidemq_orchestrate._protocol.flows.portable.record import Record
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.spec import FlowState

_UNSUCCESSFUL: Final = (FlowState.FAILED, FlowState.CANCELLED)


def retry_failed(ref: FlowRef, clock: Clock, owner: Owner | None = None) -> Op[FlowState]:
    """Run again the nodes of an ended flow that did not complete. Returns the new state. Repeatable.

    A node whose job was removed cannot run again: it stays failed, and so do its dependents.
    """
    record = yield from living(ref)
    if record.state in _UNSUCCESSFUL and record.end:
        nodes = yield from read_nodes(ref)
        redo = [node for node in nodes if node.state == "failed" or _was_skipped_for_others(node)]
        yield from _begin_again(ref, record, redo, clock, owner)
    return (yield from record_of(ref)).state


def _was_skipped_for_others(node: Node) -> bool:
    """Whether a dependency made it skip, not a decision of its own: then it gets another chance."""
    return node.state == "skipped" and node.reason.startswith(UPSTREAM)


def _begin_again(
    ref: FlowRef, record: Record, redo: Iterable[Node], clock: Clock, owner: Owner | None
) -> Op[None]:
    """Reset the nodes behind the gate of the next round, then begin it.

    A kill in between leaves an ended flow with nodes behind a closed gate: a repeat goes on from there.
    """
    number = record.number + 1
    for part in parts(list(redo)):
        # Another client has begun this round: nodes that it has started must not be reset.
        if (yield from record_of(ref)).number >= number:
            return
        places = [(node.queue, node.job_id, number) for node in part]
        now_ms = clock.now_ms()
        yield from send_fenced(
            (node_jobs.run_again(*place, now_ms), node_jobs.reset(*place)) for place in places
        )
    yield from ask(tables.forget_waiting(ref.home, ref.flow_id))
    yield from ask(lists.expire_never(ref.home, ref.flow_id))
    yield from ask(lists.enlist(ref.home, ref.flow_id, clock.now_ms()))
    if owner is not None:
        yield from owners.own_round(ref, owner, number, clock)
    yield from ask(records.begin(ref.home, ref.flow_id, number, clock.now_ms()))
    # Once more: the client that ended the last round may have delisted the flow in between.
    yield from ask(lists.enlist(ref.home, ref.flow_id, clock.now_ms()))
    yield from living(ref)
    yield from portable_submit.relist(ref)
    yield from advance(ref, clock)
