"""The nodes of a flow on the server: the table with a row for each, their status, inputs and results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

from glidemq_orchestrate.errors import FailedNode
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import worker_of
from glidemq_orchestrate.jobs.job import started
from glidemq_orchestrate.jobs.job_hash import JobField, end_of_stub
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, command, every_row, function, write_fields
from glidemq_orchestrate.wire.codec import decode as decode_json
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number, parsed, read_progress

PAGE: Final = 200
GONE: Final = "its job was removed"
REMOVED: Final = "removed-"


STATUS_FIELDS: Final[tuple[JobField, ...]] = (
    "state", "attemptsMade", "processedOn", "finishedOn", "failedReason", "progress", "gmo:skipped",
    "gmo:round", "gmo:token", "lastActive", "stalledCount", "gmo:lost", "gmo:removed", "gmo:gone",
    "gmo:on_failure",
)  # fmt: skip
"""The fields of a job for the status of its node. The state comes first."""

_TIMES: Final[tuple[JobField, ...]] = ("timestamp", "gmo:entry")
_NOW: Final[tuple[JobField, ...]] = (
    "state", "failedReason", "returnvalue", "finishedOn", "processedOn", "gmo:skipped", "stalledCount",
    "gmo:begun", "attemptsMade", "gmo:round", "gmo:withdrawn", "gmo:removed",
)  # fmt: skip


T = TypeVar("T")


def nodes_page(  # noqa: PLR0913, PLR0917  which page, and what is read of each node
    queue: QueueKeys,
    flow_id: str,
    cursor: str,
    fields: Sequence[str],
    read: Callable[[str, str, Sequence[str]], T],
    count: int = PAGE,
) -> Call[tuple[str, list[T]]]:
    """A page of nodes: the next cursor (``0`` at the end), and each as ``read`` from name, row and fields.

    ``fields``: those of the jobs to read, the state first.
    """

    def decode(reply: Any) -> tuple[str, list[T]]:
        rows = replies.rows(2 + len(fields))(reply[1:])
        return replies.text(reply[0]), [read(name, row, values) for name, row, *values in rows]

    return function("gmo_flow_nodes", [queue.flow(flow_id)], (0, flow_id, cursor, count, *fields), decode)


def flow_nodes(
    queue: QueueKeys, flow_id: str, cursor: str
) -> Call[tuple[str, list[tuple[float, NodeStatus]]]]:
    """A page of nodes: the next cursor (``0`` at the end) and rank and status of each node."""
    return nodes_page(queue, flow_id, cursor, STATUS_FIELDS, _read_node)


def node_status(queue: QueueKeys, job_id: str, name: str, row: str, reason: str = "") -> Call[NodeStatus]:
    """The status of one node; without a job it is failed for ``reason``, or unknown if that is ''."""
    return job_hash.get_some(
        queue,
        job_id,
        STATUS_FIELDS,
        lambda reply: _read_node(name, row, [field or "" for field in reply], reason)[1],
    )


def node_of_job(queue: QueueKeys, job_id: str) -> Call[NodeStatus | None]:
    """The status of a job's node, without its dependencies; None if the job was removed with its name."""

    def decode(reply: Any) -> NodeStatus | None:
        name, job, *fields = (field or "" for field in reply)
        row = json.dumps([0, queue.queue, job_id, job])
        return _read_node(name, row, fields)[1] if name else None

    return job_hash.get_some(queue, job_id, ("gmo:node", "name", *STATUS_FIELDS), decode)


class TimedNode(NamedTuple):
    """A node with times from its job: its creation, and its last entry in the stream."""

    status: NodeStatus
    created: str
    entry: str


def timed_nodes(queue: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, list[TimedNode]]]:
    """``flow_nodes`` with times instead of ranks; a node may occur twice."""
    return nodes_page(queue, flow_id, cursor, (*STATUS_FIELDS, *_TIMES), _timed)


def timed_node(queue: QueueKeys, job_id: str, name: str, row: str, reason: str) -> Call[TimedNode]:
    """``node_status`` with times."""

    def decode(reply: Any) -> TimedNode:
        return _timed(name, row, [field or "" for field in reply], reason)

    return job_hash.get_some(queue, job_id, (*STATUS_FIELDS, *_TIMES), decode)


