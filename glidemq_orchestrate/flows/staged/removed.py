"""Removed jobs of a flow: which nodes a retry can recreate, and which need a new submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.removed import _FIELDS
from glidemq_orchestrate.flows.staged import calls as staged_calls
from glidemq_orchestrate.flows.staged import stalled
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.job_hash import end_of_stub
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask, ask_all, members
from glidemq_orchestrate.wire.keys import QueueKeys, read_ref


@dataclass(slots=True)
class Removed:
    """The removed jobs among those that a retry must run, and among their dependencies.

    Attributes:
        needed: Refs of completed nodes that must rerun, since their results were removed.
        lost: Ids of jobs removed with their data.
    """

    needed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def find_removed(home: QueueKeys, flow_id: str) -> Op[Removed]:
    """Find the removed jobs in an ended staged flow. Reads the nodes to rerun, with their edges."""
    found, seen, cursor = Removed(), set[str](), "0"
    while True:
        cursor, failed = yield from ask(stalled.retried(home, flow_id, cursor))
        again: Sequence[str] = failed
        while again:  # the dependencies of a removed node may have been removed too
            known = len(found.needed)
            for part in parts(again):
                places = [read_ref(home.prefix, one) for one in part]
                every = yield from ask_all([members(queue.deps(job_id)) for queue, job_id in places])
                refs = {one for some in (part, *every) for one in some} - seen
                seen |= refs
                yield from _sort(home, sorted(refs), found)
            again = found.needed[known:]
        if cursor == "0":
            return found


def _sort(home: QueueKeys, refs: Sequence[str], found: Removed) -> Op[None]:
    for part in parts(refs):
        places = [read_ref(home.prefix, one) for one in part]
        rows = yield from ask_all([job_hash.get_some(*place, _FIELDS, list) for place in places])
        for ref, (_, job_id), (state, stub, is_lost) in zip(part, places, rows, strict=True):
            if is_lost or not (state or stub):
                found.lost.append(job_id)
            elif not state and end_of_stub(stub) == "completed":
                found.needed.append(ref)


def resolved(ref: FlowRef, found: Sequence[NodeStatus]) -> Op[list[NodeStatus]]:
    """The nodes, with ends from the record for completely removed jobs."""
    unknown = [node for node in found if node.removed and node.state is JobState.UNKNOWN and node.job_id]
    ends: dict[str, JobState] = {}
    for part in parts(unknown):
        refs = [f"{QueueKeys(ref.home.prefix, node.queue).base}:{node.job_id}" for node in part]
        are_open, have_failed = yield from ask_all(
            [
                staged_calls.are_open(ref.home, ref.flow_id, refs),
                staged_calls.are_retried(ref.home, ref.flow_id, refs),
            ]
        )
        for node, is_open, has_failed in zip(part, are_open, have_failed, strict=True):
            if not is_open:
                ends[node.name] = JobState.FAILED if has_failed else JobState.COMPLETED
    return [replace(node, state=ends.get(node.name, node.state)) for node in found]
