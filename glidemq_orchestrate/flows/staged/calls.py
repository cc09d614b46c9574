"""Calls for flows within one slot; for the contracts see ``lua/glidemq_orchestrate/functions``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from glidemq_orchestrate.flows.checked import CheckedFlow, canonical
from glidemq_orchestrate.flows.definitions import (
    _OF_WORK,
    PAGE,
    POLICIES,
    Definition,
    Ran,
    Work,
    _read_work,
    settled_options,
)
from glidemq_orchestrate.flows.node_table import Change, Row, flat_row
from glidemq_orchestrate.flows.owner import Owner, owner_words
from glidemq_orchestrate.flows.staging import JobNames, Piece, staged
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

_BUSY: Final = "busy"


def stage_flow(
    home: QueueKeys, flow_id: str, flow: CheckedFlow, chunks: Iterable[Sequence[Piece]], now_ms: int
) -> Iterator[Call[FlowState]]:
    """Write a flow's nodes, a call for each chunk; each returns the state. No node runs yet. Idempotent."""
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
        header["owner"] = owner_words(flow.owner)
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
    """Start a completely staged flow; returns its state. Idempotent."""
    args = (now_ms, flow_id, digest)
    return function("gmo_start_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def discard_flow(queue: QueueKeys, flow_id: str, digest: str) -> Call[int]:
    """Delete a slice of a flow that never started; returns how many nodes remain. Idempotent."""
    args = (0, flow_id, digest)
    return function("gmo_discard_flow", [queue.flow(flow_id)], args, replies.integer, repeatable=True)


def advance_flow(queue: QueueKeys, flow_id: str, now_ms: int) -> Call[int]:
    """Do the next slice of a flow's open work; returns 0 if there is none. Idempotent."""
    keys = [queue.flow(flow_id)]
    return function("gmo_advance_flow", keys, (now_ms, flow_id), replies.integer, repeatable=True)


def cancel_flow(queue: QueueKeys, flow_id: str, reason: str, now_ms: int) -> Call[FlowState]:
    """Mark a running flow as being cancelled; ``advance_flow`` does the work. Idempotent."""
    args = (now_ms, flow_id, reason)
    return function("gmo_cancel_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def retry_flow(
    queue: QueueKeys, flow_id: str, now_ms: int, owner: Owner | None = None, also: Sequence[str] = ()
) -> Call[FlowState]:
    """Mark an ended flow so that ``advance_flow`` reruns the nodes that did not complete. Idempotent.

    ``also``: refs of completed nodes to rerun too.
    """
    args = (now_ms, flow_id, *(owner_words(owner) if owner else ("", "", "") if also else ()), *also)
    return function("gmo_retry_flow", [queue.flow(flow_id)], args, FlowState)


def are_retried(queue: QueueKeys, flow_id: str, refs: Sequence[str]) -> Call[list[bool]]:
    """Whether ``retry_flow`` would rerun each of these nodes of an ended flow."""

    def decode(reply: Any) -> list[bool]:
        return [bool(one) for one in replies.integers(reply)]

    return command("SMISMEMBER", f"{queue.flow(flow_id)}:failed", *refs, decode=decode)


def are_open(queue: QueueKeys, flow_id: str, refs: Sequence[str]) -> Call[list[bool]]:
    """Whether each of these nodes of a flow has not ended."""

    def decode(reply: Any) -> list[bool]:
        return [bool(one) for one in replies.integers(reply)]

    return command("SMISMEMBER", f"{queue.flow(flow_id)}:open", *refs, decode=decode)


def change_nodes(  # noqa: PLR0913  the function has as many arguments
    home: QueueKeys, flow_id: str, change: Change, names: Sequence[str], now_ms: int, *, strict: bool
) -> Call[list[str] | None]:
    """Note a change of these nodes; returns the names of those that change, None while the flow is busy."""

    def decode(reply: Any) -> list[str] | None:
        state, *changed = (replies.text(part) for part in reply)
        return None if state == _BUSY else changed

    pairs = [word for name in names for word in (name, change.text)]
    args = (now_ms, flow_id, change.what, change.token, int(strict), *pairs)
    return function("gmo_change_nodes", [home.flow(flow_id)], args, decode, repeatable=True)


def has_grown(home: QueueKeys, flow_id: str) -> Call[bool]:
    """Whether nodes of the flow have added nodes to it."""
    return command("HEXISTS", home.flow(flow_id), "grown", decode=bool)


def grows(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether a node has completed and added nodes."""
    return job_hash.get_some(
        queue, job_id, ("state", "gmo:grows"), lambda reply: reply[0] == "completed" and reply[1] is not None
    )


def works_page(
    queue: QueueKeys, flow_id: str, cursor: str
) -> Call[tuple[str, dict[str, tuple[Row, Work | None]]]]:
    """A page of the nodes of a flow: the next cursor (``0`` at the end), and row and work by name.

    The work is None if the job was removed or is about to be reset.
    """
    fields = ("state", *_OF_WORK)

    def decode(reply: Any) -> tuple[str, dict[str, tuple[Row, Work | None]]]:
        found: dict[str, tuple[Row, Work | None]] = {}
        for name, text, _state, *job in replies.rows(2 + len(fields))(reply[1:]):
            if (row := flat_row(text)) is not None:
                found[name] = (row, _read_work(*job))
        return replies.text(reply[0]), found

    return function("gmo_flow_nodes", [queue.flow(flow_id)], (0, flow_id, cursor, PAGE, *fields), decode)


def ran_page(queue: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, Ran]]]:
    """A page of the nodes of a flow: the next cursor (``0`` at the end), and how each has run, by name."""
    fields = ("state", "gmo:skipped", "gmo:grown", "data", "opts", "gmo:gone", *POLICIES)

    def decode(reply: Any) -> tuple[str, dict[str, Ran]]:
        found: dict[str, Ran] = {}
        for name, text, *job in replies.rows(2 + len(fields))(reply[1:]):
            state, skipped, grown, data, options, lost, *policies = job
            if (row := flat_row(text)) is None:
                continue
            own = {policy: text for policy, text in zip(POLICIES, policies, strict=True) if text}
            is_known = options and not lost
            known = Definition(canonical(data), settled_options(options), own) if is_known else None
            found[name] = Ran(row, "skipped" if skipped else state, grown, known)
        return replies.text(reply[0]), found

    return function("gmo_flow_nodes", [queue.flow(flow_id)], (0, flow_id, cursor, PAGE, *fields), decode)
