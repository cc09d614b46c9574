"""Checked flows: validated as far as possible without a server, with encoded payloads."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.errors import ConfigurationError, FlowTooLarge, GlideMQError, InvalidFlow, InvalidJob
from glidemq_orchestrate.flows.dependencies import (
    Dependency,
    OnFailure,
    Rule,
    check_known,
    check_unique,
    read_policy,
    read_rule,
    topological_order,
)
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.spec import ArrayNode, FlowNode, FlowSpec
from glidemq_orchestrate.foundation.arguments import EXPLAINABLE, check_fields
from glidemq_orchestrate.foundation.collector import paused_collector
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, duration, milliseconds
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import FLOW_NAME, JOB_NAME, LABEL, NODE, lasting, whole
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, MAX_PRIORITY, JobOptions
from glidemq_orchestrate.wire.codec import (
    JsonLike,
    encode,
    quoted,
    texts,
    with_sorted_keys,
    with_sorted_keys_of,
)
from glidemq_orchestrate.wire.keys import check_queue_name

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.arrays import CheckedArray

MAX_NODES: Final = 100_000
MAX_LABELS: Final = 32
MAX_OWN_POLICIES: Final = 1_000


@dataclass(
    slots=True
)  # nothing changes it; frozen, making one of the thousands in a flow takes twice the time
class CheckedNode:
    """A validated node with encoded payloads and its edges in both directions.

    Attributes:
        is_placed: Whether its options affect how it is queued: priority, LIFO, time to live, ordering, cost.
        rule: None for the default, all completed.
        on_failure: How its failure counts for its dependents; None: as a failure.
        policies: How failures of dependencies count, by dependency, if the node itself sets that.
        extension: The id of the extension that added it to the previous generation, or ''.
        array: Its elements, if it is an array.
    """

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
    priority: int = 0
    is_placed: bool = False
    rule: Rule | None = None
    on_failure: OnFailure | None = None
    policies: Mapping[str, OnFailure] = field(default_factory=dict)
    queue_timeout_ms: int | None = None
    extension: str = ""
    array: CheckedArray | None = None

    @property
    def has_policies(self) -> bool:
        """Whether it is an array, or its rule, failure policies or queue timeout differ from the defaults."""
        has_settings = self.on_failure is not None or self.queue_timeout_ms is not None
        return self.rule is not None or has_settings or self.array is not None

    @property
    def is_ordinary(self) -> bool:
        """Whether its job has no fields but those that every job has."""
        return not (self.is_placed or self.has_policies or self.policies or self.extension)

    def identity(self, data: str) -> str:
        """The identity of the node as JSON, for the fingerprint of the flow. ``data``: with sorted keys."""
        parts: list[Any] = []
        if self.has_policies:
            parts.append([self.rule, self.on_failure, sorted(self.policies.items()), self.queue_timeout_ms])
        if self.array is not None:
            parts.append(self.array.definition)
        more = f", {json.dumps(parts)[1:-1]}" if parts else ""
        after = texts(sorted(self.after)) if self.after else "[]"
        return (
            f"[{quoted(self.name)}, {quoted(self.queue)}, {quoted(self.job)}, {quoted(data)}, "
            f"{quoted(self.options)}, {after}{more}]"
        )


@dataclass(frozen=True, slots=True)
class CheckedFlow:
    """A validated flow: acyclic, without unknown names, payloads encoded, nodes in topological order.

    Attributes:
        name, labels, nodes: As in the specification.
        queue_of: The queue of each node by name.
        home: The default for the home queue (see ``choose_home``): the first of those with the most nodes.
        digest: A fingerprint of what would run, independent of the order of the nodes.
        retention_ms: How long the jobs are kept after the end, or None.
        deadline_ms: How long it may run, or None.
        fail_fast: Whether the first failure ends it.
        trace: The W3C trace context of its jobs; not part of the fingerprint.
        request: The idempotency key of this run; not part of the fingerprint.
        owner: The owner that keeps it running; not part of the fingerprint.
        carried: The job ids of the nodes that are carried over from the previous generation.
        edges_kept: Those whose dependents are unchanged and carried over too.
    """

    name: str
    labels: Mapping[str, str]
    nodes: tuple[CheckedNode, ...]
    queue_of: Mapping[str, str]
    home: str
    digest: str
    retention_ms: int | None = None
    deadline_ms: int | None = None
    fail_fast: bool = False
    trace: str = ""
    request: str = ""
    owner: Owner | None = None
    carried: Mapping[str, str] = field(default_factory=dict)
    edges_kept: frozenset[str] = frozenset()

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue of the flow, in order of appearance."""
        return tuple(dict.fromkeys(self.queue_of.values()))


