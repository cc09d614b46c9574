"""What the page reads of flows and nodes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import RedirectResponse, StreamingResponse

from glidemq_orchestrate.console.guard import check_flow, check_signed_in
from glidemq_orchestrate.console.job_search import find_jobs
from glidemq_orchestrate.console.node_waits import waits_of_flow
from glidemq_orchestrate.console.parts import Name, Shared, failure_rows, flow_row, node_row
from glidemq_orchestrate.console.shown import time_text
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.console.snapshots import MAX_EXACT, PATIENCE_SECONDS
from glidemq_orchestrate.console.timeline import MAX_BARS, read_bars
from glidemq_orchestrate.errors import ConfigurationError, NodeNotFound
from glidemq_orchestrate.flows.elements import summary_of
from glidemq_orchestrate.flows.graph import LETTERS
from glidemq_orchestrate.flows.status import FlowId, FlowState, FlowStatus, NodeStatus, critical_path
from glidemq_orchestrate.wire.stored import moment

router = APIRouter(dependencies=[Depends(check_signed_in)])
GUARDED: Final = [Depends(check_flow)]
PAGE: Final = 50
SEARCH_PAGE: Final = 500
MAX_SEARCHED: Final = 2_000
"""How many flows a search looks at, newest first."""
MAX_LINKED: Final = 200
_UNFILLED: Final = ("", "-1", "{MAP_INDEX}", "{TASK_ID}", "{RUN_ID}")
"""What Airflow leaves in a link where it has no value, as for a task that is not mapped."""
PULSE: Final = b": still here\n\n"


@router.get("/about")
async def about(console: Shared) -> dict[str, Any]:
    """The service, its server and that server's clock."""
    return {**console.about, "now": time_text(await console.client.flows.now())}


# --- flows ---


@router.get("/flows")
async def flows(  # noqa: PLR0913, PLR0917  its filters
    console: Shared,
    request: Request,
    state: str | None = None,
    search: str = "",
    label: str = "",
    since: datetime | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = PAGE,
    cursor: str = "",
) -> dict[str, Any]:
    """Flows, newest first. A search matches ids, names, labels such as a DAG or a run, and ids of jobs.

    ``searched``: after so many flows it has stopped, and goes on from ``next``. ``jobs``: those with this id
    that are nodes of no flow; queues are looked at for a number, and if nothing else matches.
    """
    producer = console.client.flows
    key, is_label, value = label.partition("=")
    if label and not is_label:
        raise ConfigurationError(f"a label is looked for as key=value, got {label!r:.80}")
    filters: dict[str, Any] = {"state": state or None, "since": since}
    filters["label"] = (key, value) if is_label else None
    before = _flow_at(cursor) if cursor else None
    found: list[FlowStatus] = []
    words, looked = search.lower().split(), 0
    while len(found) < limit and looked < MAX_SEARCHED:
        page = await producer.list(**filters, before=before, limit=SEARCH_PAGE if words else limit)
        looked += len(page)
        for status in page:
            before = status
            if not all(_matches(status, word) for word in words):
                continue
            if await console.guard.sees_flow(request, status.labels):
                found.append(status)
                if len(found) == limit:
                    break
        if len(page) < (SEARCH_PAGE if words else limit):
            before = None if len(found) < limit else before
            break
    is_cut = before is not None and len(found) < limit
    last = before if is_cut else found[-1] if len(found) == limit and before is not None else None
    ids, by_job = {one.id for one in found}, dict[str, Any](flows=[], jobs=[])
    is_id = len(words) == 1 and (not found or words[0].isdecimal())
    if is_id and not (cursor or any(filters.values())):
        by_job = await find_jobs(console, request, search.strip())
    return {
        "flows": [*(one for one in by_job["flows"] if one["id"] not in ids), *map(flow_row, found)],
        "jobs": by_job["jobs"],
        "next": _cursor_of(last) if last is not None else None,
        "searched": looked if is_cut else None,
    }


def _cursor_of(status: FlowStatus) -> str:
    """The place of a flow in the list, also when the flow is there no more."""
    at = 0 if status.created_at is None else round(status.created_at.timestamp() * 1000)
    return f"{at}:{status.stored_as or status.id}"


