"""The specification of a stored flow: read back from its tables and jobs, or compared with another one.

Nothing is stored for the comparison: the table of the flow and the jobs of its nodes define each node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.errors import FlowExpired, FlowIncomplete
from glidemq_orchestrate.flows.arrays import LIMITS, CheckedArray, read_items
from glidemq_orchestrate.flows.backend import backend_of, read_status
from glidemq_orchestrate.flows.checked import MAX_NODES, CheckedFlow, CheckedNode, canonical
from glidemq_orchestrate.flows.definitions import (
    Definition,
    NodeSettings,
    Policies,
    definition,
    own_options,
    work_of,
)
from glidemq_orchestrate.flows.dependencies import OnFailure, Rule
from glidemq_orchestrate.flows.generation import FlowRef, expired, no_flow, record_fields
from glidemq_orchestrate.flows.node_table import Row, read_rows
from glidemq_orchestrate.flows.status import raise_if_superseded
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, parts
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import exact, parsed_object

PER_TRIP: Final = 50  # each with up to 1 MiB of data


class StoredFlow(NamedTuple):
    """A stored flow. ``extensions``: how often it had been extended when it was read."""

    flow: CheckedFlow
    extensions: str


def read_flow(ref: FlowRef, clock: Clock) -> Op[StoredFlow]:
    """The nodes as submitted, and those of extensions; not those that nodes added.

    Raises:
        FlowNotFound: The flow no longer exists.
        Superseded: Another generation has begun.
        FlowExpired: Some or all of its jobs no longer exist.
        FlowIncomplete: It was cancelled before its submission was complete.
    """
    backend = backend_of(ref)
    while True:
        record = yield from _unexpired(ref)
        stored = yield from backend.stored(ref, record)
        if stored is not None:
            break
        if backend.is_carried or read_status(ref.home, ref.flow_id, record).state.is_terminal:
            raise FlowIncomplete(
                f"flow {ref.public_id} was cancelled while it was being submitted. Fix: submit it again"
            )
        yield from backend.advance(ref, clock)  # added nodes may still be joining the flow
    rows, data, settings, _ = stored
    yield from _read_missing(ref, rows, data, settings)
    stay = [name for name, row in rows.items() if is_of_spec(row) or settings[name].extension]
    dependents: dict[str, list[str]] = {name: [] for name in stay}
    after = {name: tuple([one for one in rows[name][4:] if one in dependents]) for name in stay}
    for name, names in after.items():
        for one in names:
            dependents[one].append(name)
    policies = yield from backend.dependency_policies(ref, stored, after)
    nodes = [
        _node(name, rows[name], data[name], settings[name], after[name], dependents[name], policies)
        for name in stay
    ]
    for at, node in enumerate(nodes):
        if definition := settings[node.name].array:
            row = rows[node.name]
            chunks = yield from read_items(QueueKeys(ref.home.prefix, row[1]), row[2], definition)
            nodes[at] = replace(node, array=CheckedArray(definition, chunks))
    flow = CheckedFlow(
        name=record.get("name", ""),
        labels={key: str(value) for key, value in parsed_object(record.get("labels")).items()},
        nodes=tuple(nodes),
        queue_of={node.name: node.queue for node in nodes},
        home=ref.home.queue,
        digest=record["digest"],
        retention_ms=exact(record["retention"]) if "retention" in record else None,
        deadline_ms=exact(record["deadline"]) if "deadline" in record else None,
        fail_fast="fail_fast" in record,
    )
    return StoredFlow(flow, record.get("extensions", "0"))


def _unexpired(ref: FlowRef) -> Op[dict[str, str]]:
    """The fields of the record of a flow that still has its jobs."""
    record = yield from ask(record_fields(ref.home, ref.flow_id))
    if "digest" not in record:
        raise no_flow(ref)
    raise_if_superseded(read_status(ref.home, ref.flow_id, record))
    if "expired_at" in record:
        raise expired(ref)
    return record


def _read_missing(
    ref: FlowRef, rows: Mapping[str, Row], data: dict[str, str], settings: dict[str, NodeSettings]
) -> Op[None]:
    """Add the definitions of the remaining nodes from their jobs."""
    for part in parts([(name, row) for name, row in rows.items() if name not in data], PER_TRIP):
        asking = [work_of(QueueKeys(ref.home.prefix, row[1]), row[2]) for _, row in part]
        for (name, _), work in zip(part, (yield from ask_all(asking)), strict=True):
            if work is None:
                now = yield from ask(record_fields(ref.home, ref.flow_id))
                # If superseded, the sweep has removed the job.
                raise_if_superseded(read_status(ref.home, ref.flow_id, now))
                raise FlowExpired(
                    f"the job of node {name} of flow {ref.public_id} was removed with its definition. "
                    'Fix: submit the flow with on_existing="restart"'
                )
            data[name], settings[name] = work


def _node(  # noqa: PLR0913, PLR0917  the parts of a node
    name: str,
    row: Row,
    data: str,
    settings: NodeSettings,
    after: tuple[str, ...],
    dependents: Sequence[str],
    policies: Mapping[str, Mapping[str, OnFailure]],
) -> CheckedNode:
    options, attempts, delay_ms, priority, is_placed, rule, on_failure, _, timeout_ms, extension, _ = settings
    return CheckedNode(
        row[0], name, row[1], row[3], data, options, attempts, delay_ms, after, tuple(dependents), priority,
        is_placed, Rule(rule) if rule else None, OnFailure(on_failure) if on_failure else None,
        policies.get(name, {}), timeout_ms, extension,
    )  # fmt: skip


MAX: Final = 20
SHAPING: Final = ("fallbacks", "mustPass")
ARRAY: Final = "gmo:array"
OF_OTHERS: Final = ("gmo:on_failure", "gmo:queue_timeout", "gmo:delay", ARRAY)

Differences = dict[str, tuple[str, ...]]
"""In the form of ``FlowConflict.differences``."""


def node_differences(ref: FlowRef, flow: CheckedFlow) -> Op[Differences]:
    """The first 20 nodes in which a flow differs from a specification. Changes nothing.

    Not compared: nodes that handlers have added; data, options and policies of nodes with removed jobs.
    """
    rows = yield from read_rows(ref)
    known = {node.name for node in flow.nodes}
    removed = [name for name, row in rows.items() if name not in known and is_of_spec(row)]
    found: Differences = {node.name: ("new",) for node in flow.nodes if node.name not in rows}
    found |= dict.fromkeys(removed, ("gone",))
    found |= yield from changes(ref, flow, rows, max_=MAX - len(found))
    return dict(list(found.items())[:MAX])


def setting_differences(ref: FlowRef, flow: CheckedFlow) -> Op[tuple[str, ...]]:
    """The settings of the flow itself, of those in its fingerprint, that differ from a specification."""
    record = yield from ask(record_fields(ref.home, ref.flow_id))
    deadline = exact(record["deadline"]) if "deadline" in record else None
    has = {"name": record.get("name", ""), "deadline": deadline, "fail_fast": "fail_fast" in record}
    expected = {"name": flow.name, "deadline": flow.deadline_ms, "fail_fast": flow.fail_fast}
    return tuple(name for name, value in expected.items() if has[name] != value)


def is_of_spec(row: Row) -> bool:
    """Whether a node was submitted with its flow, not added later."""
    return isinstance(row[0], int)


def changes(  # noqa: PLR0913  one comparison
    ref: FlowRef,
    flow: CheckedFlow,
    rows: Mapping[str, Row],
    *,
    max_: int = MAX_NODES,
    shaping: bool = False,
    known: Mapping[str, Definition | None] | None = None,
) -> Op[Differences]:
    """The differences between the nodes that a flow and a specification share, up to about ``max_``.

    Args:
        ref: The flow.
        flow: The specification.
        rows: The table of the flow.
        max_: The number of differences that suffices.
        shaping: Compare only what affects results: of the options, only those in ``SHAPING``. A removed job
            counts as different.
        known: The definitions read so far, without policies of single dependencies; None for none.
    """
    found: Differences = {}
    policies = yield from backend_of(ref).policies(ref, flow, rows)
    for part in parts([node for node in flow.nodes if node.name in rows], PER_TRIP):
        if len(found) >= max_:
            break
        expected = {node.name: policies.expected(node) for node in part}
        edges = {name: policies.edges(wants) for name, wants in expected.items()}
        stored = yield from _stored(ref, edges, rows, known)
        for node in part:
            what = list(_of_row(node, rows))
            if (has := stored[node.name]) is not None:
                own = policies.stored(node.name, has)
                what += _of_job(node, has, own, expected[node.name], shaping=shaping)
            elif shaping:
                what.append("removed")
            if what:
                found[node.name] = tuple(what)
    return found


def _stored(
    ref: FlowRef,
    edges: Mapping[str, Sequence[str]],
    rows: Mapping[str, Row],
    known: Mapping[str, Definition | None] | None,
) -> Op[dict[str, Definition | None]]:
    """The stored definitions of these nodes, with their ``edges``: fields for single dependencies."""
    found = {name: known[name] for name in edges} if known is not None else {}
    todo: list[tuple[str, Call[Definition | None]]] = []
    for name, fields in edges.items():
        if known is None or fields:
            _rank, queue, job_id, *_ = rows[name]
            todo.append((name, definition(QueueKeys(ref.home.prefix, queue), job_id, fields)))
    for (name, _), has in zip(todo, (yield from ask_all([call for _, call in todo])), strict=True):
        found[name] = has
    return found


def _of_row(node: CheckedNode, rows: Mapping[str, Row]) -> Iterator[str]:
    """The differences in the row of a node: ``queue``, ``job``, ``after``."""
    _rank, queue, _job_id, job, *after = rows[node.name]
    if queue != node.queue:
        yield "queue"
    if job != node.job:
        yield "job"
    # Names missing in the specification were appended by nodes added later.
    if sorted(name for name in after if name not in rows or is_of_spec(rows[name])) != sorted(node.after):
        yield "after"


def _of_job(
    node: CheckedNode, has: Definition, policies: Policies, expected: Policies, *, shaping: bool
) -> Iterator[str]:
    """The differences in a job: ``data``, ``options``, and ``elements`` or ``policies``."""
    options = own_options(node.options)
    if has.data != canonical(node.data):
        yield "data"
    compared = SHAPING if shaping else {*has.options, *options}
    if any(has.options.get(name) != options.get(name) for name in compared):
        yield "options"
    if _elements(policies) != _elements(expected):
        yield "elements"
    elif _shaping(policies) != _shaping(expected) or (not shaping and policies != expected):
        yield "policies"


def _shaping(policies: Mapping[str, str]) -> dict[str, str]:
    """The policies that decide whether the node itself runs."""
    return {name: text for name, text in policies.items() if name not in OF_OTHERS}


def _elements(policies: Mapping[str, str]) -> dict[str, Any]:
    """What decides the elements of an array; empty for other nodes."""
    definition = parsed_object(policies.get(ARRAY, ""))
    return {name: part for name, part in definition.items() if name not in LIMITS}
