"""The changes that a reader of a flow gets, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import FlowSpec
from glidemq_orchestrate.flows import FlowChange, NodeChange
from tests.builders import flow, node

if TYPE_CHECKING:
    from tests.server.conftest import Clients

LONG = timedelta(seconds=60)
Change = NodeChange | FlowChange
DIAMOND = flow(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"))


def layers(width: int, depth: int, queues: Sequence[str] = ("etl",)) -> FlowSpec:
    """Each node waits for two of the layer before; the queues take turns."""
    nodes = []
    for layer in range(depth):
        for at in range(width):
            after = [f"{layer - 1}-{at}", f"{layer - 1}-{(at + 1) % width}"] if layer else []
            nodes.append(node(f"{layer}-{at}", *after, queue=queues[(layer + at) % len(queues)]))
    return flow(*nodes)


def last_states(changes: Sequence[Change]) -> dict[str, str]:
    return {one.node: str(one.state) for one in changes if isinstance(one, NodeChange)}


def steps(changes: Sequence[Change]) -> list[tuple[str, str]]:
    return [(one.node, str(one.state)) for one in changes if isinstance(one, NodeChange)]


def check(spec: FlowSpec, changes: Sequence[Change]) -> None:
    """No state twice in a row, and no start before the dependencies were reported to have ended."""
    now: dict[str, str] = {}
    after: dict[str, Sequence[str]] = {one.name: one.after for one in spec.nodes}
    for change in changes:
        if isinstance(change, FlowChange):
            assert change is changes[-1]
            continue
        assert now.get(change.node) != change.state or change.state == "active", change
        now[change.node] = str(change.state)
        if change.state in ("waiting", "active", "completed"):
            assert all(now.get(name) == "completed" for name in after.get(change.node, ())), change


def watched(twins: Clients, found: Any, **kw: Any) -> list[Any]:
    kw = {"timeout": LONG} | kw
    if twins.runner is None:
        return list(found.watch(**kw))

    async def collect() -> list[Any]:
        return [change async for change in found.watch(**kw)]

    return twins.runner.run(collect())
