"""What the console shows of a flow: its nodes folded into groups, in layers, with the states of each group.

A group has the nodes whose names differ by numbers only, which have the same handler and are at the same
depth of the graph. If those are too many to be drawn, depth is left out, and a chain is one group as well.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.flows.forms.drawing import range_name
from glidemq_orchestrate.flows.graph import LETTERS, FlowGraph

MAX_GROUPS: Final = 600
FOLD_FROM: Final = 5
_ENDED: Final = frozenset("csfF")
_FAILED: Final = frozenset("fF")
SAMPLED: Final = 100
"""How many of the first and of the last names of a group its label is made of."""
_WITHOUT_DIGITS: Final = str.maketrans("", "", "0123456789")


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
        graph: All nodes.
    """

    def __init__(self, graph: FlowGraph) -> None:
        self.graph, self.names = graph, _together(graph.names)
        self.index = dict(zip(self.names, range(len(self.names)), strict=True))
        self.after = _resolved(graph.after, self.index)
        self.letters = ["?"] * len(graph.names)
        self.group_of = _grouped(graph, _depths(self.after))
        self.groups = self._made()
        if len(self.groups) > MAX_GROUPS:
            self.group_of = _grouped(graph, [0] * len(graph.names))
            self.groups = self._made()
        self._draw()

    def _made(self) -> list[NodeGroup]:
        members: dict[int, list[int]] = {}
        for at, group in enumerate(self.group_of):
            if (known := members.get(group)) is None:
                members[group] = [at]
            else:
                known.append(at)
        groups: list[NodeGroup] = []
        used: set[str] = set()
        for some in members.values():
            ends = some if len(some) <= 2 * SAMPLED else some[:SAMPLED] + some[-SAMPLED:]
            label = range_name([self.names[at] for at in ends]) if len(some) > 1 else self.names[some[0]]
            key = label if label not in used else f"{label} #{len(groups)}"
            used.add(key)
            groups.append(NodeGroup(key, label, some))
        numbers = dict(zip(members, range(len(members)), strict=True))
        self.group_of = list(map(numbers.__getitem__, self.group_of))
        return groups

    def _draw(self) -> None:
        """Edges between groups, and the place of each."""
        group_of = self.group_of
        for at, group in enumerate(self.groups):
            nodes = set[int]().union(*map(self.after.__getitem__, group.members))
            before = set(map(group_of.__getitem__, nodes))
            group.after = sorted(before - {at})
        layers = Counter[int]()
        for group in self.groups:
            earlier = [self.groups[one].layer for one in group.after if one < self.group_of[group.members[0]]]
            group.layer = max(earlier, default=-1) + 1
            group.place = layers[group.layer]
            layers[group.layer] += 1

    @functools.cached_property
    def node_of(self) -> dict[str, str]:
        """The nodes by the ids of their jobs."""
        return dict(zip(self.graph.job_ids, self.names, strict=True))

    @property
    def layers(self) -> int:
        """How many columns it has."""
        return max((group.layer for group in self.groups), default=-1) + 1

    def update(self, letters: Mapping[str, str]) -> None:
        """Note the states of all nodes."""
        self._note([letters.get(name, "?") for name in self.names])

    def infer(
        self, open_: AbstractSet[str] | None, failed: AbstractSet[str], active: AbstractSet[str]
    ) -> None:
        """Note the states of all nodes by the ids of their jobs, without reading each.

        A node of which all dependencies have ended is ready, and a failed one failed by itself if no
        dependency of it did. ``open_``: None if no node has ended.
        """
        ids, after = self.graph.job_ids, self.after
        if open_ is None:
            letters = ["b" if some else "w" for some in after]
            if active:
                letters = ["a" if one in active else letter for one, letter in zip(ids, letters, strict=True)]
            self._note(letters)
            return
        letters = ["c"] * len(ids)
        for at, job_id in enumerate(ids) if open_ or failed else ():
            if job_id in open_:
                letters[at] = "a" if job_id in active else _waiting(letters, after[at])
            elif job_id in failed:
                letters[at] = "f" if any(letters[one] in _FAILED for one in after[at]) else "F"
        self._note(letters)

    def _note(self, letters: list[str]) -> None:
        self.letters = letters
        for group in self.groups:
            group.letters = Counter([letters[at] for at in group.members])

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

    def following(self, *nodes: int) -> list[int]:
        """All nodes that come after these, ascending."""
        reached, found = set(nodes), list[int]()
        for one in range(min(nodes, default=len(self.after)) + 1, len(self.after)):
            if one not in reached and not reached.isdisjoint(self.after[one]):
                reached.add(one)
                found.append(one)
        return found

    def is_open(self, at: int) -> bool:
        """Whether a node has not ended."""
        return self.letters[at] not in _ENDED

    def first_open(self, nodes: Iterable[int]) -> list[int]:
        """Of these and all before them, those that have not ended and whose dependencies have; ascending."""
        found, seen, left = list[int](), set[int](), list(nodes)
        while left:
            at = left.pop()
            if at in seen:
                continue
            seen.add(at)
            before = list(filter(self.is_open, self.after[at]))
            left += before
            if not before:
                found.append(at)
        return sorted(found)

    def drawn(self) -> list[dict[str, Any]]:
        """The groups, as the page gets them."""
        return [self._drawn(group) for group in self.groups]

    def _drawn(self, group: NodeGroup) -> dict[str, Any]:
        first = group.members[0]
        return {
            "key": group.key,
            "label": group.label,
            "count": len(group.members),
            "queue": self.graph.queues[first],
            "job": self.graph.jobs[first],
            "states": group.states,
            "causes": group.letters["F"],
            "after": group.after,
            "layer": group.layer,
            "place": group.place,
        }

    def find(self, key: str) -> NodeGroup | None:
        """The group with this key."""
        return next((group for group in self.groups if group.key == key), None)


