"""When nodes waited and ran, as bars: those of the critical path, and those that took longest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.console.shown import time_text
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.console.snapshots import FlowView
from glidemq_orchestrate.flows.graph import NodeTimes, read_times
from glidemq_orchestrate.flows.status import NodeStatus, critical_path

MAX_BARS: Final = 300
_STILL: Final = 10**15
"""Milliseconds: nodes that still run come before all that have ended."""


class Row(NamedTuple):
    """A node, as far as the critical path depends on it; times in ms."""

    name: str
    after: Sequence[str]
    started_at: int | None
    finished_at: int | None

    @property
    def ms(self) -> int:
        """How long it ran."""
        if self.started_at is None or self.finished_at is None:
            return _STILL
        return self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class Chosen:
    """The nodes to draw.

    Attributes:
        names: Those of the critical path, longest first, then the others, longest first.
        path: The critical path.
        ready: When the last dependency of each ended, in ms.
        total: How many nodes have started.
    """

    names: list[str]
    path: frozenset[str]
    ready: Mapping[str, int]
    total: int


async def read_bars(view: FlowView, note: Callable[[int], None]) -> tuple[list[dict[str, Any]], int]:
    """The bars of a flow, and how many of its nodes have started; ``note`` gets how many have been read."""
    flow, snapshot = view.flow, view.snapshot
    times = await flow._run(read_times(flow._ref, note))  # noqa: SLF001  nothing else needs it
    chosen = await asyncio.to_thread(choose, snapshot, times)
    nodes = {node.name: node for node in (await flow.nodes(chosen.names) if chosen.names else ())}
    bars = (_bar(nodes[name], chosen, snapshot) for name in chosen.names if name in nodes)
    return [bar for bar in bars if bar is not None], chosen.total


def choose(snapshot: Snapshot, times: Sequence[NodeTimes]) -> Chosen:
    """Which nodes are drawn."""
    known = {one.name: one for one in times}
    never = NodeTimes("", None, None)
    rows = [
        Row(name, after, (at := known.get(name, never)).started, at.finished)
        for name, after in zip(snapshot.names, snapshot.graph.after, strict=True)
    ]
    path = frozenset(critical_path(rows))
    begun = [row for row in rows if row.started_at is not None]
    first = sorted(begun, key=lambda row: (row.name not in path, -row.ms))[:MAX_BARS]
    ready = {row.name: _ready(row, known) for row in first}
    return Chosen([row.name for row in first], path, ready, len(begun))


def _ready(row: Row, known: Mapping[str, NodeTimes]) -> int:
    return max((known[name].finished or 0 for name in row.after if name in known), default=0)


def _bar(node: NodeStatus, chosen: Chosen, snapshot: Snapshot) -> dict[str, Any] | None:
    if node.started_at is None:  # it has begun again meanwhile
        return None
    ready = chosen.ready[node.name]
    at = snapshot.index[node.name]
    return {
        "group": snapshot.groups[snapshot.group_of[at]].key,
        "label": node.name,
        "state": node.state,
        "ready_at": time_text(datetime.fromtimestamp(ready / 1000, UTC)) if ready else None,
        "started_at": time_text(node.started_at),
        "finished_at": time_text(node.finished_at),
        "critical": node.name in chosen.path,
        "seconds": (node.finished_at - node.started_at).total_seconds() if node.finished_at else 1e9,
    }
