"""The outcome of a flow: the results of its nodes, and its failures."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate.errors import ResultRemoved
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.dependencies import UPSTREAM
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import failed_node
from glidemq_orchestrate.flows.status import FlowOutcome, FlowState, FlowStatus
from glidemq_orchestrate.wire.call import Op


def results(ref: FlowRef) -> Op[dict[str, Any]]:
    """Read the result of every completed node by name.

    Raises:
        ResultRemoved: Some were removed.
    """
    values, removed = yield from backend_of(ref).results(ref)
    if removed:
        raise ResultRemoved(f"flow {ref.public_id}", removed)
    return values


def outcome(ref: FlowRef, status: FlowStatus) -> Op[FlowOutcome]:
    """Read the results, and the failures: causes, ignored ones, consequences.

    Raises:
        ResultRemoved: The flow has completed, and results were removed.
    """
    values, removed = yield from backend_of(ref).results(ref)
    if removed and status.state is FlowState.COMPLETED:
        raise ResultRemoved(f"flow {ref.public_id}", removed)
    failed = []
    if status.failed:
        failed = [node for node in (yield from backend_of(ref).nodes(ref)) if node.state == "failed"]
        failed.sort(key=lambda node: (node.reason.startswith(UPSTREAM), node.ignored))
    return FlowOutcome(
        status=status, results=values, failed=[failed_node(node) for node in failed], removed=removed
    )
