"""Common shapes of flows: pure functions from nodes to nodes, also for running flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from glidemq_orchestrate.errors import DuplicateNode, InvalidFlow
from glidemq_orchestrate.flows.rules import Dependency
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec
from glidemq_orchestrate.foundation.arguments import explained
from glidemq_orchestrate.wire.codec import JsonLike

Part: TypeAlias = "FlowNode | FlowSpec | Iterable[FlowNode]"
"""A node, nodes, or a flow, which is then nested under its name."""


@explained(InvalidFlow)
def group(*parts: Part) -> list[FlowNode]:
    """Put parts side by side: none waits for another.

    Raises:
        DuplicateNode: A name is used twice.
    """
    nodes = [node for part in parts for node in _nodes(part)]
    counts = Counter(node.name for node in nodes)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise DuplicateNode(repeated)
    return nodes


@explained(InvalidFlow)
def chain(*parts: Part) -> list[FlowNode]:
    """Put parts one after the other: the first nodes of each wait for all last nodes of the previous part.

    Raises:
        DuplicateNode: A name is used twice.
    """
    linked: list[list[FlowNode]] = []
    last: list[str] = []
    for part in parts:
        nodes = _nodes(part)
        linked.append(_after(nodes, last))
        last = exits(nodes) or last
    return group(*linked)


@explained(InvalidFlow)
def chord(header: Iterable[Part], body: Part) -> list[FlowNode]:
    """Put parts side by side and ``body`` after all; its first nodes get the results of their last nodes.

    Raises:
        DuplicateNode: A name is used twice.
    """
    return chain(group(*header), body)


@explained(InvalidFlow)
def nested(flow: FlowSpec, *, name: str | None = None, after: Sequence[str] = ()) -> list[FlowNode]:
    """Make a flow a part of another: every node is called ``name/node``.

    Args:
        flow: Its nodes are used; its labels, deadline and other settings of a whole flow are ignored, the
            outer flow has its own.
        name: Replaces the flow's own name in the prefix.
        after: What its first nodes wait for in the outer flow.
    """
    prefix = f"{name or flow.name}/"
    nodes = [
        replace(node, name=prefix + node.name, after=[_renamed(other, prefix) for other in node.after])
        for node in flow.nodes
    ]
    return _after(nodes, after)


@explained(InvalidFlow)
def map_over(
    template: FlowNode, items: Iterable[JsonLike], *, collect: FlowNode | None = None
) -> list[FlowNode]:
    """Make one node per item: ``name[0]``, ``name[1]``, ... in the order of the items.

    Args:
        template: Queue, job, options and dependencies of each. Its data must be an object or nothing: each
            node gets it with the item added as ``item``; without data, the item is the data.
        items: JSON values.
        collect: A node that waits for all of them, in addition to its own dependencies. Without items it
            waits for the dependencies of the template.

    Raises:
        InvalidFlow: The template's data is not an object.
    """
    nodes = [
        replace(template, name=f"{template.name}[{at}]", data=_with_item(template, item))
        for at, item in enumerate(items)
    ]
    if collect is None:
        return nodes
    waited = [node.name for node in nodes] or list(template.after)
    return [*nodes, replace(collect, after=[*dict.fromkeys((*collect.after, *waited))])]


def entries(nodes: Iterable[FlowNode]) -> list[str]:
    """The names of the nodes that wait for none of the others."""
    listed = list(nodes)
    names = {node.name for node in listed}
    return [node.name for node in listed if names.isdisjoint(node.after)]


def exits(nodes: Iterable[FlowNode]) -> list[str]:
    """The names of the nodes that none of the others wait for."""
    listed = list(nodes)
    waited = {name for node in listed for name in node.after}
    return [node.name for node in listed if node.name not in waited]


def _nodes(part: Part) -> list[FlowNode]:
    if isinstance(part, FlowNode):
        return [part]
    return nested(part) if isinstance(part, FlowSpec) else list(part)


def _after(nodes: Sequence[FlowNode], names: Sequence[str]) -> list[FlowNode]:
    """The nodes, with ``names`` added to the dependencies of the first ones."""
    first = set(entries(nodes))
    return [
        replace(node, after=[*dict.fromkeys((*node.after, *names))]) if node.name in first else node
        for node in nodes
    ]


def _renamed(name: str, prefix: str) -> str:
    return Dependency(prefix + name, name.on_failure) if isinstance(name, Dependency) else prefix + name


def _with_item(template: FlowNode, item: JsonLike) -> JsonLike:
    if template.data is None:
        return item
    if not isinstance(template.data, Mapping):
        raise InvalidFlow(
            f"node {template.name}: data of a template must be an object, since the item is added to it"
        )
    return {**template.data, "item": item}