def check_flow(spec: FlowSpec, *, is_part: bool = False) -> CheckedFlow:
    """Check everything that can be checked without a server, and encode the payloads.

    A submission does this first. Use it in tests of your flows to find the errors that a submission would
    raise.

    Args:
        spec: The flow.
        is_part: Whether nodes may wait for nodes outside ``spec``.

    Raises:
        InvalidFlow: It has no nodes, or a bad name. Subclasses: CycleError, DuplicateNode, UnknownDependency,
            FlowTooLarge.
        ConfigurationError: A queue name is not valid.
        EncodeError, PayloadTooLarge: A payload is not JSON or over 1 MiB; the message names the node.
    """
    try:
        with paused_collector():
            return _checked(spec, is_part=is_part)
    except EXPLAINABLE as exc:
        _explain(spec, exc)
        raise


def _explain(spec: FlowSpec, exc: Exception) -> None:
    """Raise a clearer error if a value of the wrong type explains ``exc``."""
    if isinstance(exc, GlideMQError):
        return
    if not isinstance(spec, FlowSpec):
        raise InvalidFlow(
            f"a flow must be a FlowSpec, got {type(spec).__name__}. Fix: FlowSpec.from_dict({{...}})"
        ) from exc
    try:
        check_fields(spec, InvalidFlow)
        for at, node in enumerate(spec.nodes, 1):
            try:
                check_fields(node, InvalidFlow)
            except InvalidFlow as fault:
                named = isinstance(node, FlowNode) and isinstance(node.name, str) and node.name
                raise InvalidFlow(f"node {named or f'number {at}'}: {fault}") from None
    except InvalidFlow as fault:
        raise fault from exc


def _checked(spec: FlowSpec, *, is_part: bool) -> CheckedFlow:
    _check_spec(spec, is_part=is_part)
    nodes = {node.name: node for node in spec.nodes}
    inner: dict[str, Sequence[str]] = {name: node.after for name, node in nodes.items()}
    if is_part:
        inner = {name: [one for one in after if one in nodes] for name, after in inner.items()}
    else:
        check_known(inner)
    order = topological_order(inner)
    dependents: dict[str, list[str]] = {name: [] for name in order}
    for name in order:
        for dependency in dict.fromkeys(inner[name]):
            dependents[dependency].append(name)
    encoder = _Encoder(spec)
    checked = tuple(encoder.encode(nodes[name], dependents[name], rank) for rank, name in enumerate(order))
    deadline_ms = _ms("deadline", spec.deadline)
    flow_wide = [spec.fail_fast, deadline_ms]
    identities = [spec.name, *sorted(encoder.identities)]
    if any(flow_wide):
        identities.append(json.dumps(flow_wide))
    return CheckedFlow(
        name=spec.name,
        labels=dict(spec.labels),
        nodes=checked,
        queue_of={node.name: node.queue for node in checked},
        home=Counter(node.queue for node in checked).most_common(1)[0][0],
        digest=hashlib.sha256("\n".join(identities).encode()).hexdigest(),
        retention_ms=retention_ms(spec.retention),
        deadline_ms=deadline_ms,
        fail_fast=spec.fail_fast,
    )


