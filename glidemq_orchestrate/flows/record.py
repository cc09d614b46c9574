"""Calls about whole flows; the contracts are in the headers of ``lua/glidemq_orchestrate/functions``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation_record import read_request
from glidemq_orchestrate.flows.owner import Owner, words
from glidemq_orchestrate.flows.portable.record import plain
from glidemq_orchestrate.flows.spec import FlowId, FlowState, FlowStatus
from glidemq_orchestrate.flows.staging import JobNames, Piece, staged
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys, flow_home, read_generation
from glidemq_orchestrate.wire.stored import exact, moment, parsed_object


def stage_flow(
    home: QueueKeys, flow_id: str, flow: CheckedFlow, chunks: Iterable[Sequence[Piece]], now_ms: int
) -> Iterator[Call[FlowState]]:
    """Write a flow's nodes, a call for each chunk; each returns the state. No node runs yet. Repeatable."""
    header: dict[str, Any] = {
        "id": flow_id,
        "name": flow.name,
        "digest": flow.digest,
        "total": len(flow.nodes),
        "home": home.queue,
        "labels": json.dumps(dict(flow.labels)),
    }
    if flow.retention_ms is not None:
        header["retention"] = flow.retention_ms
    if flow.deadline_ms is not None:
        header["deadline"] = flow.deadline_ms
    if flow.fail_fast:
        header["fail_fast"] = 1
    if flow.request:
        header["request"] = flow.request
    if flow.owner:
        header["owner"] = words(flow.owner)
    if flow.carried:
        header["completed"] = len(flow.carried)
    head, names = (
        json.dumps(header),
        JobNames(home.prefix, flow_id, flow.queue_of, flow.trace, flow.carried, flow.settled),
    )
    places = [QueueKeys(home.prefix, queue) for queue in flow.queues]
    numbers = {place.queue: number for number, place in enumerate(places, start=1)}
    keys = [home.flow(flow_id), *(place.key("id") for place in places)]
    for chunk in chunks:
        args: list[Word] = [now_ms, head]
        for piece in chunk:
            args.append(numbers[piece.node.queue])
            args.extend(staged(piece, names))
        yield function("gmo_stage_flow", keys, args, FlowState, repeatable=True)


def start_flow(queue: QueueKeys, flow_id: str, digest: str, now_ms: int) -> Call[FlowState]:
    """Start a completely staged flow; returns its state. Repeatable."""
    args = (now_ms, flow_id, digest)
    return function("gmo_start_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def discard_flow(queue: QueueKeys, flow_id: str, digest: str) -> Call[int]:
    """Delete a slice of a flow that never started; returns how many nodes are left. Repeatable."""
    args = (0, flow_id, digest)
    return function("gmo_discard_flow", [queue.flow(flow_id)], args, replies.integer, repeatable=True)


def advance_flow(queue: QueueKeys, flow_id: str, now_ms: int) -> Call[int]:
    """Do the next slice of a flow's open work; returns 0 when there is none. Repeatable."""
    keys = [queue.flow(flow_id)]
    return function("gmo_advance_flow", keys, (now_ms, flow_id), replies.integer, repeatable=True)


def unsettled_flows(queue: QueueKeys, count: int) -> Call[list[str]]:
    """Some flows of this home that need ``advance_flow``."""
    return command("SRANDMEMBER", queue.key("gmo:todo"), count, decode=list)


def cancel_flow(queue: QueueKeys, flow_id: str, reason: str, now_ms: int) -> Call[FlowState]:
    """Mark a running flow as being cancelled; ``advance_flow`` does the work. Repeatable."""
    args = (now_ms, flow_id, reason)
    return function("gmo_cancel_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def retry_flow(
    queue: QueueKeys, flow_id: str, now_ms: int, owner: Owner | None = None, also: Sequence[str] = ()
) -> Call[FlowState]:
    """Mark an ended flow so that ``advance_flow`` runs again the nodes that did not complete. Repeatable.

    ``also``: refs of completed nodes that run again too.
    """
    args = (now_ms, flow_id, *(words(owner) if owner else ("", "", "") if also else ()), *also)
    return function("gmo_retry_flow", [queue.flow(flow_id)], args, FlowState)


def are_retried(queue: QueueKeys, flow_id: str, refs: Sequence[str]) -> Call[list[bool]]:
    """Whether each of these nodes of a flow that has ended would run again by ``retry_flow``."""

    def decode(reply: Any) -> list[bool]:
        return [bool(one) for one in replies.integers(reply)]

    return command("SMISMEMBER", f"{queue.flow(flow_id)}:failed", *refs, decode=decode)


def are_open(queue: QueueKeys, flow_id: str, refs: Sequence[str]) -> Call[list[bool]]:
    """Whether each of these nodes of a flow has not ended."""

    def decode(reply: Any) -> list[bool]:
        return [bool(one) for one in replies.integers(reply)]

    return command("SMISMEMBER", f"{queue.flow(flow_id)}:open", *refs, decode=decode)


def is_due(queue: QueueKeys, now_ms: int) -> Call[bool]:
    """Whether ``expire_due`` has anything to end in a home queue."""
    return command("ZCOUNT", queue.key("gmo:due"), "-inf", now_ms, decode=bool)


def expire_due(queue: QueueKeys, now_ms: int) -> Call[tuple[int, int]]:
    """End expired jobs, nodes and flows of a home queue: how many were due, and when the next are, or -1."""

    def decode(reply: Any) -> tuple[int, int]:
        count, next_ms = replies.integers(reply)
        return count, next_ms

    return function("gmo_expire_due", [queue.key("gmo:due")], (now_ms,), decode)


def flow_home_queue(prefix: str, flow_id: str) -> Call[str | None]:
    """The home queue of a flow, or None."""
    return command("GET", flow_home(prefix, flow_id), decode=lambda reply: reply)


def flow_status(queue: QueueKeys, flow_id: str) -> Call[FlowStatus]:
    """The record of a flow, in constant time."""

    def decode(reply: Any) -> FlowStatus:
        return read_status(queue, flow_id, replies.fields(reply))

    return function("gmo_flow_status", [queue.flow(flow_id)], (0, flow_id), decode)


def read_status(queue: QueueKeys, flow_id: str, fields: Mapping[str, str]) -> FlowStatus:
    """Return a status from the fields of the record, also where they are not valid."""
    fields = plain(fields)
    state = _flow_state(fields.get("state"))
    public, number = read_generation(flow_id)
    counts = {name: exact(fields.get(name)) for name in ("total", "completed", "failed", "skipped")}
    return FlowStatus(
        id=FlowId(public),
        name=fields.get("name", ""),
        state=state,
        home=queue.queue,
        total=counts["total"] or 0,
        completed=counts["completed"] or 0,
        failed=counts["failed"] or 0,
        reason=readable(fields.get("reason", "")),
        labels={key: str(value) for key, value in parsed_object(fields.get("labels")).items()},
        created_at=moment(fields.get("created_at")),
        finished_at=moment(fields.get("finished_at")),
        skipped=counts["skipped"] or 0,
        generation=number,
        broken=state is FlowState.UNKNOWN or "name" not in fields or None in counts.values(),
        superseded_by=exact(fields["superseded"]) if "superseded" in fields else None,
        request=read_request(fields.get("request", "")),
        runs=exact(fields.get("runs")) or 0,
        note=fields.get("note", ""),
        stored_as=flow_id,
    )


def _flow_state(text: str | None) -> FlowState:
    return FlowState(text) if text in tuple(FlowState) else FlowState.UNKNOWN
