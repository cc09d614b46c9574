"""A generation of a flow on the server: a reference to it, its record, and calls for both.

``lua/glidemq_orchestrate/parts/generations.lua`` describes how generations are stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, get_args

from glidemq_orchestrate.errors import ConfigurationError, FlowExpired, FlowNotFound
from glidemq_orchestrate.flows.status import FlowId, FlowState, FlowStatus, OnExisting
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation
from glidemq_orchestrate.wire.stored import exact, moment, parsed_object

TOMBSTONE: Final = timedelta(days=30)
_ON_EXISTING: Final[tuple[str, ...]] = get_args(OnExisting)
_SEPARATOR: Final = "\n"  # requests contain no control characters


@dataclass(frozen=True, slots=True)
class FlowRef:
    """A reference to a generation of a flow: home queue, stored id, and path (see ``backend``)."""

    home: QueueKeys
    flow_id: str
    path: str = "staged"

    @property
    def public_id(self) -> str:
        """The id of the flow that users see."""
        return read_generation(self.flow_id)[0]

    @property
    def generation(self) -> int:
        """The number of the generation."""
        return read_generation(self.flow_id)[1]


def no_flow(ref: FlowRef) -> FlowNotFound:
    """The error for a flow without a record."""
    return FlowNotFound(f"no flow {ref.public_id} in queue {ref.home.queue}")


def expired(ref: FlowRef) -> FlowExpired:
    """The error for a flow without its jobs."""
    return FlowExpired(
        f"the jobs of flow {ref.public_id} were removed after its retention. "
        'Fix: glidemq flow submit FILE --id ID --restart (on_existing="restart")'
    )


@dataclass(frozen=True, slots=True)
class Generation:
    """A stored generation.

    Attributes:
        stored_as: The id under which it is stored.
        path: The stored name of its path.
        digest: The fingerprint of its specification.
        request: Its stored idempotency key, or ''; see ``request_for``.
        how: ``restart`` or ``retry_failed``; '' for the first generation.
    """

    stored_as: str
    path: str
    digest: str
    request: str = ""
    how: str = ""

    @property
    def requester(self) -> str:
        """Its idempotency key, without the fingerprint of the nodes."""
        return read_request(self.request)


def request_for(request: str, nodes: Collection[str] | None) -> str:
    """The stored form of an idempotency key: with a fingerprint of the nodes from which on the flow reruns.

    For a rerun of the whole flow it is the key itself.
    """
    if not request or nodes is None:
        return request
    fingerprint = hashlib.sha256(json.dumps(sorted(nodes)).encode(errors="replace")).hexdigest()[:16]
    return f"{request}{_SEPARATOR}{fingerprint}"


def read_request(stored: str) -> str:
    """The idempotency key as the caller passed it."""
    return stored.partition(_SEPARATOR)[0]


def first_generation(home: QueueKeys, flow_id: str) -> Call[Generation | None]:
    """The only generation of a flow, from its record; None without a record."""

    def decode(reply: Any) -> Generation | None:
        digest, path, request = reply
        return Generation(flow_id, str(path or ""), digest, request or "") if digest else None

    return command("HMGET", home.flow(flow_id), "digest", "path", "request", decode=decode)


def current_generation(home: QueueKeys, flow_id: str) -> Call[Generation | None]:
    """The current generation of a flow with several; None for any other flow."""

    def decode(reply: Any) -> Generation | None:
        found = read_entries(reply)
        return found[0] if found else None

    return command("XREVRANGE", home.generations(flow_id), "+", "-", "COUNT", 1, decode=decode)


def every_generation(home: QueueKeys, flow_id: str) -> Call[list[Generation]]:
    """The recorded generations of a flow with several, oldest first; otherwise none."""
    return command("XRANGE", home.generations(flow_id), "-", "+", decode=read_entries)


@dataclass(frozen=True, slots=True)
class Before:
    """A generation to be superseded.

    Attributes:
        stored_as: The id under which it is stored.
        how: Why the next one begins: ``restart`` or ``retry_failed``.
        extensions: The number of extensions that it must have by then; '' for any number.
    """

    stored_as: str
    how: str
    extensions: str = ""


def begin_generation(home: QueueKeys, before: Before, new: str, digest: str, now_ms: int) -> Call[FlowState]:
    """Start a staged generation in place of the current one; returns its state. Idempotent."""
    keys = [home.generations(new), home.flow(before.stored_as), home.flow(new)]
    args = (now_ms, before.stored_as, new, digest, before.how, before.extensions)
    return function("gmo_begin_generation", keys, args, FlowState, repeatable=True)


def is_expired(home: QueueKeys, stored: str) -> Call[bool]:
    """Whether the jobs of a generation were or are being removed."""
    return command("HEXISTS", home.flow(stored), "expired_at", decode=bool)


def read_entries(reply: Any) -> list[Generation]:
    """The generations in the entries of a generations stream."""
    rest = ("digest", "request", "how")
    return [
        Generation(fields["id"], str(fields.get("path") or ""), *(fields.get(name, "") for name in rest))
        for fields in replies.entries(reply)
        if fields.get("id")
    ]


def check_on_existing(on_existing: str) -> None:
    """Check the choice for an existing flow.

    Raises:
        ConfigurationError: There is no such choice.
    """
    if on_existing not in _ON_EXISTING:
        raise ConfigurationError(
            f"on_existing must be one of {', '.join(_ON_EXISTING)}, got {described(on_existing)}"
        )


def status_of_record(queue: QueueKeys, flow_id: str, fields: Mapping[str, str]) -> FlowStatus:
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
        times_reopened=exact(fields.get("runs")) or 0,
        note=fields.get("note", ""),
        stored_as=flow_id,
    )


def _flow_state(text: str | None) -> FlowState:
    return FlowState(text) if text in tuple(FlowState) else FlowState.UNKNOWN


def record_fields(home: QueueKeys, flow_id: str) -> Call[dict[str, str]]:
    """The fields of the record of a flow; empty if there is none."""
    return command("HGETALL", home.flow(flow_id), decode=replies.pairs)


def flow_status(queue: QueueKeys, flow_id: str) -> Call[FlowStatus]:
    """The record of a flow, in constant time."""

    def decode(reply: Any) -> FlowStatus:
        return status_of_record(queue, flow_id, replies.fields(reply))

    return function("gmo_flow_status", [queue.flow(flow_id)], (0, flow_id), decode)


def record_marks(home: QueueKeys, flow_id: str) -> Call[list[str | None]]:
    """The generation that superseded this one, and when its jobs were removed; None for each not set."""
    return command("HMGET", home.flow(flow_id), "superseded", "expired_at", decode=list)


def note_flow(home: QueueKeys, flow_id: str, text: str) -> Call[None]:
    """Store a note with a generation of a flow, in place of the previous note. Idempotent."""
    args = (0, flow_id, text)
    return function("gmo_note_flow", [home.flow(flow_id)], args, replies.anything, repeatable=True)