class _Encoder:
    """Encodes nodes. Shared options are encoded once."""

    def __init__(self, spec: FlowSpec) -> None:
        self.identities: list[str] = []
        self._spec = spec
        self._options: dict[int, tuple[JobOptions, str, bool]] = {}
        self._queue_timeout_ms = _ms("queue_timeout", spec.queue_timeout)

    def encode(self, node: FlowNode, dependents: Sequence[str], rank: int) -> CheckedNode:
        options, wire, is_placed = self._of(node.options)
        after = tuple(dict.fromkeys(map(str, node.after))) if node.after else ()
        where, timeout_ms = f"node {node.name}", self._queue_timeout_ms
        if node.queue_timeout is not None:
            timeout_ms = _ms(f"{where}: queue_timeout", node.queue_timeout)
        on_failure = None
        if node.on_failure is not OnFailure.FAIL:
            read = read_policy(node.on_failure, where=where)
            on_failure = None if read is OnFailure.FAIL else read
        policies = {}
        if node.after:
            policies = {
                str(name): name.on_failure
                for name in node.after
                if isinstance(name, Dependency) and name.on_failure is not None
            }
        rule = node.rule if node.rule is Rule.ALL_SUCCESS else read_rule(node.rule, where=where)
        if policies:
            _check_policies(node.name, after, policies)
        is_array = isinstance(
            node, ArrayNode
        )  # glide-mq's own functions would run it like a job: not with a rule
        data = encode(node.data, where=f"data of {where}")
        checked = CheckedNode(  # by position, which takes a third of the time
            rank,
            node.name,
            node.queue,
            node.job,
            data,
            wire,
            options.attempts,
            milliseconds(options.delay) if options.delay else 0,
            after,
            tuple(dependents),
            options.priority,
            is_placed,
            rule if after and (rule is not Rule.ALL_SUCCESS or policies or is_array) else None,
            on_failure,
            policies,
            timeout_ms,
            array=_array_of(node) if isinstance(node, ArrayNode) else None,
        )
        self.identities.append(checked.identity(_canonical_of(node.data, data)))
        return checked

    def _of(self, options: JobOptions) -> tuple[JobOptions, str, bool]:
        """The options with the flow's priority, their wire form, and ``is_placed``; cached."""
        found = self._options.get(id(options))
        if found is None:
            full = options
            if self._spec.priority and not options.priority:
                full = replace(options, priority=self._spec.priority)
            is_placed = bool(full.priority or full.lifo or full.ttl or full.ordering or full.cost)
            wire = "{}" if full is DEFAULT_OPTIONS else full.to_wire()
            found = self._options[id(options)] = (full, wire, is_placed)
        return found


def _array_of(node: ArrayNode) -> CheckedArray:
    with importing():
        from glidemq_orchestrate.flows.arrays import checked_array  # noqa: PLC0415  most DAG files need no arrays

    return checked_array(node)


def _check_spec(spec: FlowSpec, *, is_part: bool) -> None:
    FLOW_NAME.check(spec.name)
    if not spec.nodes:
        raise InvalidFlow(f"flow {spec.name} has no nodes")
    _check_labels(spec)
    try:
        whole("priority", spec.priority, 0, MAX_PRIORITY)
    except InvalidJob as exc:
        raise InvalidFlow(f"flow {spec.name}: {exc}") from exc
    if len(spec.nodes) > MAX_NODES:
        raise FlowTooLarge(
            f"flow {spec.name} has {len(spec.nodes):,} nodes; the limit is {MAX_NODES:,}. "
            "Fix: use an ArrayNode, or map_over(..., array=True), for nodes that differ only in an item"
        )
    for node in spec.nodes:
        _check_node(node)
    for node in spec.nodes:
        if node.queue == "":
            more = ": added nodes do not take that of the flow" if is_part else ", or the flow"
            raise ConfigurationError(
                f"node {node.name} has no queue name, of 1 to 256 characters. "
                f"Fix: give the node a queue{more}"
            )
    for queue in {node.queue for node in spec.nodes}:
        check_queue_name(queue)
    check_unique([node.name for node in spec.nodes])


