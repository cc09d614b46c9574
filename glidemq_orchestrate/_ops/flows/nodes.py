"""Single nodes of a flow by name, for flows of both paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from glidemq_orchestrate._ops.flows.backend import backend_of
from glidemq_orchestrate._ops.flows.portable.table import GONE, read_rows
from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._protocol.call import Op, ask, ask_all
from glidemq_orchestrate._protocol.flows import nodes as node_calls
from glidemq_orchestrate._protocol.flows import watch as calls
from glidemq_orchestrate._protocol.flows.portable import node_jobs
from glidemq_orchestrate._protocol.flows.stalled import node_table
from glidemq_orchestrate.errors import ConfigurationError, NodeNotFound
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.keys import QueueKeys

PER_TRIP: Final = 200


def named(ref: FlowRef, names: Iterable[str]) -> Op[list[NodeStatus]]:
    """The current nodes of these names, in the order of the names."""
    found: list[NodeStatus] = []
    for part in _parts(names):
        rows = yield from ask(calls.rows(ref.home, ref.flow_id, part))
        if missing := [name for name, row in zip(part, rows, strict=True) if row is None]:
            yield from _check_kept(ref)
            raise NodeNotFound(f"flow {ref.public_id} has no node {', '.join(missing[:5])}")
        reading = [
            calls.node_of_row(ref.home.prefix, name, row, GONE if ref.path == "portable" else "")
            for name, row in zip(part, rows, strict=True)
            if row is not None
        ]
        found += yield from ask_all(reading)
    return found


def results(ref: FlowRef, names: Iterable[str]) -> Op[dict[str, Any]]:
    """The results of the completed ones among these nodes."""
    nodes = [node for node in (yield from named(ref, names)) if node.state != JobState.SKIPPED]
    texts: dict[str, str] = {}
    for first in range(0, len(nodes), PER_TRIP):
        part = nodes[first : first + PER_TRIP]
        asking = [node_jobs.job(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in part]
        for node, (state, _, text, *_) in zip(part, (yield from ask_all(asking)), strict=True):
            if state == "completed":
                texts[node.name] = text
    return node_calls.read_results(texts)


def leaves(ref: FlowRef) -> Op[list[str]]:
    """The nodes that no other waits for, dependencies before dependents; reads no job."""
    rows = yield from read_rows(ref)
    if not rows:
        yield from _check_kept(ref)
    inner = {name for row in rows.values() for name in row[4:]}
    return [name for name in rows if name not in inner]


def _check_kept(ref: FlowRef) -> Op[None]:
    """Raise if the flow no longer exists, or its jobs were removed."""
    yield from backend_of(ref).status(ref)
    _, page = yield from ask(node_table(ref.home, ref.flow_id, "0"))
    if not page:
        yield from backend_of(ref).nodes(ref)


def _parts(names: Iterable[str]) -> Iterator[Sequence[str]]:
    if isinstance(names, str):
        raise ConfigurationError(f"names must be a list of node names, got the text {names!r}")
    unique = list(dict.fromkeys(names))
    for first in range(0, len(unique), PER_TRIP):
        yield unique[first : first + PER_TRIP]
