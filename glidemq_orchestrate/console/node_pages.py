"""What the page reads of a node, or of an element of an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response
from starlette.responses import PlainTextResponse

from glidemq_orchestrate.attempts.handler_code import named_code
from glidemq_orchestrate.clients.flows import AsyncFlow
from glidemq_orchestrate.console.guard import check_flow, check_signed_in
from glidemq_orchestrate.console.handlers import handler_row
from glidemq_orchestrate.console.node_waits import waits_of
from glidemq_orchestrate.console.parts import Name, Shared, node_row
from glidemq_orchestrate.console.shown import masked_line, shown, time_text
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    JobNotFound,
    NodeNotFound,
    ResultRemoved,
)
from glidemq_orchestrate.flows.elements import summary_of
from glidemq_orchestrate.flows.nodes import split_name
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.queues.failure_groups import cause_of
from glidemq_orchestrate.queues.open_arrays import COUNTS

router = APIRouter(dependencies=[Depends(check_signed_in), Depends(check_flow)])
MAX_NAMED: Final = 20
MAX_STEPS: Final = 20
"""From a node that did not run to its cause."""
LOG_LINES: Final = 200


@router.get("/flows/{flow_id}/nodes/{name}/data")
async def whole_data(console: Shared, flow_id: Name, name: Name) -> Response:
    """The data of a node as a whole."""
    flow = await console.client.flows.get(flow_id)
    node = await flow.node(name)
    if place := _place((await console.views.get(flow_id)).snapshot, name):
        return PlainTextResponse(shown(await flow.array(place[0]).item(place[1]), whole=True)["text"])
    job = await console.client.queue(node.queue).get_job(node.job_id, lenient=True)
    return PlainTextResponse(shown(job.data, whole=True)["text"])


@router.get("/flows/{flow_id}/nodes/{name}/result")
async def whole_result(console: Shared, flow_id: Name, name: Name) -> Response:
    """The result of a node as a whole."""
    flow = await console.client.flows.get(flow_id)
    await flow.node(name)
    if place := _place((await console.views.get(flow_id)).snapshot, name):
        result = (await flow.array(place[0]).results(place[1], place[1] + 1)).get(place[1])
    else:
        result = (await flow.results([name])).get(name)
    return PlainTextResponse(shown(result, whole=True)["text"])


@router.get("/flows/{flow_id}/nodes/{name}/logs")
async def logs(
    console: Shared, flow_id: Name, name: Name, after: Annotated[int, Query(ge=0)] = 0
) -> dict[str, Any]:
    """The log lines of a node after so many."""
    flow = await console.client.flows.get(flow_id)
    found = (await flow.logs({name: after}, limit=1_000))[name]
    return {"lines": [masked_line(line) for line in found.lines], "total": found.total, "first": found.first}


@router.get("/flows/{flow_id}/nodes/{name}/failed-elements")
async def failed_elements(
    console: Shared, flow_id: Name, name: Name, limit: Annotated[int, Query(ge=1, le=1_000)] = 1_000
) -> dict[str, Any]:
    """The failed elements of an array by position; of more than ``limit``, any."""
    flow = await console.client.flows.get(flow_id)
    return {"elements": await _failed_elements(flow, name, limit)}


@router.get("/flows/{flow_id}/nodes/{name}")
async def node(console: Shared, flow_id: Name, name: Name) -> dict[str, Any]:
    """A node with its data, inputs, result, log and history; or an element of an array, by ``clean[17]``.

    ``code`` is what the data of a ``python`` or Spark job names. ``handler`` is what the live workers of the
    queue tell of its handler: how many of them serve it, and each version of its code, with those that
    have it; null if the workers cannot be read.
    """
    flow: AsyncFlow = await console.client.flows.get(flow_id)
    found = await flow.node(name)
    view = await console.views.get(flow_id)
    return {
        **node_row(found),
        "after": list(found.after),
        "dependents": _dependents(view.snapshot, name),
        "element": await _element(flow, view.snapshot, name),
        "array": (array := await _array(flow, found)),
        "cause": await _cause(flow, found),
        "failed_elements": await _failed_elements(flow, name) if array and array["failed"] else [],
        "handler": await handler_row(console, found.queue, found.job),
        **await waits_of(view, found),
        "spark_url": _spark_url(found.progress),
        **await _payloads(console, flow, found),
        **await _record(flow, found),
    }


async def _element(flow: AsyncFlow, snapshot: Snapshot, name: str) -> dict[str, Any] | None:
    """Which element of which array this is; None for a node."""
    if (place := _place(snapshot, name)) is None:
        return None
    counts = await flow.array(place[0]).counts()
    return {"array": place[0], "index": place[1], "of": counts.elements}


def _place(snapshot: Snapshot, name: str) -> tuple[str, int] | None:
    """The array and the position of an element; None for a node."""
    return None if name in snapshot.index else split_name(name)


def _dependents(snapshot: Snapshot, name: str) -> list[str]:
    at = snapshot.index.get(name)
    names = (snapshot.names[one] for one, some in enumerate(snapshot.after) if at in some)
    return [one for one, _ in zip(names, range(MAX_NAMED), strict=False)]


async def _array(flow: AsyncFlow, node: NodeStatus) -> Mapping[str, int] | None:
    """How many elements of an array have ended and run; before the first has, its progress says nothing."""
    known = summary_of(node.progress)
    if node.state.is_terminal and known is not None:
        return {**known, "running": 0}
    if node.progress is not None and known is None:
        return None
    try:
        counts = await flow.array(node.name).counts()
    except (ConfigurationError, NodeNotFound):
        return None
    return {kind: getattr(counts, kind) for kind in COUNTS}


async def _cause(flow: AsyncFlow, node: NodeStatus) -> dict[str, Any] | None:
    """The node that failed by itself, if this one did not run because of it."""
    at = node
    for _ in range(MAX_STEPS):
        if not (name := cause_of(at)):
            break
        try:
            at = await flow.node(name)
        except NodeNotFound:
            break
    return None if at is node else {"name": at.name, "state": at.state, "reason": masked_line(at.reason)}


async def _failed_elements(flow: AsyncFlow, name: str, limit: int = MAX_NAMED) -> list[dict[str, Any]]:
    """Some of the failed elements of an array."""
    return [
        {"index": one.index, "attempts": one.attempts, "reason": masked_line(one.reason)}
        for one in await flow.array(name).failed(limit=limit)
    ]


def _spark_url(progress: Any) -> str:
    url = progress.get("ui") if isinstance(progress, dict) else None
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else ""


async def _payloads(console: Any, flow: AsyncFlow, node: NodeStatus) -> dict[str, Any]:
    """Data, inputs and result; None for what was removed."""
    found: dict[str, Any] = {"data": None, "result": None, "inputs": {}, "code": "", "ordering_key": ""}
    if place := _place((await console.views.get(flow.id)).snapshot, node.name):
        elements, at = flow.array(place[0]), place[1]
        found["data"] = shown(await elements.item(at))
        results = await elements.results(at, at + 1)
        found["result"] = shown(results[at]) if at in results else None
        return found
    try:
        job = await console.client.queue(node.queue).get_job(node.job_id, lenient=True)
        found["data"] = shown(job.data)
        found["code"] = masked_line(named_code(job.name, job.data))
        found["ordering_key"] = job.ordering_key or ""
        found["result"] = shown(job.result) if node.state == "completed" else None
    except JobNotFound:
        return found
    try:
        some = list(node.after[:MAX_NAMED])
        found["inputs"] = {name: shown(value) for name, value in (await flow.results(some)).items()}
    except (ResultRemoved, NodeNotFound):
        pass
    return found


async def _record(flow: AsyncFlow, node: NodeStatus) -> dict[str, Any]:
    """Log and history."""
    found: dict[str, Any] = {"logs": {"lines": [], "total": 0, "first": 0}}
    found |= {"history": [], "history_is_partial": False}
    try:
        total = (await flow.logs({node.name: 0}, limit=1))[node.name].total
        read = (await flow.logs({node.name: max(total - LOG_LINES, 0)}, limit=LOG_LINES))[node.name]
        lines = [masked_line(line) for line in read.lines]
        found["logs"] = {"lines": lines, "total": read.total, "first": read.first}
        history = await flow.node_history(node.name)
        found["history"] = [
            {"at": time_text(one.at), "what": one.kind, "detail": masked_line(one.detail)} for one in history
        ]
        found["history_is_partial"] = history.is_partial
    except GlideMQError:
        pass  # an element of an array has none of its own, and a removed job has lost its
    return found