def _timed(name: str, row: str, fields: Sequence[str], missing: str = "") -> TimedNode:
    created, entry = fields[-2:]
    return TimedNode(_read_node(name, row, fields[:-2], missing)[1], created, entry)


def _read_node(name: str, table: str, fields: Sequence[str], missing: str = "") -> tuple[float, NodeStatus]:
    """Rank and status of a node, from its row of the node table and its ``STATUS_FIELDS``."""
    state, attempts, begun, finished, reason, progress, skipped, run, token, *rest = fields
    renewed, stalled, lost, stub, gone, on_failure = rest
    begun = started(state, begun, finished, token) or ""
    is_removed = not state or state.startswith(REMOVED) or bool(gone)
    if skipped:
        state, reason = JobState.SKIPPED, skipped
    elif is_removed and not gone:
        ended = state.removeprefix(REMOVED) or end_of_stub(stub) or (missing and JobState.FAILED)
        state, reason = ended, missing or GONE
    now, place = JobState.read(state), read_row(table)
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
        started_at=moment(begun),
        finished_at=moment(finished),
        broken=place is None or (now is JobState.UNKNOWN and not is_removed),
        reruns=max(number(run), 0),
        worker=worker_of(token),
        renewed_at=moment(renewed) if now is JobState.ACTIVE else None,
        lost_attempts=max(number(stalled), number(lost)),
        removed=is_removed,
        ignored=now is JobState.FAILED and on_failure == OnFailure.IGNORE,
    )


def flow_results(
    queue: QueueKeys, flow_id: str, cursor: str
) -> Call[tuple[str, tuple[dict[str, str], list[str]]]]:
    """A page: the next cursor (``0`` at the end), results by node name, and nodes with removed results."""
    return function(
        "gmo_flow_results",
        [queue.flow(flow_id)],
        (0, flow_id, cursor, PAGE),
        replies.page_with_removed,
    )


def failed_node(node: NodeStatus) -> FailedNode:
    """The failed node, in the form for errors and outcomes."""
    return FailedNode(node.name, node.job_id, node.reason, node.attempts, node.ignored)


def node_inputs(
    queue: QueueKeys, job_id: str, cursor: str
) -> Call[tuple[str, tuple[dict[str, str], list[str]]]]:
    """A page of stored results of a node's dependencies by node name, and the refs of removed ones."""
    return function(
        "gmo_node_inputs",
        [queue.job(job_id)],
        (0, job_id, cursor, PAGE),
        replies.page_with_removed,
    )


def read_results(texts: Mapping[str, str]) -> dict[str, Any]:
    """Stored results, decoded."""
    return {name: decode_json(text, where=f"result of node {name}") for name, text in texts.items()}


class JobNow(NamedTuple):
    """The current job of a node.

    Attributes:
        state: '' if it was removed.
        reason: The reason for its end.
        result: In its stored form.
        ended_ms: When it ended.
        has_begun: Whether a worker has begun it.
        round: The last round that restarted it.
        is_stray: Whether a Node worker ended it after losing it, before another worker began it.
        is_removed: Whether only its definition remains: it had ended in this state, and can rerun.
    """

    state: str
    reason: str
    result: str
    ended_ms: int
    has_begun: bool
    round: int
    is_stray: bool
    is_removed: bool = False


