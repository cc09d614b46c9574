"""What a flow or a node waits for: dependencies that have not ended, and what holds nodes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate.console.shown import masked_line, time_text
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.console.snapshots import FlowView
from glidemq_orchestrate.flows.status import NodeStatus, Wait
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.shards import split_shard

MAX_SHOWN: Final = 20
MAX_LOOKED: Final = 200
MAX_NAMED: Final = 5
_ACTIVE: Final = "a"
_HELD: Final = frozenset("wdu")
"""The letters of nodes that wait for something else than other nodes."""


async def waits_of(view: FlowView, node: NodeStatus) -> dict[str, Any]:
    """What a node waits for, as ``flow show`` tells it, and the dependencies that have not ended.

    Returns:
        ``wait``: what holds the node itself back; None if nothing does. ``waits_for``: some of its
        dependencies that have not ended, ``waits_for_count``: of how many. ``held_by``: the nodes further up
        that these wait for in the end; their own dependencies have ended.
    """
    flow, snapshot, direct = view.flow, view.snapshot, list[int]()
    if node.state is JobState.WAITING_CHILDREN:
        places = (snapshot.index[name] for name in node.after if name in snapshot.index)
        direct = [at for at in places if snapshot.is_open(at)]
    known = set(direct)
    first = [at for at in await asyncio.to_thread(snapshot.first_open, direct) if at not in known]
    some = [snapshot.names[at] for at in (*direct[:MAX_SHOWN], *first[:MAX_SHOWN])]
    before = {one.name: one for one in await flow.nodes(some)} if some else {}
    waits = await flow.waits([node, *before.values()])
    arrays = await view.once("arrays", view.arrays) if before else {}
    rows = {
        name: {**_row(one, waits, snapshot), "array": arrays.get(name)}
        for name, one in before.items()
        if not one.state.is_terminal
    }
    ended = before.keys() - rows.keys()  # since the states of all nodes were read
    return {
        "wait": wait_row(waits.get(node.name)),
        "waits_for": [rows[name] for at in direct if (name := snapshot.names[at]) in rows],
        "waits_for_count": sum(snapshot.names[at] not in ended for at in direct),
        "held_by": [rows[name] for at in first if (name := snapshot.names[at]) in rows],
        "held_by_count": sum(snapshot.names[at] not in ended for at in first),
    }


async def waits_of_flow(view: FlowView) -> dict[str, Any]:
    """What the nodes of a flow wait for that wait for no other nodes, by reason; of many, the first ones.

    Active ones are among them if their worker has been silent.

    Returns:
        ``waits``: the reasons, those that are not merely a turn first. ``looked``: at so many that wait,
        ``of`` so many.
    """
    flow, snapshot = view.flow, view.snapshot
    arrays = await view.once("arrays", view.arrays)
    idle = [name for name, counts in arrays.items() if not counts["running"]]
    letters = list(zip(snapshot.names, snapshot.letters, strict=True))
    active = [name for name, letter in letters if letter == _ACTIVE and name not in arrays][:MAX_LOOKED]
    held = [name for name, letter in letters if letter in _HELD]
    waiting = [*idle, *held]
    names = [*active, *waiting[:MAX_LOOKED]]
    nodes = await flow.nodes(names) if names else []
    by_name = {node.name: node for node in nodes}
    found: dict[str, dict[str, Any]] = {}
    for name, wait in (await flow.waits(nodes)).items():
        row = wait_row(wait) or {}
        queue = split_shard(by_name[name].queue)[0]
        known = found.setdefault(row["reason"], {**row, "is_turn": wait.is_turn, "queue": queue, "nodes": []})
        known["nodes"].append(name)
        known["until"] = min(filter(None, (known["until"], row["until"])), default=None)
    rows = sorted(found.values(), key=lambda row: (row["is_turn"], bool(row["until"]), -len(row["nodes"])))[
        :MAX_SHOWN
    ]
    waits = [{**row, "count": len(row["nodes"]), "nodes": row["nodes"][:MAX_NAMED]} for row in rows]
    return {"waits": waits, "looked": min(len(waiting), MAX_LOOKED), "of": len(waiting)}


def wait_row(wait: Wait | None) -> dict[str, Any] | None:
    """Why a job waits, and until when."""
    if wait is None:
        return None
    return {"reason": masked_line(wait.reason), "until": time_text(wait.until)}


def _row(node: NodeStatus, waits: Mapping[str, Wait], snapshot: Snapshot) -> dict[str, Any]:
    after: Sequence[int] = snapshot.after[snapshot.index[node.name]]
    return {
        "name": node.name,
        "state": node.state,
        "started_at": time_text(node.started_at) if node.state is JobState.ACTIVE else None,
        "wait": wait_row(waits.get(node.name)),
        "open": sum(map(snapshot.is_open, after)),
    }
