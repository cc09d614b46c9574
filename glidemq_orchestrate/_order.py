"""The order of a graph. networkx is imported only to name a cycle: it costs half a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from glidemq_orchestrate.errors import CycleError

if TYPE_CHECKING:
    import networkx as nx


def topological_order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """Names with every dependency before its dependents; among equals in the order of writing.

    Raises:
        CycleError: There is none.
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
        raise CycleError(_cycle(after))
    return order


def _cycle(after: Mapping[str, Sequence[str]]) -> list[str]:
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((dependency, name) for name, names in after.items() for dependency in names)
    return [edge[0] for edge in nx.find_cycle(graph)]
