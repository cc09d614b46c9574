"""Makes the plan of a submission under an existing id, for ``FlowProducer.plan``."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_orchestrate.errors import FlowExpired
from glidemq_orchestrate.flows import backend, compare, generations, removed, submission
from glidemq_orchestrate.flows.backend import Reach, backend_of
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.plan import REMOVED, FlowPlan
from glidemq_orchestrate.flows.status import BROKEN, NodeStatus
from glidemq_orchestrate.wire.call import Op


def plan(prefix: str, flow_id: str, flow: CheckedFlow, reach: Reach) -> Op[FlowPlan]:
    """The plan of ``retry_failed`` with a specification. Changes nothing.

    Raises:
        FlowNotFound: There is no flow with this id.
        FlowExpired: The specification is equal, and the jobs that would rerun were removed.
        FlowConflict: It is a different one that cannot use the path of the flow.
    """
    ref, found = yield from generations.find_place(prefix, flow_id)
    if found.digest == flow.digest and not (yield from submission.is_lost(ref)):
        return (yield from _repair(ref, flow))
    if not backend.may_begin(ref, flow, reach):
        raise (yield from submission.conflict(prefix, flow_id, flow))
    rows, runs, *_ = yield from generations.compared(ref, flow)
    known = {node.name for node in flow.nodes}
    drops = [name for name, row in rows.items() if name not in known and compare.is_of_spec(row)]
    keeps = [node.name for node in flow.nodes if node.name not in runs]
    return FlowPlan(flow_id, ref.generation + 1, keeps, dict(runs), drops)


def _repair(ref: FlowRef, flow: CheckedFlow) -> Op[FlowPlan]:
    """The plan for an equal specification: failed nodes are repaired in place, running ones continue."""
    state = (yield from backend_of(ref).status(ref)).state
    try:
        nodes = yield from backend_of(ref).nodes(ref)
    except FlowExpired:
        if state in BROKEN:
            raise
        nodes = []
    names = [node.name for node in nodes]
    again = (yield from backend_of(ref).retried(ref, nodes)) if state in BROKEN else _open(nodes)
    runs = {node.name: f"was {node.state}" for node in nodes if node.name in again}
    if state in BROKEN:
        runs |= dict.fromkeys(removed.needed_names(nodes, again), REMOVED)
    known = set(names)
    missing = [node.name for node in flow.nodes if node.name not in known]
    if not state.is_terminal or nodes:  # otherwise they have completed and were removed
        runs |= dict.fromkeys(missing, "new")  # the submission will be completed
    keeps = [name for name in [*names, *missing] if name not in runs]
    return FlowPlan(ref.public_id, ref.generation, keeps, runs, [])


def _open(nodes: Sequence[NodeStatus]) -> set[str]:
    return {node.name for node in nodes if not node.state.is_terminal}
