"""Reads the record of a flow as the status that users see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate.flows.generation_record import read_request
from glidemq_orchestrate.flows.spec import FlowId, FlowState, FlowStatus
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys, flow_home, read_generation
from glidemq_orchestrate.wire.stored import exact, moment, parsed_object

TOMBSTONE: Final = timedelta(days=30)


def read_status(queue: QueueKeys, flow_id: str, fields: Mapping[str, str]) -> FlowStatus:
    """Return a status from the fields of the record, even if they are not valid."""
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
        idempotency_key=read_request(fields.get("request", "")),
        runs=exact(fields.get("runs")) or 0,
        note=fields.get("note", ""),
        stored_as=flow_id,
    )


def _flow_state(text: str | None) -> FlowState:
    return FlowState(text) if text in tuple(FlowState) else FlowState.UNKNOWN


def record_fields(home: QueueKeys, flow_id: str) -> Call[dict[str, str]]:
    """The fields of the record of a flow; empty if there is none."""
    return command("HGETALL", home.flow(flow_id), decode=replies.pairs)


def flow_home_queue(prefix: str, flow_id: str) -> Call[str | None]:
    """The home queue of a flow, or None."""
    return command("GET", flow_home(prefix, flow_id), decode=lambda reply: reply)


def flow_status(queue: QueueKeys, flow_id: str) -> Call[FlowStatus]:
    """The record of a flow, in constant time."""

    def decode(reply: Any) -> FlowStatus:
        return read_status(queue, flow_id, replies.fields(reply))

    return function("gmo_flow_status", [queue.flow(flow_id)], (0, flow_id), decode)
