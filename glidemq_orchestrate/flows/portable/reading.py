"""Reads a portable flow: its status, nodes, results and outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glidemq_orchestrate.flows.checked import canonical
from glidemq_orchestrate.flows.definitions import PAGE as PER_TRIP
from glidemq_orchestrate.flows.definitions import Definition, Ran, StoredNodes, own_options
from glidemq_orchestrate.flows.dependencies import UPSTREAM, Policy
from glidemq_orchestrate.flows.generation import FlowRef, expired, no_flow, status_of_record
from glidemq_orchestrate.flows.node_table import (
    GONE,
    REMOVED,
    Row,
    node_status,
    read_results,
    read_rows,
)
from glidemq_orchestrate.flows.portable import records
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.portable.tables import Node, delayed_until, policy, read_nodes, read_policies
from glidemq_orchestrate.flows.status import (
    FlowState,
    FlowStatus,
    NodeStatus,
    raise_if_superseded,
)
from glidemq_orchestrate.jobs.job_hash import end_of_stub
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command, parts
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number


def status(ref: FlowRef) -> Op[FlowStatus]:
    """The status at the last ``advance``."""
    record = yield from record_of(ref)
    return status_of_record(ref.home, ref.flow_id, record.plain())


def record_of(ref: FlowRef) -> Op[Record]:
    """The record of a flow.

    Raises:
        FlowNotFound: There is no record.
    """
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if "name" not in record.fields:
        raise no_flow(ref)
    return record


def unsuperseded(ref: FlowRef) -> Op[Record]:
    """The record of the current generation of a flow.

    Raises:
        FlowNotFound: There is no record.
        Superseded: Another generation has begun.
    """
    record = yield from record_of(ref)
    raise_if_superseded(status_of_record(ref.home, ref.flow_id, record.plain()))
    return record


def living(ref: FlowRef) -> Op[Record]:
    """The record of a flow that still has its jobs.

    Raises:
        FlowNotFound: There is no record.
        Superseded: Another generation has begun.
        FlowExpired: Its jobs were removed.
    """
    record = yield from unsuperseded(ref)
    if record.is_expired:
        raise expired(ref)
    return record


def _nodes(ref: FlowRef) -> Op[list[Node]]:
    yield from living(ref)
    return (yield from read_nodes(ref))


def results(ref: FlowRef) -> Op[tuple[dict[str, Any], list[str]]]:
    """The results of the completed nodes by name, and the nodes whose results were removed.

    How a completely removed job ended is unknown; in a completed flow, it must have completed.
    """
    record = yield from living(ref)
    nodes = yield from read_nodes(ref)
    has_completed = record.state is FlowState.COMPLETED
    removed = [
        node.name
        for node in nodes
        if (node.removed and node.state == "completed") or (not node.state and has_completed)
    ]
    texts = {node.name: node.result for node in nodes if node.state == "completed" and not node.removed}
    return read_results(texts), removed


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Every node, dependencies before dependents."""
    found: list[NodeStatus] = []
    for part in parts((yield from _nodes(ref))):
        reading = [node_status(node.queue, node.job_id, node.name, node.row, GONE) for node in part]
        read = yield from ask_all(reading)
        found += [
            replace(one, ignored=True) if node.is_ignored and one.state is JobState.FAILED else one
            for node, one in zip(part, read, strict=True)
        ]
    return found


def ran(ref: FlowRef) -> Op[dict[str, Ran]]:
    """How each node has run so far, and its definition.

    Raises:
        Superseded: Another generation has begun.
        FlowExpired: Its jobs were removed.
    """
    record = yield from ask(records.record(ref.home, ref.flow_id))
    raise_if_superseded(status_of_record(ref.home, ref.flow_id, record.plain()))
    if record.is_expired:
        raise expired(ref)
    rows, found = (yield from read_rows(ref)), dict[str, Ran]()
    for part in parts(list(rows.items()), PER_TRIP):
        reading = [ran_of_row(ref.home.prefix, row) for _, row in part]
        for (name, _), one in zip(part, (yield from ask_all(reading)), strict=True):
            found[name] = one
    return found


def ranked(ref: FlowRef) -> Op[dict[str, tuple[float, NodeStatus]]]:
    """Every node with its rank, by name."""
    return {node.name: (rank, node) for rank, node in enumerate((yield from nodes(ref)))}


def delayed(ref: FlowRef) -> Op[dict[str, int]]:
    """Nodes that wait only for their own delay, and until when (ms since the epoch)."""
    texts = yield from read_policies(ref)
    if not any(Policy.read(text).delay_ms for text in texts.values()):
        return {}
    record = yield from ask(records.record(ref.home, ref.flow_id))
    return delayed_until((yield from read_nodes(ref)), record.begun_ms) if record.number >= 0 else {}


def retried(ref: FlowRef, nodes: Sequence[NodeStatus]) -> Op[set[str]]:
    """The nodes of an ended flow that a retry reruns: failed, or skipped because of others."""
    del ref
    yield from ()  # no call
    return {
        node.name
        for node in nodes
        if node.state == JobState.FAILED
        or (node.state == JobState.SKIPPED and node.reason.startswith(UPSTREAM))
    }


def stored(ref: FlowRef, record: Mapping[str, str]) -> Op[StoredNodes | None]:
    """Read the tables of a flow; None if not all of it is stored."""
    rows = yield from read_rows(ref)
    if Record.read(record).number < 0 or len(rows) < number(record.get("total")):
        return None
    return StoredNodes(rows, {}, {}, (yield from read_policies(ref)))


def resolved(ref: FlowRef, found: Sequence[NodeStatus]) -> Op[list[NodeStatus]]:
    """The nodes, with the failures that the flow ignores."""
    failed = [node.name for node in found if node.state is JobState.FAILED]
    texts = yield from ask_all([policy(ref.home, ref.flow_id, name) for name in failed])
    ignored = {
        name for name, text in zip(failed, texts, strict=True) if text and Policy.read(text).is_ignored
    }
    return [replace(node, ignored=True) if node.name in ignored else node for node in found]


def ran_of_row(prefix: str, row: Row) -> Call[Ran]:
    """The node of this row in a portable flow."""
    fields = ("state", "gmo:skipped", "data", "opts", "gmo:removed")

    def decode(reply: Any) -> Ran:
        state, skipped, data, options, stub = reply
        if not state and (ended := end_of_stub(stub or "")):
            state = f"{REMOVED}{ended}"
        known = None
        if data is not None and options is not None:
            known = Definition(canonical(data), own_options(options), {})
        return Ran(row, "skipped" if skipped else state or "", "", known)

    return command("HMGET", QueueKeys(prefix, row[1]).job(row[2]), *fields, decode=decode)
