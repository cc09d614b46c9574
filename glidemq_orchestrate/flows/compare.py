"""Compares an existing flow with a specification, to explain a conflict.

Nothing is stored for this: the table of the flow and the jobs of its nodes define each node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.checked import MAX_NODES, CheckedFlow, CheckedNode, canonical, policy_text
from glidemq_orchestrate.flows.definitions import POLICIES, Definition, definition, settled_options
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.generation import record_fields as record_of
from glidemq_orchestrate.flows.node_table import Row, read_rows
from glidemq_orchestrate.flows.staging import JobNames, more_fields
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import exact

MAX: Final = 20
PER_TRIP: Final = 50  # each with up to 1 MiB of data
SHAPING: Final = ("fallbacks", "mustPass")
OF_OTHERS: Final = ("gmo:on_failure", "gmo:queue_timeout", "gmo:delay")

Differences = dict[str, tuple[str, ...]]
"""In the form of ``FlowConflict.differences``."""


def differences(ref: FlowRef, flow: CheckedFlow) -> Op[Differences]:
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


def fields(ref: FlowRef, flow: CheckedFlow) -> Op[tuple[str, ...]]:
    """The settings of the flow itself, of those in its fingerprint, that differ from a specification."""
    record = yield from ask(record_of(ref.home, ref.flow_id))
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
    policies = yield from backend_of(ref).policies(ref)
    for part in parts([node for node in flow.nodes if node.name in rows], PER_TRIP):
        if len(found) >= max_:
            break
        expected = _expected_policies(ref, flow, part, rows, is_in_table=policies is not None)
        stored = yield from _stored(ref, expected, rows, known, has_edges=policies is None)
        if policies is not None:
            stored = {
                name: has and has._replace(policies=_in_table(policies.get(name, "")))
                for name, has in stored.items()
            }
        for node in part:
            has, wants = stored[node.name], expected[node.name]
            what = (*_of_row(node, rows), *_of_job(node, has, wants, shaping=shaping))
            if what:
                found[node.name] = what
    return found


Policies = dict[str, str]


def _expected_policies(
    ref: FlowRef,
    flow: CheckedFlow,
    nodes: Sequence[CheckedNode],
    rows: Mapping[str, Row],
    *,
    is_in_table: bool,
) -> dict[str, Policies]:
    """The policies that the nodes should have, in their stored form."""
    if is_in_table:
        return {node.name: _in_table(policy_text(node)) for node in nodes}
    ids = {name: rows[name][2] for node in nodes for name in node.after if name in rows}
    # Some jobs may be those of earlier generations.
    names = JobNames(ref.home.prefix, ref.flow_id, flow.queue_of, carried=ids)
    return {node.name: _policies(node, names) for node in nodes}


def _stored(
    ref: FlowRef,
    expected: Mapping[str, Policies],
    rows: Mapping[str, Row],
    known: Mapping[str, Definition | None] | None,
    *,
    has_edges: bool,
) -> Op[dict[str, Definition | None]]:
    """The stored definitions of these nodes, with policies of single dependencies where any are expected."""
    found = {name: known[name] for name in expected} if known is not None else {}
    todo: list[tuple[str, Call[Definition | None]]] = []
    for name, wants in expected.items():
        edges = sorted(wants.keys() - {*POLICIES}) if has_edges else []
        if known is None or edges:
            _rank, queue, job_id, *_ = rows[name]
            todo.append((name, definition(QueueKeys(ref.home.prefix, queue), job_id, edges)))
    for (name, _), has in zip(todo, (yield from ask_all([call for _, call in todo])), strict=True):
        found[name] = has
    return found


def _in_table(text: str) -> Policies:
    """The policies of a node, from the table of the portable path."""
    fields: dict[str, Any] = json.loads(text or "{}")
    return {f"gmo:{name}": json.dumps(value, sort_keys=True) for name, value in fields.items()}


def _policies(node: CheckedNode, names: JobNames) -> Policies:
    fields: dict[str, str] = json.loads(more_fields(node, names) or "{}") if node.has_policies else {}
    return {name: text for name, text in fields.items() if name in POLICIES or name.startswith("gmo:edge:")}


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


def _of_job(node: CheckedNode, has: Definition | None, expected: Policies, *, shaping: bool) -> Iterator[str]:
    """The differences in a job: ``data``, ``options``, ``policies``; with ``shaping`` also ``removed``."""
    if has is None:
        yield from ("removed",) if shaping else ()
        return
    options = settled_options(node.options)
    if has.data != canonical(node.data):
        yield "data"
    compared = SHAPING if shaping else {*has.options, *options}
    if any(has.options.get(name) != options.get(name) for name in compared):
        yield "options"
    if _shaping(has.policies) != _shaping(expected) or (not shaping and has.policies != expected):
        yield "policies"


def _shaping(policies: Mapping[str, str]) -> dict[str, str]:
    """The policies that decide whether the node itself runs."""
    return {name: text for name, text in policies.items() if name not in OF_OTHERS}
