"""What the console shows of a flow: its nodes folded into groups, in layers, with the states of each group.

A group has the nodes whose names differ by numbers only, which have the same handler and are at the same
depth of the graph. If those are too many to be drawn, depth is left out, and a chain is one group as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.flows.forms.drawing import range_name
from glidemq_orchestrate.flows.graph import LETTERS, GraphNode

MAX_GROUPS: Final = 600
FOLD_FROM: Final = 5
_NUMBER: Final = re.compile(r"\d+")


@dataclass(slots=True)
class NodeGroup:
    """Nodes that are drawn as one box.

    Attributes:
        members: Their indexes in the list of all nodes, ascending.
        after: The indexes of the groups that they wait for.
        layer, place: Where it is drawn: its column and its row.
        letters: How many of its nodes are in which state.
    """

    key: str
    label: str
    members: list[int]
    after: list[int] = field(default_factory=list)
    layer: int = 0
    place: int = 0
    letters: Counter[str] = field(default_factory=Counter)

    @property
    def states(self) -> dict[str, int]:
        """The same by the name of the state."""
        found = Counter[str]()
        for letter, count in self.letters.items():
            found[LETTERS.get(letter, "unknown")] += count
        return {state: count for state, count in found.items() if count}


class Snapshot:
    """The graph of one generation of a flow, and the last known states of its nodes.

    Args:
        nodes: All nodes, dependencies before dependents.
    """

    def __init__(self, nodes: Sequence[GraphNode]) -> None:
        self.nodes = nodes
        self.index = {node.name: at for at, node in enumerate(nodes)}
        self.after = [
            [self.index[name] for name in node.after if name in self.index] if node.after else []
            for node in nodes
        ]
        self.letters = ["?"] * len(nodes)
        depths = _depths(self.after)
        self.group_of = _grouped(nodes, depths)
        self.groups = self._made()
        if len(self.groups) > MAX_GROUPS:
            self.group_of = _grouped(nodes, [0] * len(nodes))
            self.groups = self._made()
        self._draw()

    def _made(self) -> list[NodeGroup]:
        members: dict[int, list[int]] = {}
        for at, group in enumerate(self.group_of):
            members.setdefault(group, []).append(at)
        groups: list[NodeGroup] = []
        used: set[str] = set()
        numbers: dict[int, int] = {}
        for group, some in members.items():
            label = range_name(
                [self.nodes[at].name for at in (some if len(some) < 500 else some[:250] + some[-250:])]
            )
            key = label if label not in used else f"{label} #{len(groups)}"
            used.add(key)
            numbers[group] = len(groups)
            groups.append(NodeGroup(key, label, some))
        self.group_of = [numbers[group] for group in self.group_of]
        return groups

    def _draw(self) -> None:
        """Edges between groups, and the place of each."""
        edges = {
            (self.group_of[dependency], self.group_of[at])
            for at, some in enumerate(self.after)
            for dependency in some
        }
        for before, after in sorted(edges):
            if before != after:
                self.groups[after].after.append(before)
        layers = Counter[int]()
        for group in self.groups:
            earlier = [self.groups[one].layer for one in group.after if one < self.group_of[group.members[0]]]
            group.layer = max(earlier, default=-1) + 1
            group.place = layers[group.layer]
            layers[group.layer] += 1

    @property
    def layers(self) -> int:
        """How many columns it has."""
        return max((group.layer for group in self.groups), default=-1) + 1

    def update(self, letters: Mapping[str, str]) -> None:
        """Note the states of all nodes."""
        known = self.letters = [letters.get(node.name, "?") for node in self.nodes]
        for group in self.groups:
            group.letters = Counter(known[at] for at in group.members)

    def changed(self, name: str, letter: str) -> int | None:
        """Note the state of one node; returns the index of its group, None if nothing changed."""
        at = self.index.get(name)
        if at is None or self.letters[at] == letter:
            return None
        group = self.groups[self.group_of[at]]
        group.letters[self.letters[at]] -= 1
        group.letters[letter] += 1
        self.letters[at] = letter
        return self.group_of[at]

    def drawn(self) -> list[dict[str, Any]]:
        """The groups, as the page gets them."""
        return [self._drawn(group) for group in self.groups]

    def _drawn(self, group: NodeGroup) -> dict[str, Any]:
        first = self.nodes[group.members[0]]
        return {
            "key": group.key,
            "label": group.label,
            "count": len(group.members),
            "queue": first.queue,
            "job": first.job,
            "states": group.states,
            "causes": group.letters["F"],
            "after": group.after,
            "layer": group.layer,
            "place": group.place,
        }

    def find(self, key: str) -> NodeGroup | None:
        """The group with this key."""
        return next((group for group in self.groups if group.key == key), None)


def _depths(after: Sequence[Sequence[int]]) -> list[int]:
    depths: list[int] = []
    for at, some in enumerate(after):
        depths.append(1 + max((depths[one] for one in some if one < at), default=-1))
    return depths


def _grouped(nodes: Sequence[GraphNode], depths: Sequence[int]) -> list[int]:
    """The number of the group of each node; few nodes of a kind are groups of their own."""
    numbers: dict[tuple[str, str, str, int], int] = {}
    found = [
        numbers.setdefault((_NUMBER.sub("#", node.name), node.queue, node.job, depth), len(numbers))
        for node, depth in zip(nodes, depths, strict=True)
    ]
    sizes = Counter(found)
    return [group if sizes[group] >= FOLD_FROM else -1 - at for at, group in enumerate(found)]
