"""Single nodes of a flow: reads and selects them.

Each read also checks the record, in the same trip. If another generation has begun, it raises ``Superseded``
rather than return an old result or report a missing node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    NodeNotFound,
    ResultRemoved,
    Superseded,
)
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef, expired, record_marks
from glidemq_orchestrate.flows.node_table import (
    job_now,
    node_of_row,
    read_results,
    read_row,
    read_rows,
    some_rows,
)
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.output import LogRange, read_logs
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, Op, ask_all, parts
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")


def named_nodes(ref: FlowRef, names: Iterable[str]) -> Op[list[NodeStatus]]:
    """The current nodes with these names, in the same order.

    Raises:
        NodeNotFound: One of the names does not exist.
        Superseded: Another generation has begun.
        FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
    """
    found: list[NodeStatus] = []
    for part in _parts(names):
        rows = yield from _rows(ref, part)
        reading = [
            node_of_row(ref.home.prefix, name, row, backend_of(ref).missing) for name, row in rows.items()
        ]
        found += yield from backend_of(ref).resolved(ref, (yield from _current(ref, reading)))
    return found


def node_results(ref: FlowRef, names: Iterable[str]) -> Op[dict[str, Any]]:
    """The results of the completed nodes among these. Raises like ``named_nodes``, and ``ResultRemoved``."""
    nodes = [node for node in (yield from named_nodes(ref, names)) if node.state != JobState.SKIPPED]
    if removed := [node.name for node in nodes if node.removed and node.state == JobState.COMPLETED]:
        raise ResultRemoved(f"flow {ref.public_id}", removed)
    texts: dict[str, str] = {}
    for part in parts(nodes):
        asking = [job_now(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in part]
        for node, (state, _, text, *_) in zip(part, (yield from _current(ref, asking)), strict=True):
            if state == "completed":
                texts[node.name] = text
    return read_results(texts)


def node_logs(ref: FlowRef, after: Mapping[str, int], limit: int) -> Op[dict[str, JobLogs]]:
    """Log lines of these nodes. Raises like ``named_nodes``."""
    whole("limit", limit, 1, error=ConfigurationError)
    found: dict[str, JobLogs] = {}
    for part in _parts(after):
        ranges = []
        for name, row in (yield from _rows(ref, part)).items():
            _, queue, job_id, *_ = read_row(row) or (0, "", "")  # for a broken row
            ranges.append(LogRange(QueueKeys(ref.home.prefix, queue), job_id, after[name], limit))
        read = yield from read_logs(ranges, partial(_current, ref))
        found |= dict(zip(part, read, strict=True))
    return found


def leaf_names(ref: FlowRef) -> Op[list[str]]:
    """The nodes without dependents, dependencies before dependents."""
    rows = yield from read_rows(ref)
    yield from _current(ref, ())
    if not rows:
        yield from backend_of(ref).status(ref)  # raises if the flow no longer exists
    inner = {name for row in rows.values() for name in row[4:]}
    return [name for name in rows if name not in inner]


def _rows(ref: FlowRef, names: Sequence[str]) -> Op[dict[str, str]]:
    """The rows of these nodes, by name.

    Raises:
        NodeNotFound: One of them does not exist.
    """
    [rows] = yield from _current(ref, [some_rows(ref.home, ref.flow_id, names)])
    found = {name: row for name, row in zip(names, rows, strict=True) if row is not None}
    if missing := [name for name in names if name not in found]:
        yield from backend_of(ref).status(ref)  # raises if the flow no longer exists
        raise NodeNotFound(f"flow {ref.public_id} has no node {', '.join(missing[:5])}")
    return found


def check_current(ref: FlowRef) -> Op[None]:
    """Check that the flow still has its jobs.

    Raises:
        Superseded, FlowExpired: Another generation has begun, or the jobs no longer exist.
    """
    yield from _current(ref, ())


def _current(ref: FlowRef, asking: Sequence[Call[T]]) -> Op[list[T]]:
    """The replies to these calls, provided that the flow still has its jobs afterwards."""
    both: list[Call[Any]] = [*asking, record_marks(ref.home, ref.flow_id)]
    *found, marks = yield from ask_all(both)
    _check_marks(ref, marks)
    return found


def _check_marks(ref: FlowRef, marks: Sequence[str | None]) -> None:
    """Refuse to read a superseded generation, or one whose jobs were removed."""
    successor, expired_at = marks
    if successor is not None:
        raise Superseded(
            f"generation {ref.generation} of flow {ref.public_id} was superseded by generation {successor}"
        )
    if expired_at is not None:
        raise expired(ref)


def _parts(names: Iterable[str]) -> Iterator[Sequence[str]]:
    if isinstance(names, str):
        raise ConfigurationError(f"names must be a list of node names, got the text {names!r}")
    return parts(list(dict.fromkeys(names)))


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of nodes: by name, or those that match every filter.

    Square brackets in a pattern match as a character class or literally, since the nodes of a fan-out have
    brackets in their names: ``item[1]`` matches one of them, ``clean[*]`` a whole fan-out, and ``part-[12]``
    two nodes.

    Attributes:
        names: Exactly these nodes.
        pattern: A shell pattern for the name.
        state: The state of the node.
        error: A shell pattern for the reason of its failure.
    """

    names: Sequence[str] = ()
    pattern: str = ""
    state: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        has_filter = bool(self.pattern or self.state or self.error)
        if bool(self.names) == has_filter:
            raise ConfigurationError("select nodes either by name, or by pattern, state or error")
        if self.state and self.state not in tuple(JobState):
            raise ConfigurationError(f"state must be one of {', '.join(JobState)}, got {self.state!r}")

    def includes(self, node: NodeStatus) -> bool:
        """Whether a node matches every filter."""
        return (
            self._matches_name(node.name)
            and self.state in ("", node.state)
            and (not self.error or (node.state == "failed" and fnmatchcase(node.reason, self.error)))
        )

    def _matches_name(self, name: str) -> bool:
        if fnmatchcase(name, self.pattern or "*"):
            return True
        return "[" in self.pattern and fnmatchcase(name, self.pattern.replace("[", "[[]"))


