"""The layout of a flow as a tree. Pure.

A node is placed below the last node that all paths to it share. So a fan-out forms branches below its node,
and the node that joins the branches follows at the level where they began. A chain is not indented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic

from glidemq_orchestrate.flows.forms.fold import Group, N

_DEEPEST: Final = 16
_ROOT: Final = -1


@dataclass(eq=False)
class DrawnGroup(Generic[N]):
    """A group in the drawing.

    Attributes:
        group: None for the root, if the flow begins with branches.
        branches: The indented branches below it, each a sequence of groups.
    """

    group: Group[N] | None
    branches: list[list[DrawnGroup[N]]] = field(default_factory=list)


def layout(groups: Sequence[Group[N]]) -> list[DrawnGroup[N]]:
    """The groups at the top level; every group occurs once in the tree.

    Args:
        groups: Dependencies before dependents, as ``fold`` returns them.
    """
    below = _below(groups)
    root: DrawnGroup[N] = DrawnGroup(None)
    outermost: list[DrawnGroup[N]] = []
    todo = [(_ROOT, root, outermost, 0)]
    while todo:
        at, place, level, depth = todo.pop()
        level.append(place)
        branches, beside = _split(groups, at, below.get(at, []), depth)
        place.branches = [[] for _ in branches]
        inside = zip(branches, place.branches, strict=True)
        todo += [
            *((child, DrawnGroup(groups[child]), level, depth) for child in beside[::-1]),
            *[(child, DrawnGroup(groups[child]), branch, depth + 1) for child, branch in inside][::-1],
        ]
    return outermost if root.branches else outermost[1:]


def _split(
    groups: Sequence[Group[N]], at: int, children: Sequence[int], depth: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The branches among the groups below one, and the unindented rest: joins, or a chain."""
    own = [] if at == _ROOT else [at]
    branches = [child for child in children if groups[child].after == own]
    joins = [child for child in children if groups[child].after != own]
    if len(children) == 1 or (at == _ROOT and not joins) or depth >= _DEEPEST:
        return [], children
    return branches, joins


def _below(groups: Sequence[Group[N]]) -> dict[int, list[int]]:
    """By group, those for which it is the last one that all paths to them share."""
    above, depth = {_ROOT: _ROOT}, {_ROOT: 0}
    below: dict[int, list[int]] = {}
    for at, group in enumerate(groups):
        shared = group.after[0] if group.after else _ROOT
        for other in group.after[1:]:
            one, two = shared, other
            while one != two:
                if depth[one] < depth[two]:
                    one, two = two, one
                one = above[one]
            shared = one
        above[at], depth[at] = shared, depth[shared] + 1
        below.setdefault(shared, []).append(at)
    return below
