"""What the page is about to do with a flow or a node, in words, before it does it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query

from glidemq_orchestrate.console.guard import check_flow, check_signed_in
from glidemq_orchestrate.console.parts import MAX_GROUP_NAME, MAX_RETRIED, Name, Shared, failed_in
from glidemq_orchestrate.console.shown import masked_line
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.console.snapshots import FlowView
from glidemq_orchestrate.errors import NodeNotFound
from glidemq_orchestrate.flows.nodes import split_name
from glidemq_orchestrate.foundation.texts import counted

router = APIRouter(dependencies=[Depends(check_signed_in), Depends(check_flow)])
MAX_NAMED: Final = 5
_ENDED: Final = frozenset("csfF")
_GOES_ON: Final = " The flow, which has ended, runs again."


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


@router.get("/flows/{flow_id}/group-plan")
async def group_plan(
    console: Shared, flow_id: Name, group: Annotated[str, Query(max_length=MAX_GROUP_NAME)]
) -> dict[str, Any]:
    """What retrying one group of failures is about to do."""
    view = await console.views.get(flow_id)
    snapshot: Snapshot = view.snapshot
    names = await failed_in(view.flow, group)
    failed = [at for name in names if (at := snapshot.index.get(name)) is not None]
    if not failed:
        return {"text": "No failed node is in this group any more: nothing runs again.", "nodes": 0}
    some = failed[:MAX_RETRIED]
    again, others = await asyncio.to_thread(_with_followers, snapshot, some)
    letters = snapshot.letters
    text = f"Runs {_counted(some)} of the group {masked_line(group)} again: {_named(snapshot, some)}"
    if len(some) < len(failed):
        text = f"Runs the {len(some):,} nodes of the {len(failed):,} in the group that failed first again"
    if again:
        text += f"; and {_counted(again)} after {_them(some)} that began or ended: {_named(snapshot, again)}"
        if others:
            rules = "it does not run" if len(others) == 1 else "they do not run"
            text += f". Of these, {_counted(others)} also {_follow(others)} nodes that stay failed: "
            text += f"by most rules, {rules}"
    left = sum(letter == "F" for letter in letters) - sum(letters[one] == "F" for one in (*some, *again))
    kept = sum(letter == "c" for letter in letters) - sum(letters[one] == "c" for one in again)
    stays = (
        f" {counted(left, 'other failed node')} {'stays' if left == 1 else 'stay'} failed."
        if left > 0
        else ""
    )
    keep = f"{kept:,} completed {'node keeps its result' if kept == 1 else 'nodes keep their results'}."
    goes_on = _GOES_ON if view.status.state.is_terminal else ""
    return {"text": f"{text}.{stays} {keep}{goes_on}", "nodes": len(some) + len(again)}


def _begun(snapshot: Snapshot, nodes: Iterable[int]) -> list[int]:
    """Those of the nodes that have ended or run."""
    letters = snapshot.letters
    return [one for one in nodes if letters[one] in _ENDED or letters[one] == "a"]


def _with_followers(snapshot: Snapshot, some: Sequence[int]) -> tuple[list[int], list[int]]:
    """The nodes that run again because these do, and those of them that also follow other failed nodes."""
    letters = snapshot.letters
    again = _begun(snapshot, snapshot.following(*some))
    rerun = {*some, *again}
    others = [at for at, letter in enumerate(letters) if letter == "F" and at not in rerun]
    return again, [one for one in snapshot.following(*others) if one in rerun]


@router.get("/flows/{flow_id}/nodes/{name}/plan")
async def node_plan(
    console: Shared, flow_id: Name, name: Name, action: Literal["rerun", "cancel"]
) -> dict[str, Any]:
    """What running a node again, or ending it, is about to do; or an element of an array."""
    view = await console.views.get(flow_id)
    snapshot: Snapshot = view.snapshot
    if (at := snapshot.index.get(name)) is None:
        return await _element_plan(view, name, action)
    following = await asyncio.to_thread(snapshot.following, at)
    letters = snapshot.letters
    if action == "cancel":
        return _cancels(snapshot, at, [one for one in following if letters[one] not in _ENDED])
    again = _begun(snapshot, following)
    kept = sum(letter == "c" for letter in letters) - sum(letters[one] == "c" for one in (at, *again))
    text = f"Runs {name} again"
    if again:
        text += f", and {_counted(again)} after it that began or ended: {_named(snapshot, again)}"
    stops = "Those of them that run are stopped. " if any(letters[one] == "a" for one in again) else ""
    results = "Their results are removed. " if again else "Its result is removed. "
    keep = "node keeps its result" if kept == 1 else "nodes keep their results"
    goes_on = _GOES_ON if view.status.state.is_terminal else ""
    return {
        "text": f"{text}. {stops}{results}{kept:,} other completed {keep}.{goes_on}",
        "nodes": 1 + len(again),
    }


async def _element_plan(view: FlowView, name: str, action: str) -> dict[str, Any]:
    snapshot, split = view.snapshot, split_name(name)
    if split is None or (at := snapshot.index.get(split[0])) is None:
        raise NodeNotFound(f"the flow has no node {name}")
    if action == "cancel":
        text = (
            f"Ends {name} as failed. If it runs, its handler is told to stop, and what it returns is refused."
        )
        return {"text": text, "nodes": 1}
    text = f"Runs {name} again, whose result is removed. The other elements of {split[0]} keep their ends."
    if snapshot.letters[at] not in _ENDED:
        return {"text": text, "nodes": 1}
    again = _begun(snapshot, await asyncio.to_thread(snapshot.following, at))
    if again:
        text += (
            f" {_counted(again)} after it that began or ended {_run(again)} again: {_named(snapshot, again)}."
        )
    if view.status.state.is_terminal:
        text += _GOES_ON
    return {"text": text, "nodes": 1 + len(again)}


def _run(some: Collection[int]) -> str:
    return "runs" if len(some) == 1 else "run"


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


def _them(some: Collection[int]) -> str:
    return "it" if len(some) == 1 else "them"


def _follow(some: Collection[int]) -> str:
    return "follows" if len(some) == 1 else "follow"


def _counted(some: Collection[int]) -> str:
    return counted(len(some), "node")


def _named(snapshot: Snapshot, some: Sequence[int]) -> str:
    """Some of the nodes by name."""
    named = ", ".join(snapshot.names[one] for one in some[:MAX_NAMED])
    return named if len(some) <= MAX_NAMED else f"{named} and {len(some) - MAX_NAMED:,} more"