def _flow_at(cursor: str) -> FlowStatus:
    """A flow in this place of the list; nothing else of it is known.

    Raises:
        ConfigurationError: There is no such place.
    """
    at, mark, name = cursor.partition(":")
    created = moment(at) if mark and name and at.isdecimal() else None
    if created is None:
        raise ConfigurationError(f"there is no page {cursor!r:.80}. Fix: begin with the newest flows")
    flow_id, state = FlowId(name), FlowState.UNKNOWN
    return FlowStatus(flow_id, "", state, "", 0, 0, 0, "", {}, created, None, stored_as=name)


async def of(console: Shared, request: Request) -> Response:
    """Open the flow with the labels in the query, or the list of those that have them.

    For links from other applications: ``of?dag_id=sales&run_id=r1&task_id=nightly``.
    """
    wanted = {key: text for key, text in request.query_params.items() if text not in _UNFILLED}
    key = "run_id" if "run_id" in wanted else next(iter(wanted), "")
    # Whoever makes the link may leave a plus sign as it is, which then stands for a space.
    values = dict.fromkeys([wanted.get(key, ""), wanted.get(key, "").replace(" ", "+")])
    found = [
        status
        for value in values
        if value
        for status in await console.client.flows.list(label=(key, value), limit=MAX_LINKED)
        if all(status.labels.get(one) == text for one, text in wanted.items() if one != key)
        and await console.guard.sees_flow(request, status.labels)
    ]
    if len(found) == 1:
        return RedirectResponse(f"./#/flows/{quote(found[0].id, safe='')}", 303)
    words = " ".join(f"{one}={text}" for one, text in wanted.items())
    return RedirectResponse(f"./#/flows?search={quote(words, safe='')}", 303)


def _matches(status: FlowStatus, word: str) -> bool:
    """Whether a word is part of the id, the name or a label, or of the id of a job of the flow."""
    labels = (f"{key}={value}" for key, value in status.labels.items())
    texts = (status.id, status.name, *labels)
    return any(word in text.lower() for text in texts) or word.startswith(f"{status.id.lower()}~")


@router.get("/flows/{flow_id}/nodes", dependencies=GUARDED)
async def nodes(  # noqa: PLR0913, PLR0917  its filters
    console: Shared,
    flow_id: Name,
    group: str = "",
    state: str = "",
    search: str = "",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """Nodes of a flow, in its order: of a group, in a state, or with a text or pattern in their names."""
    view = await console.views.get(flow_id)
    snapshot = view.snapshot
    folded = snapshot.find(group) if group else None
    if group and folded is None:
        raise NodeNotFound(f"flow {flow_id} has no group {group}")
    places: Sequence[int] = folded.members if folded else range(len(snapshot.names))
    if state:
        places = [at for at in places if LETTERS.get(snapshot.letters[at]) == state]
    if search:
        pattern = search if "*" in search else f"*{search}*"
        escaped = pattern.replace("[", "[[]")
        places = [at for at in places if fnmatchcase(snapshot.names[at], escaped)]
    names = [snapshot.names[at] for at in places[offset : offset + limit]]
    found = await view.flow.nodes(names) if names else []
    return {"nodes": [node_row(one) for one in found], "total": len(places)}


@router.get("/flows/{flow_id}/failures", dependencies=GUARDED)
async def failures(console: Shared, flow_id: Name) -> dict[str, Any]:
    """The failed nodes by cause."""
    view = await console.views.get(flow_id)
    groups = failure_rows(await view.once("failures", view.flow.failures, within=PATIENCE_SECONDS))
    for one in groups:
        one["examples"] = [example["node"] or example["job_id"] for example in one["examples"]]
    return {"groups": groups}


@router.get("/flows/{flow_id}/waits", dependencies=GUARDED)
async def waits(console: Shared, flow_id: Name) -> dict[str, Any]:
    """What its nodes wait for that wait for no other nodes, by reason."""
    view = await console.views.get(flow_id)
    if view.status.state.is_terminal:
        return {"waits": [], "looked": 0, "of": 0}
    read = partial(waits_of_flow, view)
    found: dict[str, Any] = await view.once("waits", read, within=PATIENCE_SECONDS)
    return found


@router.get("/flows/{flow_id}/timeline", dependencies=GUARDED)
async def timeline(
    console: Shared, flow_id: Name, limit: Annotated[int, Query(ge=1, le=MAX_BARS)] = 200
) -> dict[str, Any]:
    """When nodes waited and ran: those of the critical path, then those that took longest."""
    view = await console.views.get(flow_id)
    read = partial(read_bars, view, view.counter("timeline"))
    bars, total = await view.once("timeline", read, within=PATIENCE_SECONDS)
    return {
        "start": time_text(view.status.created_at),
        "end": time_text(view.status.finished_at or await view.flow.now()),
        "bars": sorted(bars[:limit], key=lambda bar: str(bar["started_at"])),
        "total": total,
    }


@router.get("/flows/{flow_id}/live", dependencies=GUARDED)
async def live(console: Shared, flow_id: Name) -> Response:
    """The changes of a flow as server-sent events, until it has ended."""
    await console.views.get(flow_id)  # an error here is an answer; later it would only end the stream
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_told(console, flow_id), media_type="text/event-stream", headers=headers)


