"""What a submission under an existing id would do: the plan that ``FlowProducer.plan`` returns."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_orchestrate.errors import FlowExpired
from glidemq_orchestrate.flows import backend, compare, generations, removed
from glidemq_orchestrate.flows import record as flow_calls
from glidemq_orchestrate.flows.backend import Reach, backend_of
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.plan import REMOVED, FlowPlan
from glidemq_orchestrate.flows.portable.table import UPSTREAM
from glidemq_orchestrate.flows.portable.trips import parts
from glidemq_orchestrate.flows.ref import BROKEN, FlowRef
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys


def plan(prefix: str, flow_id: str, flow: CheckedFlow, reach: Reach) -> Op[FlowPlan]:
    """What ``retry_failed`` would do with a specification; changes nothing.

    Raises:
        FlowNotFound: There is no flow with this id.
        FlowExpired: The specification is equal, and the jobs that would run again were removed.
        FlowConflict: It is another one that cannot go the path of the flow.
    """
    ref, found = yield from generations.find_place(prefix, flow_id)
    if found.digest == flow.digest and not (yield from backend.is_lost(ref)):
        return (yield from _repair(ref, flow))
    if not backend.may_begin(ref, flow, reach):
        raise (yield from backend.conflict(prefix, flow_id, flow))
    rows, runs, *_ = yield from generations.compared(ref, flow)
    known = {node.name for node in flow.nodes}
    drops = [name for name, row in rows.items() if name not in known and compare.is_of_spec(row)]
    keeps = [node.name for node in flow.nodes if node.name not in runs]
    return FlowPlan(flow_id, ref.generation + 1, keeps, dict(runs), drops)


def _repair(ref: FlowRef, flow: CheckedFlow) -> Op[FlowPlan]:
    """The plan for an equal specification: what is broken is repaired in place, what runs goes on."""
    state = (yield from backend_of(ref).status(ref)).state
    try:
        nodes = yield from backend_of(ref).nodes(ref)
    except FlowExpired:
        if state in BROKEN:
            raise
        nodes = []
    names = [node.name for node in nodes]
    again = (yield from _retried(ref, nodes)) if state in BROKEN else _open(nodes)
    runs = {node.name: f"was {node.state}" for node in nodes if node.name in again}
    if state in BROKEN:
        runs |= dict.fromkeys(removed.needed_names(nodes, again), REMOVED)
    known = set(names)
    missing = [node.name for node in flow.nodes if node.name not in known]
    if not state.is_terminal or nodes:  # else they have completed, and were removed
        runs |= dict.fromkeys(missing, "new")  # the submission is completed
    keeps = [name for name in [*names, *missing] if name not in runs]
    return FlowPlan(ref.public_id, ref.generation, keeps, runs, [])


def _open(nodes: Sequence[NodeStatus]) -> set[str]:
    return {node.name for node in nodes if not node.state.is_terminal}


def _retried(ref: FlowRef, nodes: Sequence[NodeStatus]) -> Op[set[str]]:
    """The nodes of an ended flow that a retry runs again: failed ones, and those skipped because of others.

    A reason that a user gave may read like that of a node that was skipped because of others: on the staged
    path the server knows.
    """
    found = {node.name for node in nodes if node.state == JobState.FAILED}
    skipped = [node for node in nodes if node.state == JobState.SKIPPED and node.reason.startswith(UPSTREAM)]
    if ref.path == "portable":
        return found | {node.name for node in skipped}
    for part in parts(skipped):
        refs = [f"{QueueKeys(ref.home.prefix, node.queue).base}:{node.job_id}" for node in part]
        known = yield from ask(flow_calls.are_retried(ref.home, ref.flow_id, refs))
        found |= {node.name for node, is_retried in zip(part, known, strict=True) if is_retried}
    return found
