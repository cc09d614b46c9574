"""Changes single nodes of a flow, and single elements of its arrays: reruns them, or ends them manually.

It happens while the flow runs or after its end. A change is first noted in the record, up to
``FlowBackend.max_changes`` nodes per call, each call all or nothing. If the client dies after a call, every
supervisor of the home queue carries out the noted changes. A repeat of the request changes the nodes of later
calls and skips those already changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, NodeNotEnded, NodeNotFound
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.elements import Array, array_of, ended_elements
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import RequestedChange, requests, some_rows
from glidemq_orchestrate.flows.nodes import Selection, check_current, named_nodes, split_name
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op, ask, ask_all, parts
from glidemq_orchestrate.wire.keys import QueueKeys

RERUNS: Final = ("alone", "follow")


def change_nodes(ref: FlowRef, nodes: Selection, requested: RequestedChange, clock: Clock) -> Op[list[str]]:
    """Change nodes; returns the names of those that this request has changed, now or in an earlier try.

    A name like ``clean[4711]`` that no node has is that of an element of the array ``clean``.

    Raises:
        NodeNotFound: The flow has no node or element with one of the names. Nothing was changed.
        NodeNotEnded: A named node to rerun has not ended. Nothing was changed.
        NodeNotRepeatable: A node that would rerun has added nodes, or its job was removed.
        FlowEnded: The flow is being cancelled.
        Superseded, FlowNotFound, FlowExpired, FlowIncomplete: The flow can no longer be changed, or not yet.
    """
    names = list(nodes.names) or (yield from _matching(ref, nodes, requested))
    try:
        return (yield from _change(ref, names, requested, clock, strict=bool(nodes.names)))
    except NodeNotFound:
        elements = yield from _elements(ref, names)
        if not elements:
            yield from check_current(ref)  # raises if the flow no longer exists
            raise
    return (yield from _change_elements(ref, names, elements, requested, clock))


def _change(
    ref: FlowRef, names: Sequence[str], requested: RequestedChange, clock: Clock, *, strict: bool
) -> Op[list[str]]:
    """Change nodes that are no elements."""
    backend = backend_of(ref)
    if strict and len(names) > backend.max_changes(len(requested.text)):
        yield from _check_ended(ref, names, requested)
        strict = False
    return (yield from backend.change(ref, names, requested, clock, strict=strict))


def _matching(ref: FlowRef, nodes: Selection, requested: RequestedChange) -> Op[list[str]]:
    """The names of the matching nodes; for a rerun only those that have ended."""
    every = yield from backend_of(ref).nodes(ref)
    return [
        node.name
        for node in every
        if nodes.includes(node) and (requested.what not in RERUNS or node.state.is_terminal)
    ]


def _check_ended(ref: FlowRef, names: Sequence[str], requested: RequestedChange) -> Op[None]:
    """Check a request that needs several calls before the first one."""
    found = yield from named_nodes(ref, names)
    unended = [node for node in found if not node.state.is_terminal] if requested.what in RERUNS else []
    for part in parts(unended):
        asking = [requests(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in part]
        for node, known in zip(part, (yield from ask_all(asking)), strict=True):
            if requested.token not in known:
                raise NodeNotEnded(f"node {node.name} has not ended: it is {node.state}")


Elements = dict[str, list[int]]
"""Positions of elements by the name of their array."""


def _elements(ref: FlowRef, names: Sequence[str]) -> Op[Elements]:
    """The elements among these names."""
    found: Elements = {}
    split = [(name, *pair) for name in names if (pair := split_name(name))]
    for part in parts(split):
        rows = yield from ask(some_rows(ref.home, ref.flow_id, [one for pair in part for one in pair[:2]]))
        for (_, array, index), known, of in zip(part, rows[::2], rows[1::2], strict=True):
            if known is None and of is not None:
                found.setdefault(array, []).append(index)
    return found


def _change_elements(
    ref: FlowRef, names: Sequence[str], elements: Elements, requested: RequestedChange, clock: Clock
) -> Op[list[str]]:
    """Change nodes and elements. Nodes come first: an array that reruns because of one has no ended elements.

    One call changes elements of one array, all or none. A request that needs several is checked before.
    """
    backend = backend_of(ref)
    named = {f"{array}[{index}]" for array, indexes in elements.items() for index in indexes}
    plain = [name for name in names if name not in named]
    arrays = yield from _arrays(ref, elements)
    per_call = backend.max_changes(len(requested.text))
    calls = [
        (name, indexes[at : at + per_call], at + per_call < len(indexes))
        for name, indexes in elements.items()
        for at in range(0, len(indexes), per_call)
    ]
    is_single = len(calls) == 1 and not plain
    _check_exist(arrays, elements)
    if not is_single:
        yield from named_nodes(ref, plain)
        yield from _check_ended_elements(arrays, elements, requested)
    changed = (yield from _change(ref, plain, requested, clock, strict=True)) if plain else []
    for name, part, has_more in calls:
        found = yield from backend.change_elements(
            ref, name, part, requested, clock, strict=is_single, has_more=has_more
        )
        changed += [f"{name}[{index}]" for index in found]
    return changed


def _arrays(ref: FlowRef, names: Iterable[str]) -> Op[list[Array]]:
    found: list[Array] = []
    for name in names:
        try:
            array = yield from array_of(ref, name)
        except ConfigurationError as exc:
            raise NodeNotFound(f"{exc}, so it has no elements") from exc
        found.append(array)
    return found


def _check_exist(arrays: Sequence[Array], elements: Elements) -> None:
    for array in arrays:
        name = array.node.name
        if (last := max(elements[name])) >= array.size:
            raise NodeNotFound(
                f"array {name} has {array.size:,} elements, numbered from 0; there is no {name}[{last}]"
            )


def _check_ended_elements(
    arrays: Sequence[Array], elements: Elements, requested: RequestedChange
) -> Op[None]:
    """Check that those of these elements that are to run again have ended."""
    for array in arrays:
        name, indexes = array.node.name, elements[array.node.name]
        if requested.what not in RERUNS or array.node.state.is_terminal:
            continue
        ended = yield from ended_elements(array, indexes, requested.token)
        for index in indexes:
            if index not in ended:
                raise NodeNotEnded(
                    f"element {name}[{index}] has not ended. Fix: wait until it has, or cancel it first"
                )
