"""The layout of a flow drawn as a tree. Pure.

A node is placed below the last node that all paths to it pass through. So the nodes that a node fans out to
are its branches, and the node that joins the branches follows at the level where they began. A chain is not
indented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glidemq_orchestrate.flows.forms.fold import Group, N

_DEEPEST: Final = 16
_ROOT: Final = -1


def layout(groups: Sequence[Group[N]]) -> list[tuple[str, Group[N]]]:
    """Every group once, with the tree lines that lead to it.

    Args:
        groups: Dependencies before dependents, as ``fold`` returns them.
    """
    below = _below(groups)
    rows: list[tuple[str, Group[N]]] = []
    todo = _placed(groups, _ROOT, below, "")[::-1]
    while todo:
        at, first, rest = todo.pop()
        rows.append((first, groups[at]))
        todo += _placed(groups, at, below, rest)[::-1]
    return rows


def _placed(
    groups: Sequence[Group[N]], at: int, below: dict[int, list[int]], rest: str
) -> list[tuple[int, str, str]]:
    """The groups directly below one: each with its tree lines, and those of the groups below it."""
    children = below.get(at, [])
    if len(children) == 1:
        return [(children[0], rest, rest)]
    own = [] if at == _ROOT else [at]
    branches = [child for child in children if groups[child].after == own]
    joins = [child for child in children if groups[child].after != own]
    if (at == _ROOT and not joins) or len(rest) > 3 * _DEEPEST:
        return [(child, rest, rest) for child in children]
    found = []
    for branch in branches:
        is_last = branch == branches[-1] and not joins
        lines = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        found.append((branch, rest + lines[0], rest + lines[1]))
    return found + [(join, rest, rest) for join in joins]


def _below(groups: Sequence[Group[N]]) -> dict[int, list[int]]:
    """The groups below each group: those for which it is the last one that all paths to them share."""
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
