"""Common shapes of flows: pure functions from nodes to nodes, also for running flows.

``expand`` creates nodes like Airflow's ``expand`` creates tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.errors import DuplicateNode, InvalidFlow
from glidemq_orchestrate.flows.dependencies import Dependency
from glidemq_orchestrate.flows.spec import ArrayNode, FlowNode, FlowSpec
from glidemq_orchestrate.foundation.arguments import explained
from glidemq_orchestrate.foundation.texts import described
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
        flow: Its nodes are used; its labels, deadline and other settings of a whole flow are ignored in
            favour of those of the outer flow.
        name: Replaces the flow's own name in the prefix.
        after: The nodes of the outer flow that its first nodes wait for.
    """
    prefix = f"{name or flow.name}/"
    nodes = [
        replace(node, name=prefix + node.name, after=[_renamed(other, prefix) for other in node.after])
        for node in flow.nodes
    ]
    return _after(nodes, after)


@explained(InvalidFlow)
def map_over(
    template: FlowNode, items: Iterable[JsonLike], *, collect: FlowNode | None = None, array: bool = False
) -> list[FlowNode]:
    """Make one node per item: ``name[0]``, ``name[1]``, ... in the order of the items.

    Or, with ``array``, one node over all of them; each item is then an element, which can be read under the
    same name: ``flow.node("name[0]")``.

    Args:
        template: The queue, job, options and dependencies of each node. Its data must be an object or None:
            each node gets it with the item added as ``item``; without data, the item is the data.
        items: JSON values.
        collect: A node that waits for all of them, in addition to its own dependencies. Without items it
            waits for the dependencies of the template. Its inputs are the results by node name; of an array,
            ``name`` with its counts, and it reads the results with ``ctx.flow.array_results(name)``.
        array: Make an ``ArrayNode`` named as the template, for up to 100,000,000 items. Without items, none.

    Raises:
        InvalidFlow: The template's data is not an object, or ``items`` is a text or an object, so one item.
    """
    if isinstance(items, str | bytes | Mapping):
        raise InvalidFlow(f"items must be a list, got {described(items)}. Fix: map_over(template, [...])")
    if array:
        nodes = _as_array(template, items)
    else:
        nodes = [
            replace(template, name=f"{template.name}[{at}]", data=_with_item(template, item))
            for at, item in enumerate(items)
        ]
    if collect is None:
        return nodes
    waited = [node.name for node in nodes] or list(template.after)
    return [*nodes, replace(collect, after=[*dict.fromkeys((*collect.after, *waited))])]


def _as_array(template: FlowNode, items: Iterable[JsonLike], **limits: Any) -> list[FlowNode]:
    """One array over the items; none without items."""
    over = items if isinstance(items, range | list | tuple) else list(items)
    given = {one.name: getattr(template, one.name) for one in fields(FlowNode)}
    return [ArrayNode(over=over, **limits, **given)] if over else []


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


ALL: Final = "[*]"
"""The end of the name of an expanded task's array, and of what stands for the results of all its nodes."""
ARGUMENTS: Final = "arguments"
FIELDS: Final = "fields"
"""Where the values of an item go: into ``data["arguments"]`` of a node, or into its fields."""
NODE_FIELDS: Final = {"queue_name": "queue", "job": "job", "data": "data", "options": "options"}
"""The fields that may differ from node to node, by the names of the operator's parameters."""


def expand(template: FlowNode, over: Any, into: str) -> list[FlowNode]:
    """Make one node per item: ``name[0]``, ``name[1]``, ... in the order of the items.

    Args:
        template: The common fields.
        over: Lists by name: a node for each combination, the last name fastest, where a dict counts as the
            list of its pairs. Or a list of dicts: a node for each.
        into: ``arguments`` or ``fields``.

    Raises:
        InvalidFlow: A value that must be a list is not one, or an item has a field that nodes do not have.
    """
    return [
        replace(_with(template, item, into), name=f"{template.name}[{at}]")
        for at, item in enumerate(_items(template.name, over))
    ]


def expand_to_array(
    template: FlowNode, over: Any, into: str, max_running: int | None = None
) -> list[FlowNode]:
    """Make one array over the items, ``name[*]``; none without items. Its elements differ in data only.

    Args:
        template: The common fields.
        over: As for ``expand``.
        into: As for ``expand``; ``arguments`` of an element are added to its data as ``item``.
        max_running: How many elements run at once at most; None: as many as workers run.

    Raises:
        InvalidFlow: As for ``expand``, or items have other fields than data.
    """
    items: list[Any] = list(_items(template.name, over))
    data = template.data
    if into == FIELDS:
        if any(set(item) != {"data"} for item in items):
            raise InvalidFlow(f"{template.name}: elements of an array differ in data, and in nothing else")
        items, data = [item["data"] for item in items], None
    return _as_array(replace(template, name=template.name + ALL, data=data), items, max_running=max_running)


def _items(node: str, over: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(over, Mapping):
        lists = [_list(node, str(name), value) for name, value in over.items()]
        yield from (dict(zip(over, values, strict=True)) for values in product(*lists))
        return
    for item in _list(node, "expand_kwargs", over):
        if not isinstance(item, Mapping):
            raise InvalidFlow(f"{node}: it is expanded over a list of dicts, got {_kind(item)} in it")
        yield item


def _list(node: str, name: str, value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [list(pair) for pair in value.items()]
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidFlow(f"{node}: it is expanded over {name}, which must be a list, got {_kind(value)}")
    return list(value)


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _with(template: FlowNode, item: Mapping[str, Any], into: str) -> FlowNode:
    if into == ARGUMENTS:
        data: Any = template.data
        return replace(template, data={**data, "arguments": {**data["arguments"], **item}})
    if unknown := [name for name in item if name not in NODE_FIELDS]:
        raise InvalidFlow(
            f"{template.name}: it is expanded over {described(unknown[0])}, and nodes differ in "
            f"{', '.join(NODE_FIELDS)} only"
        )
    fields = {NODE_FIELDS[name]: value for name, value in item.items()}
    if "options" in fields:
        wire = {"name": "n", "queue": "q", "job": "j", "options": fields["options"]}
        fields["options"] = FlowSpec.from_dict({"name": "options", "nodes": [wire]}).nodes[0].options
    return replace(template, **fields)