async def _told(console: Any, flow_id: Name) -> AsyncIterator[bytes]:
    yield PULSE
    async for change in console.live.changes(flow_id):
        if change is None:
            yield PULSE
            continue
        data = {key: change[key] for key in ("states", "arrays") if key in change}
        if "status" in change:
            data["flow"] = flow_row(change["status"])
        yield f"event: {change['kind']}\ndata: {json.dumps(data)}\n\n".encode()


@router.get("/flows/{flow_id}/head", dependencies=GUARDED)
async def head(console: Shared, flow_id: Name) -> dict[str, Any]:
    """A flow without its nodes: in two or three calls, for the first picture of a large one."""
    return {"flow": flow_row(await (await console.client.flows.get(flow_id)).status())}


@router.get("/flows/{flow_id}", dependencies=GUARDED)
async def flow(console: Shared, flow_id: Name) -> dict[str, Any]:
    """A flow with its groups of nodes, where they are drawn, and their states."""
    view = await console.views.get(flow_id)
    snapshot, status = view.snapshot, view.status
    groups = snapshot.drawn()
    is_exact = len(snapshot.names) <= MAX_EXACT
    path: list[int] = []
    if is_exact:
        every = await view.once("nodes", view.flow.nodes)
        _add_times(groups, every, snapshot)
        names = critical_path(every)
        path = list(dict.fromkeys(snapshot.group_of[snapshot.index[name]] for name in names))
    for name, counts in (await view.once("arrays", view.arrays)).items():
        if len(snapshot.groups[place := snapshot.group_of[snapshot.index[name]]].members) == 1:
            groups[place]["array"] = counts
    supervised = status.state.is_terminal or await view.flow.is_supervised()
    return {
        "flow": {**flow_row(status), "supervised": supervised},
        "groups": groups,
        "layers": snapshot.layers,
        "path": path,
        "is_exact": is_exact,
    }


def _add_times(groups: list[dict[str, Any]], nodes: Sequence[NodeStatus], snapshot: Snapshot) -> None:
    """When the nodes of each group began and ended, and the elements of arrays."""
    for at, some in _by_group(nodes, snapshot):
        began = [node.started_at for node in some if node.started_at]
        ended = [node.finished_at for node in some if node.finished_at]
        groups[at]["started_at"] = time_text(min(began, default=None))
        groups[at]["finished_at"] = time_text(max(ended, default=None)) if len(ended) == len(some) else None
        groups[at]["array"] = summary_of(some[0].progress) if len(some) == 1 else None


def _by_group(nodes: Sequence[NodeStatus], snapshot: Snapshot) -> Iterator[tuple[int, list[NodeStatus]]]:
    found: dict[int, list[NodeStatus]] = {}
    for node in nodes:
        if (at := snapshot.index.get(node.name)) is not None:
            found.setdefault(snapshot.group_of[at], []).append(node)
    yield from found.items()
