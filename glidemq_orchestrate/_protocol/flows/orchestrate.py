"""One builder per ``gmo_*`` function; the contract of each heads its part in ``lua/glidemq_orchestrate``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, Word, command, function
from glidemq_orchestrate._protocol.flows.portable_record import plain
from glidemq_orchestrate._protocol.flows.staging import JobNames, Piece, staged
from glidemq_orchestrate.codec import decode as decode_json
from glidemq_orchestrate.codec import readable
from glidemq_orchestrate.errors import FailedNode, ProtocolError
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.spec import FlowId, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job import JobState
from glidemq_orchestrate.keys import GROUP, QueueKeys, flow_home
from glidemq_orchestrate.stored import exact, moment, number, parsed, parsed_object, read_progress

PAGE: Final = 200
LAST_RANK: Final = 1e9  # of nodes that cannot be read: no flow has so many
_NODE_COLUMNS: Final = 8


def version() -> Call[tuple[str, str]]:
    """Version and sha256 of the loaded ``glidemq_orchestrate`` library."""

    def decode(reply: Any) -> tuple[str, str]:
        if not isinstance(reply, list) or len(reply) != 2:
            raise ProtocolError("gmo_version answered something else than version and sha256")
        return reply[0], reply[1]

    return function("gmo_version", (), (), decode)


def stage_flow(
    prefix: str, flow_id: str, flow: CheckedFlow, chunks: Iterable[Sequence[Piece]], now_ms: int
) -> Iterator[Call[FlowState]]:
    """Write a flow's nodes, a call a chunk; nothing runs yet. Repeatable. Each answers the flow's state."""
    header: dict[str, Any] = {
        "id": flow_id,
        "name": flow.name,
        "digest": flow.digest,
        "total": len(flow.nodes),
        "home": flow.home,
        "labels": json.dumps(dict(flow.labels)),
    }
    if flow.retention_ms is not None:
        header["retention"] = flow.retention_ms
    if flow.deadline_ms is not None:
        header["deadline"] = flow.deadline_ms
    if flow.fail_fast:
        header["fail_fast"] = 1
    head, names = json.dumps(header), JobNames(prefix, flow_id, flow.queue_of, flow.trace)
    places = [QueueKeys(prefix, queue) for queue in flow.queues]
    numbers = {place.queue: number for number, place in enumerate(places, start=1)}
    home = QueueKeys(prefix, flow.home)
    keys = [home.flow(flow_id), *(place.key("id") for place in places)]
    for chunk in chunks:
        args: list[Word] = [now_ms, head]
        for piece in chunk:
            args.append(numbers[piece.node.queue])
            args.extend(staged(piece, names))
        yield function("gmo_stage_flow", keys, args, FlowState, repeatable=True)


def start_flow(queue: QueueKeys, flow_id: str, digest: str, now_ms: int) -> Call[FlowState]:
    """Let a completely staged flow run. Repeatable. Answers its state."""
    args = (now_ms, flow_id, digest)
    return function("gmo_start_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def discard_flow(queue: QueueKeys, flow_id: str, digest: str) -> Call[int]:
    """Delete a slice of a flow that never started; answers how many nodes are left. Repeatable."""
    args = (0, flow_id, digest)
    return function("gmo_discard_flow", [queue.flow(flow_id)], args, replies.integer, repeatable=True)


def advance_flow(queue: QueueKeys, flow_id: str, now_ms: int) -> Call[int]:
    """Do the next slice of what a flow still needs; answers 0 when that is nothing. Repeatable."""
    keys = [queue.flow(flow_id)]
    return function("gmo_advance_flow", keys, (now_ms, flow_id), replies.integer, repeatable=True)


def unsettled_flows(queue: QueueKeys, count: int) -> Call[list[str]]:
    """Some flows of this home that need ``advance_flow``."""
    return command("SRANDMEMBER", queue.key("gmo:todo"), count, decode=list)


def cancel_flow(queue: QueueKeys, flow_id: str, reason: str, now_ms: int) -> Call[FlowState]:
    """Mark a running flow as being cancelled; ``advance_flow`` does the work. Repeatable."""
    args = (now_ms, flow_id, reason)
    return function("gmo_cancel_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def retry_flow(queue: QueueKeys, flow_id: str, now_ms: int) -> Call[FlowState]:
    """Mark an ended flow for another go at what did not complete; ``advance_flow`` does it. Repeatable."""
    return function("gmo_retry_flow", [queue.flow(flow_id)], (now_ms, flow_id), FlowState)


def restart_flow(queue: QueueKeys, flow_id: str, now_ms: int) -> Call[FlowState]:
    """Mark an ended flow for another go of all nodes; ``advance_flow`` does it. Repeatable until it ends."""
    return function("gmo_restart_flow", [queue.flow(flow_id)], (now_ms, flow_id), FlowState)


def expire_due(queue: QueueKeys, now_ms: int) -> Call[tuple[int, int]]:
    """End what is over its time in a home queue: how many were due, and when the next ones are, or -1."""
    return function("gmo_expire_due", [queue.key("gmo:due")], (now_ms,), lambda reply: (reply[0], reply[1]))


def flow_home_queue(prefix: str, flow_id: str) -> Call[str | None]:
    """The home queue of a flow, or None."""
    return command("GET", flow_home(prefix, flow_id), decode=lambda reply: reply)


def flow_status(queue: QueueKeys, flow_id: str) -> Call[FlowStatus]:
    """The record of a flow, in constant time."""

    def decode(reply: Any) -> FlowStatus:
        return read_status(queue, flow_id, replies.pairs(reply))

    return function("gmo_flow_status", [queue.flow(flow_id)], (0, flow_id), decode)


def read_status(queue: QueueKeys, flow_id: str, fields: Mapping[str, str]) -> FlowStatus:
    """A status from the fields of the record, whatever they hold."""
    fields = plain(fields)
    state = _flow_state(fields.get("state"))
    counts = {
        name: exact(fields.get(name)) for name in ("total", "completed", "failed", "skipped", "generation")
    }
    return FlowStatus(
        id=FlowId(flow_id),
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
        generation=counts["generation"] or 0,
        broken=state is FlowState.UNKNOWN or "name" not in fields or None in counts.values(),
    )


def _flow_state(text: str | None) -> FlowState:
    return FlowState(text) if text in tuple(FlowState) else FlowState.UNKNOWN


def flow_nodes(
    queue: QueueKeys, flow_id: str, cursor: str
) -> Call[tuple[str, list[tuple[float, NodeStatus]]]]:
    """A page of nodes: the next cursor (``0`` at the end) and rank and status of each node."""

    def decode(reply: Any) -> tuple[str, list[tuple[float, NodeStatus]]]:
        return reply[0], [read_node(row) for row in replies.rows(_NODE_COLUMNS)(reply[1:])]

    return function("gmo_flow_nodes", [queue.flow(flow_id)], (0, flow_id, cursor, PAGE), decode)


def read_node(row: tuple[str, ...]) -> tuple[float, NodeStatus]:
    """Rank and status of a node from the columns that ``gmo_flow_nodes`` answers."""
    name, table, state, attempts, started, finished, reason, progress = row
    place = read_row(table)
    # A job that retention removed has no state; only completed jobs are removed.
    now = JobState.read(state or JobState.COMPLETED)
    rank, queue, job_id, job, after = place or (LAST_RANK, "", "", "", ())
    return rank, NodeStatus(
        name=name,
        queue=queue,
        job_id=job_id,
        job=job,
        after=after,
        state=now if place else JobState.UNKNOWN,
        attempts=number(attempts) + (now in (JobState.ACTIVE, JobState.COMPLETED)),
        reason=readable(reason),
        progress=read_progress(progress),
        started_at=moment(started),
        finished_at=moment(finished),
        broken=place is None or now is JobState.UNKNOWN,
    )


def read_row(text: str) -> tuple[float, str, str, str, tuple[str, ...]] | None:
    """Rank, queue, job id, handler and dependencies from a row of the node table; None for what is no row."""
    row = parsed(text)
    if not isinstance(row, list) or len(row) < 4 or not all(isinstance(part, str) for part in row[1:]):
        return None
    rank, queue, job_id, job, *after = row
    is_rank = isinstance(rank, int | float) and not isinstance(rank, bool) and 0 <= rank < LAST_RANK
    return (rank, queue, job_id, job, tuple(after)) if is_rank else None


def flow_results(queue: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """A page of results: the next cursor (``0`` at the end) and the stored text by node name."""
    return function(
        "gmo_flow_results",
        [queue.flow(flow_id)],
        (0, flow_id, cursor, PAGE),
        lambda reply: (reply[0], replies.pairs(reply[1])),
    )


def failed_node(node: NodeStatus) -> FailedNode:
    """The failed node as errors and outcomes show it."""
    return FailedNode(name=node.name, job_id=node.job_id, reason=node.reason, attempts=node.attempts)


def node_inputs(queue: QueueKeys, job_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """The stored results of a node's dependencies by node name."""
    return function(
        "gmo_node_inputs",
        [queue.job(job_id)],
        (0, job_id, cursor, PAGE),
        lambda reply: (reply[0], replies.pairs(reply[1])),
    )


