"""Flows as users write and read them: specification, checks, order, and the values a status is made of.

Knows no key, no server and no clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NewType

from glidemq_orchestrate._flow_forms import FlowForms
from glidemq_orchestrate._order import topological_order
from glidemq_orchestrate.codec import Json, JsonLike, encode
from glidemq_orchestrate.errors import (
    DuplicateNode,
    FailedNode,
    FlowTooLarge,
    InvalidFlow,
    InvalidJob,
    UnknownDependency,
)
from glidemq_orchestrate.job import DEFAULT_OPTIONS, JobOptions, JobState, milliseconds
from glidemq_orchestrate.keys import MAX_NAME, check_queue_name
from glidemq_orchestrate.options import Fallback

if TYPE_CHECKING:
    from glidemq_orchestrate._flow_file import OptionsFile

FlowId = NewType("FlowId", str)
MAX_NODES: Final = 100_000
MAX_LABELS: Final = 16
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class FlowNode:
    """One position in a flow; it becomes one job.

    Attributes:
        name: Unique in the flow, 1 to 256 characters, no control characters.
        queue: Where the job waits for a worker.
        job: The handler's name.
        data: What the handler gets as ``ctx.data``: JSON, at most 1 MiB encoded.
        after: Names of the nodes that must complete first; their results are ``ctx.inputs``.
        options: Attempts, backoff, timeout, delay.
    """

    name: str
    queue: str
    job: str
    data: JsonLike = None
    after: Sequence[str] = ()
    options: JobOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class FlowSpec(FlowForms):
    """A DAG of jobs with one fate. Made from any order of nodes; checked by ``check``.

    Attributes:
        name: What the flow is called in lists; not its id.
        nodes: 1 to 100,000 nodes.
        labels: Small texts to find the flow again, such as the DAG and run it came from: at most 16, keys and
            values of 1 to 256 characters.
        retention: How long after its end the jobs and results of the flow are kept; None: for ever. Its
            verdict stays longer, under its id.
    """

    name: str
    nodes: Sequence[FlowNode]
    labels: Mapping[str, str] = field(default_factory=dict)
    retention: timedelta | None = None

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> FlowSpec:
        """Build from the form of a flow file.

        That is ``{"name", "labels", "retention", "nodes": [{"name", "queue", "job", "data", "after",
        "options"}]}``.
        Durations are seconds or ISO 8601 (``PT5M``); ``options`` has the fields of ``JobOptions``.

        Raises:
            InvalidFlow: A field is missing, unknown or of the wrong type; the message lists every place.
        """
        from glidemq_orchestrate._flow_file import read  # noqa: PLC0415  pydantic is slow to import

        file = read(wire)
        return cls(
            file.name,
            labels=file.labels,
            retention=file.retention,
            nodes=[
                FlowNode(
                    name=node.name,
                    queue=node.queue,
                    job=node.job,
                    data=node.data,
                    after=node.after,
                    options=_options(node.options, f"nodes.{at}.options"),
                )
                for at, node in enumerate(file.nodes)
            ],
        )

    def check(self) -> CheckedFlow:
        """Check everything that can be checked without a server, and encode the payloads.

        Raises:
            InvalidFlow: No nodes, a bad name; its subclasses CycleError, DuplicateNode, UnknownDependency,
                FlowTooLarge for those.
            ConfigurationError: A queue name is not usable.
            EncodeError, PayloadTooLarge: A payload is not JSON or over 1 MiB; the message names the node.
        """
        _check_names(self)
        nodes = {node.name: node for node in self.nodes}
        order = topological_order({name: node.after for name, node in nodes.items()})
        dependents: dict[str, list[str]] = {name: [] for name in order}
        for name in order:
            for dependency in dict.fromkeys(nodes[name].after):
                dependents[dependency].append(name)
        checked = tuple(_checked(nodes[name], dependents[name], rank) for rank, name in enumerate(order))
        return CheckedFlow.of(self.name, dict(self.labels), checked, retention_ms(self.retention))


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """A node ready to be sent: payloads encoded, relations known in both directions."""

    rank: float
    name: str
    queue: str
    job: str
    data: str
    options: str
    attempts: int
    delay_ms: int
    after: tuple[str, ...]
    dependents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedFlow:
    """A flow that can be sent: acyclic, names known, payloads encoded, nodes in topological order.

    Attributes:
        name, labels, nodes: As in the specification.
        queue_of: The queue of each node by name.
        home: The queue that keeps the record: the one with most nodes, the first of them in doubt.
        digest: A fingerprint of what would run; the order of writing does not matter.
        retention_ms: How long after the end the jobs are kept, or None.
    """

    name: str
    labels: Mapping[str, str]
    nodes: tuple[CheckedNode, ...]
    queue_of: Mapping[str, str]
    home: str
    digest: str
    retention_ms: int | None = None

    @classmethod
    def of(
        cls,
        name: str,
        labels: Mapping[str, str],
        nodes: tuple[CheckedNode, ...],
        retention_ms: int | None = None,
    ) -> CheckedFlow:
        """Derive what depends on all nodes, once."""
        parts = sorted(
            json.dumps([n.name, n.queue, n.job, _canonical(n.data), n.options, sorted(n.after)])
            for n in nodes
        )
        return cls(
            name=name,
            labels=labels,
            nodes=nodes,
            queue_of={node.name: node.queue for node in nodes},
            home=Counter(node.queue for node in nodes).most_common(1)[0][0],
            digest=hashlib.sha256("\n".join([name, *parts]).encode()).hexdigest(),
            retention_ms=retention_ms,
        )

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue of the flow, in order of appearance."""
        return tuple(dict.fromkeys(self.queue_of.values()))


