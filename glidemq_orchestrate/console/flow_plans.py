"""What the page is about to do with a flow or a node, in words, before it does it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

from fastapi import APIRouter, Depends

from glidemq_orchestrate.console.guard import check_flow, check_signed_in
from glidemq_orchestrate.console.parts import Name, Shared
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.errors import NodeNotFound

router = APIRouter(dependencies=[Depends(check_signed_in), Depends(check_flow)])
MAX_NAMED: Final = 5
_ENDED: Final = frozenset("csfF")


@router.get("/flows/{flow_id}/plan")
async def plan(
    console: Shared, flow_id: Name, action: Literal["retry", "restart", "cancel"]
) -> dict[str, Any]:
    """What an action is about to do."""
    status = (await console.views.get(flow_id)).status
    done, failed, open_ones = status.completed, status.failed, status.open
    if action == "retry":
        text = (
            f"Runs {failed:,} nodes again: those that failed, and those that could not run because of them. "
        )
        return {"text": f"{text}{done:,} completed nodes keep their results.", "nodes": failed}
    if action == "restart":
        text = f"Runs all {status.total:,} nodes again, as a new generation. "
        running = "The present one is cancelled. " if open_ones else ""
        return {"text": f"{text}{running}Results of the present one are replaced.", "nodes": status.total}
    text = f"Ends {open_ones:,} nodes: those that wait do not start, and running handlers are told to stop. "
    return {"text": f"{text}{done:,} completed nodes keep their results.", "nodes": open_ones}


@router.get("/flows/{flow_id}/nodes/{name}/plan")
async def node_plan(
    console: Shared, flow_id: Name, name: Name, action: Literal["rerun", "cancel"]
) -> dict[str, Any]:
    """What running a node again, or ending it, is about to do."""
    view = await console.views.get(flow_id)
    snapshot: Snapshot = view.snapshot
    if (at := snapshot.index.get(name)) is None:
        raise NodeNotFound(f"the flow has no node {name}")
    following = await asyncio.to_thread(snapshot.following, at)
    letters = snapshot.letters
    if action == "cancel":
        return _cancels(snapshot, at, [one for one in following if letters[one] not in _ENDED])
    again = [one for one in following if letters[one] in _ENDED or letters[one] == "a"]
    kept = sum(letter == "c" for letter in letters) - sum(letters[one] == "c" for one in (at, *again))
    text = f"Runs {name} again"
    if again:
        text += f", and {_counted(again)} after it that began or ended: {_named(snapshot, again)}"
    stops = "Those of them that run are stopped. " if any(letters[one] == "a" for one in again) else ""
    results = "Their results are removed. " if again else "Its result is removed. "
    keep = "node keeps its result" if kept == 1 else "nodes keep their results"
    goes_on = " The flow, which has ended, runs again." if view.status.state.is_terminal else ""
    return {
        "text": f"{text}. {stops}{results}{kept:,} other completed {keep}.{goes_on}",
        "nodes": 1 + len(again),
    }


def _cancels(snapshot: Snapshot, at: int, waiting: Sequence[int]) -> dict[str, Any]:
    text = f"Ends {snapshot.names[at]} as failed."
    if snapshot.letters[at] == "a":
        text += " Its handler is told to stop, and what it returns is refused."
    if waiting:
        rule = "follows its rule" if len(waiting) == 1 else "follow their rules"
        text += (
            f" {_counted(waiting)} after it {rule}, by which most cannot run: {_named(snapshot, waiting)}."
        )
    return {"text": text, "nodes": 1 + len(waiting)}


def _counted(some: Collection[int]) -> str:
    return f"{len(some):,} {'node' if len(some) == 1 else 'nodes'}"


def _named(snapshot: Snapshot, some: Sequence[int]) -> str:
    """Some of the nodes by name."""
    named = ", ".join(snapshot.names[one] for one in some[:MAX_NAMED])
    return named if len(some) <= MAX_NAMED else f"{named} and {len(some) - MAX_NAMED:,} more"