def job_now(queue: QueueKeys, job_id: str) -> Call[JobNow]:
    """The job of a node."""

    def decode(reply: Any) -> JobNow:
        state, reason, result, ended, on, skipped, stalled, begun, attempts, in_round, withdrawn, stub = (
            field or "" for field in reply
        )
        is_stray = bool(withdrawn and state in ("completed", "failed") and not on)
        if skipped:
            state, reason = "skipped", skipped
        elif not state and (ended := end_of_stub(stub)):
            return JobNow(ended, GONE, "null", 0, True, number(in_round), is_stray=False, is_removed=True)
        has_begun = bool(on or stalled or begun or number(attempts))
        return JobNow(state, reason, result or "null", number(ended), has_begun, number(in_round), is_stray)

    return job_hash.get_some(queue, job_id, _NOW, decode)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a node from its dependencies.

    Attributes:
        texts: The stored results by node name.
        removed: The jobs whose results were removed.
        has_open: Whether one has not ended: it reruns, or the rule allows that.
    """

    texts: dict[str, str]
    removed: list[str]
    has_open: bool = False


LAST_RANK: Final = 1e9  # for unreadable nodes; no flow has so many nodes
TABLE_PAGE: Final = 200


def write_table(home: QueueKeys, flow_id: str, rows: Mapping[str, str]) -> Call[None]:
    """Store rows of the node table."""
    return write_fields(f"{home.flow(flow_id)}:nodes", rows)


def read_rows(ref: FlowRef) -> Op[dict[str, Row]]:
    """The row of every node by name, dependencies before dependents. Works for every path."""
    found = yield from every_row(partial(rows_page, ref.home, ref.flow_id))
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def rows_page(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, Row]]]:
    """A page of a flow's node table: the next cursor (``0`` at the end), and the row of each node."""

    def decode(reply: Any) -> tuple[str, dict[str, Row]]:
        rows = {name: flat_row(text) for name, text in replies.pairs(reply[1]).items()}
        return reply[0], {name: row for name, row in rows.items() if row}

    return command("HSCAN", f"{home.flow(flow_id)}:nodes", cursor, "COUNT", TABLE_PAGE, decode=decode)


_NUMBERS: Final = frozenset({int, float})


Row = tuple[Any, ...]
"""Rank, queue, job id, job and dependencies of a node; a tuple, to spare the garbage collector."""


def flat_row(text: str) -> Row | None:
    """A row of the node table; None if it is not valid."""
    row = parsed(text)
    if not isinstance(row, list) or len(row) < 4 or not replies.TEXT.issuperset(map(type, row[1:])):
        return None
    return tuple(row) if type(row[0]) in _NUMBERS and 0 <= row[0] < LAST_RANK else None


def read_row(text: str) -> tuple[float, str, str, str, tuple[str, ...]] | None:
    """``flat_row`` with the dependencies as a tuple."""
    if (row := flat_row(text)) is None:
        return None
    rank, queue, job_id, job = row[:4]
    return (rank, queue, job_id, job, row[4:])


def some_rows(home: QueueKeys, flow_id: str, names: Sequence[str]) -> Call[list[str | None]]:
    """Rows of the node table by name; None for a missing node."""
    return command("HMGET", f"{home.flow(flow_id)}:nodes", *names, decode=list)


What = Literal["alone", "follow", "completed", "skipped", "failed"]
ONLY_FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """The requested change.

    Attributes:
        what: ``alone`` or ``follow``: rerun them, alone or with all that follow; else the state in which to
            end them.
        request: The idempotency key.
        text: The result as JSON, or the reason. For a rerun, ``failed`` leaves out nodes that have another
            end.
    """

    what: What
    request: str
    text: str = ""

    @classmethod
    def rerun(cls, request: str, *, dependents: bool, only_failed: bool = False) -> RequestedChange:
        """A rerun."""
        return cls("follow" if dependents else "alone", request, ONLY_FAILED if only_failed else "")

    @property
    def token(self) -> str:
        """The request in the form stored in jobs."""
        return hashlib.sha256(self.request.encode(errors="replace")).hexdigest()[:16]


def requests(queue: QueueKeys, job_id: str) -> Call[list[str]]:
    """The tokens of the last requests that changed a node."""
    return job_hash.get(queue, job_id, "gmo:requests", lambda reply: (reply or "").split(","))


def node_of_row(prefix: str, name: str, row: str, reason: str = "") -> Call[NodeStatus]:
    """The status of a node; without a job it is failed for ``reason``, or completed if that is ''."""
    _, queue, job_id, *_ = read_row(row) or (0, "", "")
    return node_status(QueueKeys(prefix, queue), job_id, name, row, reason)


def one_node(prefix: str, known: NodeStatus, reason: str = "") -> Call[NodeStatus]:
    """The status of a node that was read before."""
    row: list[Any] = [0, known.queue, known.job_id, known.job, *known.after]
    place = QueueKeys(prefix, known.queue)
    return node_status(place, known.job_id, known.name, json.dumps(row), reason)