class FlowState(StrEnum):
    """Where a flow is."""

    STAGING = "staging"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the flow has ended."""
        return self in (FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """The record of a flow, read in one call whose cost does not grow with the flow.

    ``total`` nodes, of which ``completed`` and ``failed`` have ended (``failed`` includes the nodes that
    could not run because a dependency failed, and the cancelled ones). ``reason`` is the first failure, or
    why it was cancelled.
    """

    id: FlowId
    name: str
    state: FlowState
    home: str
    total: int
    completed: int
    failed: int
    reason: str
    labels: Mapping[str, str]
    created_at: datetime | None
    finished_at: datetime | None

    @property
    def open(self) -> int:
        """Nodes that have not ended."""
        return self.total - self.completed - self.failed


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node of a flow as it was when it was read. ``attempts`` counts the runs that were begun."""

    name: str
    queue: str
    job_id: str
    job: str
    after: tuple[str, ...]
    state: JobState
    attempts: int
    reason: str
    progress: Json
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long the last run took; None while it has not ended or never ran."""
        if self.started_at is None or self.finished_at is None or self.finished_at < self.started_at:
            return None
        return (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class FlowOutcome:
    """How a flow ended: its status, the result of each completed node, and what failed, causes first."""

    status: FlowStatus
    results: Mapping[str, Json]
    failed: Sequence[FailedNode]


def _options(wire: OptionsFile, place: str) -> JobOptions:
    try:
        fallbacks = tuple(Fallback(**dict(fallback)) for fallback in wire.fallbacks)
        return JobOptions(**(dict(wire) | {"fallbacks": fallbacks}))
    except InvalidJob as exc:
        raise InvalidFlow(f"not a flow: {place}: {exc}") from exc


def _check_names(spec: FlowSpec) -> None:
    if not isinstance(spec.name, str) or not spec.name:
        raise InvalidFlow("a flow needs a name")
    if not spec.nodes:
        raise InvalidFlow(f"flow {spec.name} has no nodes")
    _check_labels(spec)
    if len(spec.nodes) > MAX_NODES:
        raise FlowTooLarge(f"flow {spec.name} has {len(spec.nodes):,} nodes; the limit is {MAX_NODES:,}")
    for node in spec.nodes:
        _check_node(node)
    for queue in {node.queue for node in spec.nodes}:
        check_queue_name(queue)
    counts = Counter(node.name for node in spec.nodes)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise DuplicateNode(repeated)
    missing = {n.name: [d for d in n.after if d not in counts] for n in spec.nodes}
    if any(missing.values()):
        raise UnknownDependency({name: names for name, names in missing.items() if names})


def _check_labels(spec: FlowSpec) -> None:
    if len(spec.labels) > MAX_LABELS:
        raise InvalidFlow(f"flow {spec.name} has {len(spec.labels)} labels; the limit is {MAX_LABELS}")
    for text in (text for label in spec.labels.items() for text in label):
        if not isinstance(text, str) or not 0 < len(text) <= MAX_NAME:
            raise InvalidFlow(f"flow {spec.name}: labels are texts of 1 to {MAX_NAME} characters")


def retention_ms(retention: timedelta | None) -> int | None:
    """A retention in ms.

    Raises:
        InvalidFlow: It is negative.
    """
    if retention is not None and retention < timedelta(0):
        raise InvalidFlow(f"retention must not be negative, got {retention}")
    return None if retention is None else milliseconds(retention)


def _check_node(node: FlowNode) -> None:
    if not node.name or len(node.name) > MAX_NAME or _CONTROL.search(node.name):
        raise InvalidFlow(f"node name {node.name!r}: 1 to {MAX_NAME} characters, no control characters")
    if isinstance(node.after, str):
        raise InvalidFlow(
            f"node {node.name}: after must be a list of node names, got the text {node.after!r}"
        )
    if not node.job:
        raise InvalidFlow(f"node {node.name} has no job: the name of the handler that runs it")
    if node.options.job_id is not None:
        raise InvalidFlow(f"node {node.name}: options.job_id is set by the flow, leave it out")


def _canonical(data: str) -> str:
    # A YAML file and a dict may differ in the order of keys and in nothing else. One key has no order.
    return json.dumps(json.loads(data), sort_keys=True) if data.count('":') > 1 else data


def _checked(node: FlowNode, dependents: Sequence[str], rank: int) -> CheckedNode:
    return CheckedNode(
        rank=rank,
        name=node.name,
        queue=node.queue,
        job=node.job,
        data=encode(node.data, where=f"data of node {node.name}"),
        options="{}" if node.options is DEFAULT_OPTIONS else node.options.to_wire(),
        attempts=node.options.attempts,
        delay_ms=milliseconds(node.options.delay),
        after=tuple(dict.fromkeys(node.after)),
        dependents=tuple(dependents),
    )
