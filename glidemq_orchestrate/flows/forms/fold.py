"""Folds fan-outs: merges nodes whose names differ only by numbers and that wait for the same nodes.

Pure. Used by everything that displays a flow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from glidemq_orchestrate.flows.dependencies import check_known, check_unique, topological_order

_NUMBER: Final = re.compile(r"\d+")


class NamedNode(Protocol):
    """The properties of a node in every form, as written and as read back."""

    @property
    def name(self) -> str:
        """Unique in the flow."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def job(self) -> str:
        """The name of its handler."""

    @property
    def after(self) -> Sequence[str]:
        """The names of its dependencies."""


N = TypeVar("N", bound=NamedNode)


@dataclass(slots=True)
class Group(Generic[N]):
    """Nodes displayed as one, in the order of the flow; often a single node.

    Attributes:
        nodes: One or more nodes.
        after: The indexes, in the list that ``fold`` returns, of the groups it waits for.
    """

    nodes: list[N]
    after: list[int] = field(default_factory=list)

    @property
    def is_folded(self) -> bool:
        """Whether it has several nodes."""
        return len(self.nodes) > 1

    @property
    def label(self) -> str:
        """The name of the node; for several, their common name with the range of each number that differs."""
        return range_name([node.name for node in self.nodes])


def dependencies(node: NamedNode) -> list[str]:
    """The names of a node's dependencies, each once."""
    return list(dict.fromkeys(map(str, node.after)))


def in_order(nodes: Collection[N]) -> list[N]:
    """The nodes of a specification, dependencies before dependents.

    Raises:
        DuplicateNode: Two have the same name.
        UnknownDependency: One waits for a node that does not exist.
        CycleError: They wait for each other.
    """
    check_unique([node.name for node in nodes])
    known = {node.name: node for node in nodes}
    after = {name: dependencies(node) for name, node in known.items()}
    check_known(after)
    return [known[name] for name in topological_order(after)]


def rule_of(node: NamedNode) -> str | None:
    """The rule of a node if it matters: it is not the default, and the node has dependencies."""
    rule = getattr(node, "rule", None)
    return None if rule is None or rule == "all_success" or not node.after else str(rule)


def fold(
    nodes: Collection[N], *, at_least: int | None, alone: Callable[[N], bool] = lambda _: False
) -> list[Group[N]]:
    """Groups, dependencies before dependents; otherwise in the order of their first node.

    Nodes form a group if they have the same queue, job, rule and name apart from numbers, and wait for the
    same groups. So no group waits for itself, not even indirectly.

    Args:
        nodes: Dependencies before dependents.
        at_least: Groups of fewer nodes are not folded. None folds nothing.
        alone: Nodes that are never folded, such as failed ones.
    """
    families: dict[tuple[Any, ...], list[N]] = {}
    family_of: dict[str, int] = {}
    numbers: dict[tuple[Any, ...], int] = {}
    for node in nodes:
        waits_for = frozenset(family_of[name] for name in dependencies(node) if name in family_of)
        key = (_NUMBER.sub("#", node.name), node.queue, node.job, rule_of(node), waits_for)
        family_of[node.name] = numbers.setdefault(key, len(numbers))
        families.setdefault(key, []).append(node)
    parts: list[list[N]] = []
    for family in families.values():
        folded = [node for node in family if not alone(node)]
        if at_least is None or len(folded) < max(at_least, 2):
            parts += [[node] for node in family]
        else:
            parts += [folded, *([node] for node in family if alone(node))]
    return _connected(parts, {node.name: rank for rank, node in enumerate(nodes)})


def _connected(parts: list[list[N]], ranks: dict[str, int]) -> list[Group[N]]:
    """The groups in topological order, linked by the indexes of their dependencies."""
    parts = sorted(parts, key=lambda part: ranks[part[0].name])
    place = {node.name: str(at) for at, part in enumerate(parts) for node in part}
    after = {
        str(at): list({place[name] for node in part for name in dependencies(node) if name in place})
        for at, part in enumerate(parts)
    }
    order = topological_order(after)
    new = {at: number for number, at in enumerate(order)}
    return [Group(parts[int(at)], sorted(new[other] for other in after[at])) for at in order]


def range_name(names: Sequence[str]) -> str:
    """One name for names that differ by numbers: ``clean[0]``, ``clean[1]``, ... become ``clean[0..9]``."""
    if len(names) == 1:
        return names[0]
    columns = list(zip(*(_NUMBER.findall(name) for name in names), strict=True))
    ranges = []
    for column in columns:
        low, high = min(column, key=int), max(column, key=int)
        ranges.append(low if low == high else f"{low}..{high}")
    parts = _NUMBER.split(names[0])
    return parts[0] + "".join(number + text for number, text in zip(ranges, parts[1:], strict=True))
