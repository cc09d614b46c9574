"""A node for each item of lists, as Airflow's ``expand`` makes tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec
from glidemq_orchestrate.foundation.names import described

ARGUMENTS: Final = "arguments"
FIELDS: Final = "fields"
"""Where the values of an item go: into ``data["arguments"]`` of a node, or into its fields."""
NODE_FIELDS: Final = {"queue_name": "queue", "job": "job", "data": "data", "options": "options"}
"""The fields that may differ from node to node, by the names of the operator's parameters."""


def expand(template: FlowNode, over: Any, into: str) -> list[FlowNode]:
    """Make one node per item: ``name[0]``, ``name[1]``, ... in the order of the items.

    Args:
        template: What all have in common.
        over: Lists by name: a node for each combination, the last name fastest, where a dict counts as the
            list of its pairs. Or a list of dicts: a node for each.
        into: ``arguments`` or ``fields``.

    Raises:
        InvalidFlow: What should be a list is none, or an item has a field that nodes do not have.
    """
    return [
        replace(_with(template, item, into), name=f"{template.name}[{at}]")
        for at, item in enumerate(_items(template.name, over))
    ]


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
