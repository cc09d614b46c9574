"""Reads single nodes of a flow by name.

Each read also checks the record, in the same trip. If another generation has begun, it raises ``Superseded``
rather than return an old result or report a missing node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowExpired,
    NodeNotFound,
    ResultRemoved,
    Superseded,
)
from glidemq_orchestrate.flows import watch as calls
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import job_now, read_results, read_row, read_rows, some_rows
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.jobs.bounds import whole
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.output import LogRange, read_logs
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, Op, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

PER_TRIP: Final = 200
T = TypeVar("T")


def named(ref: FlowRef, names: Iterable[str]) -> Op[list[NodeStatus]]:
    """The current nodes with these names, in the same order.

    Raises:
        NodeNotFound: One of the names does not exist.
        Superseded: Another generation has begun.
        FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
    """
    found: list[NodeStatus] = []
    for part in _parts(names):
        asking_rows = [
            some_rows(ref.home, ref.flow_id, part),
            calls.record_marks(ref.home, ref.flow_id),
        ]
        rows, marks = yield from ask_all(asking_rows)
        _check(ref, marks)
        if missing := [name for name, row in zip(part, rows, strict=True) if row is None]:
            yield from backend_of(ref).status(ref)  # raises if the flow no longer exists
            raise NodeNotFound(f"flow {ref.public_id} has no node {', '.join(missing[:5])}")
        reading = [
            calls.node_of_row(ref.home.prefix, name, row, backend_of(ref).missing)
            for name, row in zip(part, rows, strict=True)
            if row is not None
        ]
        found += yield from backend_of(ref).resolved(ref, (yield from _current(ref, reading)))
    return found


def results(ref: FlowRef, names: Iterable[str]) -> Op[dict[str, Any]]:
    """The results of the completed nodes among these. Raises like ``named``, and ``ResultRemoved``."""
    nodes = [node for node in (yield from named(ref, names)) if node.state != JobState.SKIPPED]
    if removed := [node.name for node in nodes if node.removed and node.state == JobState.COMPLETED]:
        raise ResultRemoved(f"flow {ref.public_id}", removed)
    texts: dict[str, str] = {}
    for first in range(0, len(nodes), PER_TRIP):
        part = nodes[first : first + PER_TRIP]
        asking = [job_now(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in part]
        for node, (state, _, text, *_) in zip(part, (yield from _current(ref, asking)), strict=True):
            if state == "completed":
                texts[node.name] = text
    return read_results(texts)


def logs(ref: FlowRef, after: Mapping[str, int], limit: int) -> Op[dict[str, JobLogs]]:
    """Log lines of these nodes. Raises like ``named``."""
    whole("limit", limit, 1, error=ConfigurationError)
    found: dict[str, JobLogs] = {}
    for part in _parts(after):
        rows, marks = yield from ask_all(
            [some_rows(ref.home, ref.flow_id, part), calls.record_marks(ref.home, ref.flow_id)]
        )
        _check(ref, marks)
        if missing := [name for name, row in zip(part, rows, strict=True) if row is None]:
            yield from backend_of(ref).status(ref)  # raises if the flow no longer exists
            raise NodeNotFound(f"flow {ref.public_id} has no node {', '.join(missing[:5])}")
        ranges = []
        for name, row in zip(part, rows, strict=True):
            _, queue, job_id, *_ = read_row(row or "") or (0, "", "")  # for a broken row
            ranges.append(LogRange(QueueKeys(ref.home.prefix, queue), job_id, after[name], limit))
        read = yield from read_logs(ranges, partial(_current, ref))
        found |= dict(zip(part, read, strict=True))
    return found


def leaves(ref: FlowRef) -> Op[list[str]]:
    """The nodes without dependents, dependencies before dependents."""
    rows = yield from read_rows(ref)
    yield from _current(ref, ())
    if not rows:
        yield from backend_of(ref).status(ref)  # raises if the flow no longer exists
    inner = {name for row in rows.values() for name in row[4:]}
    return [name for name in rows if name not in inner]


def _current(ref: FlowRef, asking: Sequence[Call[T]]) -> Op[list[T]]:
    """The replies to these calls, provided that the flow still has its jobs afterwards."""
    both: list[Call[Any]] = [*asking, calls.record_marks(ref.home, ref.flow_id)]
    *found, marks = yield from ask_all(both)
    _check(ref, marks)
    return found


def _check(ref: FlowRef, marks: Sequence[str | None]) -> None:
    """Refuse to read a superseded generation, or one whose jobs were removed."""
    superseded, expired = marks
    if superseded is not None:
        raise Superseded(
            f"generation {ref.generation} of flow {ref.public_id} was superseded by generation {superseded}"
        )
    if expired is not None:
        raise FlowExpired(f"the jobs of flow {ref.public_id} were removed after its retention")


def _parts(names: Iterable[str]) -> Iterator[Sequence[str]]:
    if isinstance(names, str):
        raise ConfigurationError(f"names must be a list of node names, got the text {names!r}")
    unique = list(dict.fromkeys(names))
    for first in range(0, len(unique), PER_TRIP):
        yield unique[first : first + PER_TRIP]