def selection(
    node: str | None,
    *,
    nodes: Iterable[str] = (),
    pattern: str = "",
    state: str = "",
    error: str = "",
) -> Selection:
    """The selection described by the arguments of a public method.

    Raises:
        ConfigurationError: They describe none or two, or one of them has the wrong type.
    """
    if node is not None:
        _check_text("node", node)
    for name, value in (("pattern", pattern), ("state", state), ("error", error)):
        _check_text(name, value)
    names = _unique(nodes) if node is None else tuple(dict.fromkeys((node, *_unique(nodes))))
    return Selection(names, pattern, str(state), error)


def starts(nodes: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names of the nodes from which a flow reruns; None for the whole flow.

    Raises:
        ConfigurationError: The list is empty, or an element is not a name.
    """
    if nodes is None:
        return None
    names = _unique(nodes)
    if not names:
        raise ConfigurationError("nodes is empty. Fix: name some, or omit it to rerun the whole flow")
    return names


def check_dependents(dependents: object) -> bool:
    """Whether dependents rerun too.

    Raises:
        ConfigurationError: It is not a bool.
    """
    if not isinstance(dependents, bool):
        raise ConfigurationError(f"dependents must be bool, got {described(dependents)}")
    return dependents


def _unique(nodes: Iterable[str]) -> tuple[str, ...]:
    """The names in an argument of a public method, without duplicates.

    Raises:
        ConfigurationError: It is a string, or contains another type.
    """
    if isinstance(nodes, str):
        raise ConfigurationError(f"nodes must be a list of node names, got the text {nodes!r}")
    names = list(nodes)
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(f"nodes must be a list of node names, got {described(name)} in it")
    return tuple(dict.fromkeys(names))


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be str, got {described(value)}")


_NAMED: Final = re.compile(r"(.+)\[(0|[1-9][0-9]*)\]\Z", re.DOTALL)


def split_name(name: str) -> tuple[str, int] | None:
    """The array and the position in the name of an element, ``clean[4711]``; None for another name."""
    found = _NAMED.match(name)
    return (found[1], int(found[2])) if found else None