def progress(attempt: Attempt, queue: QueueKeys, value: str, now_ms: int) -> Call[int]:
    """Store progress and tell the readers of events."""
    return function(
        "gmo_progress", [queue.job(attempt.job_id)], (now_ms, *_proof(attempt), value), replies.integer
    )


def reclaim(queue: QueueKeys, consumer: str, *, lock_ms: int, max_lost: int, now_ms: int) -> Call[list[str]]:
    """Take back the jobs of dead workers. Answers the flows that need ``advance_flow``."""
    args = (now_ms, GROUP, consumer, lock_ms, lock_ms, max_lost)
    return function("gmo_reclaim", [queue.key("stream")], args, list)


def forget_workers(queue: QueueKeys, group: str, silent_ms: int, now_ms: int) -> Call[int]:
    """Remove what killed workers have left, but no entry. Answers how many consumers. Repeatable."""
    return function("gmo_forget_workers", [queue.key("stream")], (now_ms, group, silent_ms), replies.integer)


def has_queue_timeout(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether a node fails when no worker has begun it in time."""
    return command("HGET", queue.job(job_id), "gmo:queue_timeout", decode=bool)


def note_unhandled(queue: QueueKeys, job_id: str, why: str) -> Call[None]:
    """Note on a node why nobody runs it; its queue timeout tells that. Repeatable."""
    return command("HSET", queue.job(job_id), "gmo:unhandled", why, decode=replies.anything)


def announce_worker(queue: QueueKeys, worker_id: str, until_ms: int) -> Call[None]:
    """List a worker among the live ones until then. Repeatable."""
    words = ("ZADD", queue.workers(), until_ms, worker_id)
    return command(*words, decode=replies.anything, repeatable=True)


def withdraw_worker(queue: QueueKeys, worker_id: str) -> Call[None]:
    """Take a worker off the list. Repeatable."""
    return command("ZREM", queue.workers(), worker_id, decode=replies.anything, repeatable=True)


def live_workers(queue: QueueKeys, now_ms: int) -> Call[list[str]]:
    """The workers of ours that are alive."""
    return command("ZRANGEBYSCORE", queue.workers(), now_ms, "+inf", decode=list)


def read_results(texts: Mapping[str, str]) -> dict[str, Any]:
    """Stored results, decoded."""
    return {name: decode_json(text, where=f"result of node {name}") for name, text in texts.items()}


def _proof(attempt: Attempt) -> Iterable[Word]:
    return (attempt.job_id, attempt.entry_id, GROUP, attempt.token, attempt.processed_on)