def _waiting(letters: Sequence[str], after: Sequence[int]) -> str:
    for one in after:
        if letters[one] not in _ENDED:
            return "b"
    return "w"


def _resolved(after: Sequence[Sequence[Any]], index: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The places of the dependencies of each node."""
    try:
        return [tuple(map(index.__getitem__, some)) if some else () for some in after]
    except (KeyError, TypeError):  # some are broken
        return [
            tuple([index[one] for one in some if isinstance(one, str) and one in index]) for some in after
        ]


def _depths(after: Sequence[Sequence[int]]) -> list[int]:
    """How many nodes follow one another before each."""
    depths: list[int] = []
    add, depth_of = depths.append, depths.__getitem__
    for some in after:
        try:
            add(max(map(depth_of, some)) + 1 if some else 0)
        except IndexError:  # the table is broken: one comes before what it waits for
            add(max((depths[one] for one in some if one < len(depths)), default=-1) + 1)
    return depths


def _grouped(graph: FlowGraph, depths: Sequence[int]) -> list[int]:
    """The number of the group of each node: negative for nodes of which there are few, alone in theirs."""
    kinds = _without_digits(graph.names)
    plain = list(map(operator.eq, map(len, kinds), map(len, graph.names)))
    columns = [one for one in (kinds, plain, graph.queues, graph.jobs, depths) if len(set(one)) > 1]
    keys: Sequence[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    if not columns:
        keys = plain
    numbers = dict(zip(dict.fromkeys(keys), itertools.count()))
    found = list(map(numbers.__getitem__, keys))
    sizes = Counter(found)
    few = {group for group, size in sizes.items() if size < FOLD_FROM}
    return [-1 - at if group in few else group for at, group in enumerate(found)] if few else found


def _together(names: Sequence[str]) -> list[str]:
    """The same names as neighbours in memory: it takes less time to look at them one after the other."""
    found = "\n".join(names).split("\n")
    return found if len(found) == len(names) else list(names)


def _without_digits(names: Sequence[str]) -> list[str]:
    """All names at once, as each call takes longer than a name."""
    found = "\n".join(names).translate(_WITHOUT_DIGITS).split("\n")
    if len(found) != len(names):
        found = [name.translate(_WITHOUT_DIGITS) for name in names]
    known = dict.fromkeys(found)
    canonical = dict(zip(known, known, strict=True))
    return list(map(canonical.__getitem__, found))  # equal ones are one object: compared much faster
