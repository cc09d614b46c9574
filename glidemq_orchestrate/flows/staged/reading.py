"""Reads a flow: its status, nodes, results and outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glidemq_orchestrate.errors import (
    FlowNotFound,
    ResultRemoved,
)
from glidemq_orchestrate.flows.definitions import Manner, Ran, StoredNodes
from glidemq_orchestrate.flows.dependencies import UPSTREAM
from glidemq_orchestrate.flows.generation import FlowRef, flow_status
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.flows.node_table import Row, failed_node, flow_nodes, flow_results, read_results
from glidemq_orchestrate.flows.staged import calls as staged_calls
from glidemq_orchestrate.flows.staged import removed as removed_ops
from glidemq_orchestrate.flows.status import FlowOutcome, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number


def find(prefix: str, flow_id: str) -> Op[FlowRef]:
    """The reference to the generation with this stored id."""
    home = yield from ask(home_of(prefix, flow_id))
    if home is None:
        raise FlowNotFound(f"no flow {flow_id} on this server")
    return FlowRef(QueueKeys(prefix, home), flow_id)


def status(ref: FlowRef) -> Op[FlowStatus]:
    """Read the record."""
    return (yield from ask(flow_status(ref.home, ref.flow_id)))


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Read every node, dependencies before dependents."""
    found = yield from ranked(ref)
    return [node for _, node in sorted(found.values(), key=lambda item: item[0])]


def ranked(ref: FlowRef) -> Op[dict[str, tuple[float, NodeStatus]]]:
    """Read every node with its rank, by name."""
    found: dict[str, tuple[float, NodeStatus]] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(flow_nodes(ref.home, ref.flow_id, cursor))
        found.update((node.name, (rank, node)) for rank, node in page)
        if cursor == "0":
            return found


def results(ref: FlowRef) -> Op[dict[str, Any]]:
    """Read the result of every completed node by name.

    Raises:
        ResultRemoved: Some were removed.
    """
    values, removed = yield from _results(ref)
    if removed:
        raise ResultRemoved(f"flow {ref.public_id}", removed)
    return values


def _results(ref: FlowRef) -> Op[tuple[dict[str, Any], list[str]]]:
    texts: dict[str, str] = {}
    removed: set[str] = set()
    cursor = "0"
    while True:
        cursor, page, some = yield from ask(flow_results(ref.home, ref.flow_id, cursor))
        texts.update(page)
        removed.update(some)
        if cursor == "0":
            return read_results(texts), sorted(removed)


def outcome(ref: FlowRef, ended: FlowStatus) -> Op[FlowOutcome]:
    """Read results and failures of a flow that has ended.

    Raises:
        ResultRemoved: The flow has completed, and results were removed.
    """
    values, removed = yield from _results(ref)
    if removed and ended.state is FlowState.COMPLETED:
        raise ResultRemoved(f"flow {ref.public_id}", removed)
    failed = []
    if ended.failed:
        broken = [node for node in (yield from nodes(ref)) if node.state == "failed"]
        broken.sort(key=lambda node: node.reason.startswith("upstream failed: "))
        failed = [failed_node(node) for node in broken]
    return FlowOutcome(status=ended, results=values, failed=failed, removed=removed)


def lost(ref: FlowRef) -> Op[list[str]]:
    """The jobs that a retry must run but that were removed with their data."""
    return (yield from removed_ops.find_removed(ref.home, ref.flow_id)).lost


def ran(ref: FlowRef) -> Op[dict[str, Ran]]:
    """Read how each node has run, and its definition."""
    found: dict[str, Ran] = {}
    cursor = ""
    while cursor != "0":
        cursor, page = yield from ask(staged_calls.ran_page(ref.home, ref.flow_id, cursor or "0"))
        found |= page
    return found


def retried(ref: FlowRef, nodes: Sequence[NodeStatus]) -> Op[set[str]]:
    """The nodes of an ended flow that a retry reruns: failed ones, and those skipped because of others.

    The server decides, since a user's reason may look like that of a node skipped because of others.
    """
    found = {node.name for node in nodes if node.state == JobState.FAILED}
    skipped = [node for node in nodes if node.state == JobState.SKIPPED and node.reason.startswith(UPSTREAM)]
    for part in parts(skipped):
        refs = [f"{QueueKeys(ref.home.prefix, node.queue).base}:{node.job_id}" for node in part]
        known = yield from ask(staged_calls.are_retried(ref.home, ref.flow_id, refs))
        found |= {node.name for node, is_retried in zip(part, known, strict=True) if is_retried}
    return found


def read_record(fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields unchanged."""
    return fields


def policies(ref: FlowRef) -> Op[dict[str, str] | None]:
    """None: the jobs have them."""
    del ref
    yield from ()  # no call
    return None


def delayed(ref: FlowRef) -> Op[dict[str, int]]:
    """Empty: the jobs have the delays of their nodes."""
    del ref
    yield from ()  # no call
    return {}


def stored(ref: FlowRef, record: Mapping[str, str]) -> Op[StoredNodes | None]:
    """Read the definitions of the nodes of a flow; None if not all of them are stored.

    For a large flow the number of objects dominates the cost, so there is no object per node here.
    """
    rows: dict[str, Row] = {}
    data: dict[str, str] = {}
    manners: dict[str, Manner] = {}
    cursor = ""
    while cursor != "0":
        cursor, page = yield from ask(staged_calls.works_page(ref.home, ref.flow_id, cursor or "0"))
        for name, (row, work) in page.items():
            rows[name] = row
            if work is not None:
                data[name], manners[name] = work
    if len(rows) < number(record.get("total")):
        return None
    return StoredNodes(dict(sorted(rows.items(), key=lambda item: item[1][0])), data, manners)
