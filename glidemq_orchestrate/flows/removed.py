"""Nodes whose jobs were removed: which of them a retry makes again, and which only a specification can.

What our functions remove of a node leaves its definition, so that the flow can run it again. glide-mq's own
functions leave nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from glidemq_orchestrate.errors import NodeNotRepeatable
from glidemq_orchestrate.flows import record as calls
from glidemq_orchestrate.flows import stalled
from glidemq_orchestrate.flows.portable.gates import read_ref
from glidemq_orchestrate.flows.portable.trips import parts
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.job_hash import end_of_stub
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.commands import members
from glidemq_orchestrate.wire.keys import QueueKeys

_NAMED: Final = 3
_FIELDS: Final[tuple[JobField, ...]] = ("state", "gmo:removed", "gmo:gone")


def resolved(home: QueueKeys, flow_id: str, found: Sequence[NodeStatus]) -> Op[list[NodeStatus]]:
    """Nodes with the end that the record has of those of whose jobs nothing is left."""
    unknown = [node for node in found if node.removed and node.state is JobState.UNKNOWN and node.job_id]
    ends: dict[str, JobState] = {}
    for part in parts(unknown):
        refs = [f"{QueueKeys(home.prefix, node.queue).base}:{node.job_id}" for node in part]
        are_open, have_failed = yield from ask_all(
            [calls.are_open(home, flow_id, refs), calls.are_retried(home, flow_id, refs)]
        )
        for node, is_open, has_failed in zip(part, are_open, have_failed, strict=True):
            if not is_open:
                ends[node.name] = JobState.FAILED if has_failed else JobState.COMPLETED
    return [replace(node, state=ends.get(node.name, node.state)) for node in found]


class Removable(Protocol):
    """A node of either path, as far as it counts here."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> Sequence[str]: ...
    @property
    def state(self) -> str: ...
    @property
    def removed(self) -> bool: ...


@dataclass(slots=True)
class Removed:
    """What was removed of the jobs that a retry has to run, and of those whose results they read.

    Attributes:
        needed: Refs of completed nodes that have to run again, as their results are gone.
        lost: Ids of jobs of which nothing is left.
    """

    needed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def look(home: QueueKeys, flow_id: str) -> Op[Removed]:
    """What was removed in a staged flow that has ended. It reads what runs again, with its edges."""
    found, seen, cursor = Removed(), set[str](), "0"
    while True:
        cursor, failed = yield from ask(stalled.retried(home, flow_id, cursor))
        again: Sequence[str] = failed
        while again:  # what a removed node reads may have been removed too
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


def needed_names(nodes: Sequence[Removable], again: Collection[str]) -> set[str]:
    """The completed nodes whose results were removed and that a run of ``again`` needs, directly or not.

    ``nodes``: all of the flow, dependencies before dependents.
    """
    found, read = set[str](), set[str]()
    for node in reversed(nodes):
        is_gone = node.removed and node.state == JobState.COMPLETED
        if node.name in again or (is_gone and node.name in read):
            read.update(node.after)
            found.add(node.name)
    return found.difference(again)


def _sort(home: QueueKeys, refs: Sequence[str], found: Removed) -> Op[None]:
    for part in parts(refs):
        places = [read_ref(home.prefix, one) for one in part]
        rows = yield from ask_all([job_hash.get_some(*place, _FIELDS, list) for place in places])
        for ref, (_, job_id), (state, stub, is_lost) in zip(part, places, rows, strict=True):
            if is_lost or not (state or stub):
                found.lost.append(job_id)
            elif not state and end_of_stub(stub) == "completed":
                found.needed.append(ref)


def refuse_lost(flow_id: str, lost: Sequence[str]) -> None:
    """Refuse a retry that cannot make every node again that it has to run.

    Raises:
        NodeNotRepeatable: That is so; nothing was changed.
    """
    if lost:
        some = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        raise NodeNotRepeatable(
            f"flow {flow_id} cannot be retried: another client has removed job {some}, and its data with it. "
            'Submit the specification again with on_existing="retry_failed"'
        )