def _check_labels(spec: FlowSpec) -> None:
    if not isinstance(spec.labels, Mapping):
        raise InvalidFlow(f"flow {spec.name}: labels must map texts to texts, got {described(spec.labels)}")
    if len(spec.labels) > MAX_LABELS:
        surplus = len(spec.labels) - MAX_LABELS
        raise InvalidFlow(
            f"flow {spec.name} has {len(spec.labels)} labels; the limit is {MAX_LABELS}. "
            f"Fix: leave {surplus} of them out"
        )
    for key, value in spec.labels.items():
        for part, text in (("key", key), ("value", value)):
            try:
                LABEL.check(text)
            except InvalidFlow:
                raise InvalidFlow(_label_fault(spec.name, key, part, text)) from None


def _label_fault(flow: str, key: object, part: str, text: object) -> str:
    label = f"flow {flow}: the {part} of label {described(key)}"
    if not isinstance(text, str):
        return f"{label} must be text, got {described(text)}. Fix: convert it, or leave the label out"
    if not 1 <= len(text) <= LABEL.max_length:
        label = label if part == "value" else f"flow {flow}: the key of a label"
        return f"{label} must have {LABEL.rule}, got {len(text):,}"
    return f"{label} must have {LABEL.rule} that UTF-8 can encode"


def _check_node(node: FlowNode) -> None:
    NODE.check(node.name)
    if isinstance(node.after, str):
        raise InvalidFlow(
            f"node {node.name}: after must be a list of node names, got the string {node.after!r}"
        )
    try:
        JOB_NAME.check(node.job)
    except InvalidJob as exc:
        raise InvalidFlow(f"node {node.name}: {exc}") from exc
    if node.options is DEFAULT_OPTIONS:
        return
    for name in ("job_id", "deduplication", "parent"):
        if getattr(node.options, name) is not None:
            raise InvalidFlow(f"node {node.name}: options.{name} is set by the flow. Fix: leave it out")


def _check_policies(name: str, after: Sequence[str], policies: Mapping[str, OnFailure]) -> None:
    """Refuse more policies than the server can write in a few milliseconds."""
    if len(after) <= MAX_OWN_POLICIES or not policies:
        return
    if len(policies) < len(after) or len(set(policies.values())) > 1:
        raise InvalidFlow(
            f"node {name} has {len(after):,} dependencies and different on_failure for some: "
            f"with more than {MAX_OWN_POLICIES:,}, all must have the same on_failure or none"
        )


def retention_ms(retention: Duration | None) -> int | None:
    """A retention in ms.

    Raises:
        InvalidFlow: It is negative or not a duration.
    """
    return None if retention is None else milliseconds(duration("retention", retention, error=InvalidFlow))


def _ms(name: str, value: Duration | None) -> int | None:
    if value is None:
        return None
    return milliseconds(lasting(name, value, min_=MILLISECOND, error=InvalidFlow))


def canonical(data: str) -> str:
    """JSON text with sorted keys, so that their order does not affect the fingerprint."""
    # A single key needs no sorting.
    return with_sorted_keys(data) if data.count('":') > 1 else data


def _canonical_of(value: JsonLike, data: str) -> str:
    """The same of a value, of which ``data`` is the encoded form."""
    return with_sorted_keys_of(value, data) if data.count('":') > 1 else data


def policy_text(node: CheckedNode) -> str:
    """The stored form of the policy of a node; '' for an ordinary one."""
    wire: dict[str, Any] = {
        "rule": node.rule,
        "on_failure": node.on_failure,
        "policies": dict(node.policies),
        "queue_timeout": node.queue_timeout_ms,
        "delay": node.delay_ms,
    }
    stored = {name: value for name, value in wire.items() if value}
    return json.dumps(stored) if stored else ""


KEEPING: Final = ("removeOnComplete", "removeOnFail")


@lru_cache(maxsize=256)  # many nodes have the same options
def kept(options: str) -> str:
    """The options of a node without its retention: a node is kept as long as its flow."""
    if not any(f'"{name}"' in options for name in KEEPING):
        return options
    given = {name: value for name, value in json.loads(options).items() if name not in KEEPING}
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False)


def traced(options: str, trace: str) -> str:
    """The options of a job with the client's trace context, unless they have one."""
    if not trace or ('"traceparent"' in options and "traceparent" in json.loads(options)):
        return options
    return f'{{"traceparent":{json.dumps(trace)}' + (",".join(["", options[1:]]) if options != "{}" else "}")
