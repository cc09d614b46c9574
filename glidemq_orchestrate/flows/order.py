"""The topological order of a graph, or the cycle that prevents one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush

from glidemq_orchestrate.errors import CycleError, DuplicateNode, UnknownDependency


def check_unique(names: Sequence[str]) -> None:
    """Refuse duplicate names.

    Raises:
        DuplicateNode: It lists the duplicate names.
    """
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DuplicateNode(repeated)


def check_known(after: Mapping[str, Sequence[str]]) -> None:
    """Refuse dependencies that are not among the names.

    Raises:
        UnknownDependency: It maps each dependent to its unknown dependencies.
    """
    missing = {name: [str(one) for one in others if one not in after] for name, others in after.items()}
    if any(missing.values()):
        raise UnknownDependency({name: others for name, others in missing.items() if others})


def topological_order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The names with every dependency before its dependents; otherwise in the original order.

    Raises:
        CycleError: There is no such order.
    """
    names = list(after)
    ranks = {name: rank for rank, name in enumerate(names)}
    dependents: list[list[int]] = [[] for _ in names]
    missing = []
    for rank, dependencies in enumerate(map(set, after.values())):
        missing.append(len(dependencies))
        for dependency in dependencies:
            dependents[ranks[dependency]].append(rank)
    ready = [rank for rank, count in enumerate(missing) if not count]
    order = []
    while ready:
        rank = heappop(ready)
        order.append(names[rank])
        for dependent in dependents[rank]:
            missing[dependent] -= 1
            if not missing[dependent]:
                heappush(ready, dependent)
    if len(order) < len(names):
        raise CycleError(_cycle(after, set(order)))
    return order


def _cycle(after: Mapping[str, Sequence[str]], ordered: Collection[str]) -> list[str]:
    """A cycle among the nodes that could not be ordered, dependencies before dependents."""
    # Each of them waits for another one, so following dependencies reaches a node twice.
    seen: dict[str, int] = {}
    name = next(name for name in after if name not in ordered)
    while name not in seen:
        seen[name] = len(seen)
        name = next(other for other in after[name] if other not in ordered)
    return list(seen)[seen[name] :][::-1]
