"""The plan of a submission under an existing id: what it would rerun, and what it would keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from glidemq_orchestrate.errors import FlowConflict, FlowExpired, GlideMQError
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.backend import Reach, backend_of
from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode
from glidemq_orchestrate.flows.definitions import needed_names
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.home import id_conflict
from glidemq_orchestrate.flows.index import find_flow, find_ref
from glidemq_orchestrate.flows.node_table import Row
from glidemq_orchestrate.flows.placement import Spread, in_shard
from glidemq_orchestrate.flows.status import BROKEN, FlowState, NodeStatus
from glidemq_orchestrate.flows.stored_spec import changes, is_of_spec, node_differences, setting_differences
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.wire.call import Op

REMOVED: Final = "its result was removed"


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """What ``submit(..., on_existing="retry_failed")`` would do with the nodes of a flow.

    Attributes:
        flow_id: The flow.
        generation: The generation in which the nodes would run: the current one if the specification is
            equal, else the next.
        keeps: The nodes that keep their results. If the specification is equal, all unchanged nodes,
            including skipped ones and those that other nodes have added.
        runs: The nodes that would run if their rules allow it, each with the reason: ``new``, ``changed:
            data, after``, ``was failed``, ``its result was removed``, ``adds nodes``, or ``follows NODE``. If
            the flow still runs, also its unended nodes: ``was waiting``.
        drops: The nodes that the specification no longer has.
    """

    flow_id: str
    generation: int
    keeps: Sequence[str]
    runs: Mapping[str, str]
    drops: Sequence[str]


@dataclass(frozen=True, slots=True)
class Done:
    """How a node has run so far: its state, and whether it added nodes to the flow."""

    state: str
    has_grown: bool = False


def reasons(
    nodes: Sequence[CheckedNode], done: Mapping[str, Done], changed: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Why nodes have to run; a node without a reason has completed with the same specification.

    Args:
        nodes: In topological order.
        done: How they have run.
        changed: How they differ from the nodes of the flow.
    """
    found: dict[str, str] = {}
    for node in nodes:
        was = done.get(node.name)
        if was is None:
            found[node.name] = "new"
        elif node.name in changed:
            found[node.name] = f"changed: {', '.join(changed[node.name])}"
        elif was.state == "removed-completed":
            found[node.name] = REMOVED
        elif was.state != "completed":
            found[node.name] = f"was {was.state.removeprefix('removed-')}"
        elif was.has_grown:  # the nodes that it added are not in the specification: it must add them again
            found[node.name] = "adds nodes"
        elif before := next((name for name in node.after if name in found), None):
            found[node.name] = f"follows {before}"
    return found


def with_kept_edges(
    nodes: Sequence[CheckedNode], kept: Collection[str], before: Mapping[str, Iterable[str]]
) -> frozenset[str]:
    """The kept nodes whose dependents are the same as before and are all kept too.

    Args:
        nodes: The specification.
        kept: The nodes that keep their results.
        before: The old dependencies of each node of the flow, including removed nodes.
    """
    followed: dict[str, set[str]] = defaultdict(set)
    for name, after in before.items():
        for one in after:
            followed[one].add(name)
    names = {node.name for node in nodes} & set(kept)
    same = (node.name for node in nodes if set(node.dependents) == followed.get(node.name, set()))
    return frozenset(name for name in same if name in names and followed.get(name, set()) <= names)


class Compared(NamedTuple):
    """The comparison of a specification with a flow; see ``compared``."""

    rows: Mapping[str, Row]
    runs: Mapping[str, str]
    carried: Mapping[str, str]
    edges_kept: frozenset[str]


def compared(ref: FlowRef, flow: CheckedFlow, again: Collection[str] = ()) -> Op[Compared]:
    """Why nodes of a specification have to run, and the job ids of the others.

    Also, which of the others keep their edges. ``again``: nodes that run in any case.
    """
    try:
        found = yield from backend_of(ref).ran(ref)
    except FlowExpired:  # there is nothing to carry over
        found = {}
    rows = {name: ran.row for name, ran in found.items()}
    growers = {ran.grown_by for ran in found.values()}
    done = {name: Done(ran.state, ran.row[2] in growers) for name, ran in found.items()}
    known = {name: ran.definition for name, ran in found.items()}
    changed = yield from changes(ref, flow, rows, shaping=True, known=known)
    changed |= dict.fromkeys(again, ("requested",))
    runs = reasons(flow.nodes, done, changed)
    kept = {node.name: rows[node.name][2] for node in flow.nodes if node.name not in runs}
    return Compared(
        rows, runs, kept, with_kept_edges(flow.nodes, kept, {name: row[4:] for name, row in rows.items()})
    )


def is_lost(ref: FlowRef) -> Op[bool]:
    """Whether a failed flow cannot be retried, since jobs were removed with their data."""
    backend = backend_of(ref)
    has_failed = (yield from backend.status(ref)).state in BROKEN
    return has_failed and bool((yield from backend.lost(ref)))


def explain_conflict(prefix: str, flow_id: str, flow: CheckedFlow) -> Op[FlowConflict]:
    """The error with the differences between the flow with this id and a specification."""
    try:
        ref = yield from find_ref(prefix, flow_id)
        if (yield from backend_of(ref).status(ref)).state is FlowState.STAGING:
            return id_conflict(flow_id)
        return id_conflict(
            flow_id, (yield from node_differences(ref, flow)), (yield from setting_differences(ref, flow))
        )
    except GlideMQError:  # for example, it was removed
        return id_conflict(flow_id)


def plan_submission(
    prefix: str, flow_id: str, flow: CheckedFlow, reach: Reach, spread: Spread
) -> Op[FlowPlan]:
    """The plan of ``retry_failed`` with a specification, and the shards of its queues. Changes nothing.

    Raises:
        FlowNotFound: There is no flow with this id.
        FlowExpired: The specification is equal, and the jobs that would rerun were removed.
        FlowConflict: It is a different one that cannot use the path of the flow.
    """
    ref, found = yield from find_flow(prefix, flow_id)
    flow = in_shard(flow, spread, split_shard(ref.home.queue)[1])
    if found.digest == flow.digest and not (yield from is_lost(ref)):
        return (yield from _repair(ref, flow))
    backend.check_path(ref, flow, reach)
    rows, runs, *_ = yield from compared(ref, flow)
    known = {node.name for node in flow.nodes}
    drops = [name for name, row in rows.items() if name not in known and is_of_spec(row)]
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
        runs |= dict.fromkeys(needed_names(nodes, again), REMOVED)
    known = set(names)
    missing = [node.name for node in flow.nodes if node.name not in known]
    if not state.is_terminal or nodes:  # otherwise they have completed and were removed
        runs |= dict.fromkeys(missing, "new")  # the submission will be completed
    keeps = [name for name in [*names, *missing] if name not in runs]
    return FlowPlan(ref.public_id, ref.generation, keeps, runs, [])


def _open(nodes: Sequence[NodeStatus]) -> set[str]:
    return {node.name for node in nodes if not node.state.is_terminal}
