"""Calls that find and repair open nodes which would never end; the contracts are in the Lua headers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._protocol.flows.nodes import Row, flat_row
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

TABLE_PAGE: Final = 200


PAGE: Final = 100


STREAM_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Suspect:
    """An open node whose job may be lost: queue, job id, and its trace in the server; '' if it is missing."""

    queue: QueueKeys
    job_id: str
    trace: str

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for dependencies, which may all have ended."""
        return self.trace.startswith("waiting-children|")


def running_flows(home: QueueKeys, first: int, count: int) -> Call[list[str]]:
    """The ids of some running flows of a home queue."""
    return command("ZRANGE", f"{home.flows()}:state:running", first, first + count - 1, decode=list)


def check_open(
    home: QueueKeys, flow_id: str, position: int, silent_ms: int, now_ms: int
) -> Call[tuple[int, list[Suspect]]]:
    """Check and repair a page of a flow's open nodes: the next position (0 at the end), and the suspects.

    Positions are in the order in which the nodes joined, so that they hold in another server process too.
    """

    def decode(reply: Any) -> tuple[int, list[Suspect]]:
        suspects = [_suspect(ref, trace) for ref, trace in replies.rows(2)(reply[1:])]
        return int(reply[0]), suspects

    args = (now_ms, flow_id, position, PAGE, silent_ms)
    return function("gmo_check_open", [home.flow(flow_id)], args, decode)


def _suspect(ref: str, trace: str) -> Suspect:
    """A suspect from the ref of its job."""
    base, _, job_id = ref.rpartition(":")
    prefix, _, queue = base.rpartition(":")
    return Suspect(QueueKeys(prefix, queue[1:-1]), job_id, trace)


def dependencies(suspect: Suspect, cursor: str) -> Call[tuple[str, list[str]]]:
    """The next cursor (``0`` at the end), and a page of a node's dependencies; one may come twice."""
    key = suspect.queue.deps(suspect.job_id)
    return command("SSCAN", key, cursor, "COUNT", PAGE, decode=lambda reply: (reply[0], list(reply[1])))


def notify_again(
    home: QueueKeys, flow_id: str, suspect: Suspect, refs: Sequence[str], now_ms: int
) -> Call[int]:
    """Notify a blocked node of the ends of these dependencies; no refs: all are notified, release or end it.

    Returns 0 when one of them has not ended, or the node does not wait any more. Repeatable.
    """
    keys = [home.flow(flow_id), suspect.queue.job(suspect.job_id)]
    return function("gmo_notify_again", keys, (now_ms, flow_id, suspect.job_id, *refs), replies.integer)


def stream_page(queue: QueueKeys, after: str) -> Call[list[tuple[str, str]]]:
    """Entry id and job id of the entries after a position, ``""`` for the start; none at the end."""
    start = f"({after}" if after else "-"

    def decode(reply: Any) -> list[tuple[str, str]]:
        return [(entry_id, replies.pairs(fields or []).get("jobId", "")) for entry_id, fields in reply]

    return command("XRANGE", queue.key("stream"), start, "+", "COUNT", STREAM_PAGE, decode=decode)


def is_held(queue: QueueKeys, entry_id: str) -> Call[bool]:
    """Whether a worker holds the entry."""
    return command("XPENDING", queue.key("stream"), GROUP, entry_id, entry_id, 1, decode=bool)


def delivered(queue: QueueKeys) -> Call[tuple[int, int]]:
    """The last entry that was delivered to the workers' group."""

    def decode(reply: Any) -> tuple[int, int]:
        for group in reply:
            fields = replies.pairs(group)
            if fields["name"] == GROUP:
                return entry_order(str(fields["last-delivered-id"]))
        return (0, 0)

    return command("XINFO", "GROUPS", queue.key("stream"), decode=decode)


def entry_order(entry_id: str) -> tuple[int, int]:
    """The sort key of an entry."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number)


def put_back(suspect: Suspect, dead_entry: str, now_ms: int) -> Call[int]:
    """Bring a lost job back to the stream unless it has changed; 1 if it was brought back. Repeatable."""
    keys = [suspect.queue.job(suspect.job_id), suspect.queue.key("stream")]
    return function(
        "gmo_put_back", keys, (now_ms, suspect.job_id, suspect.trace, dead_entry), replies.integer
    )


def recent_events(queue: QueueKeys, before: str) -> Call[list[tuple[str, dict[str, str]]]]:
    """A page of events from new to old, before a position; ``""`` for the end of the stream."""
    start = f"({before}" if before else "+"
    return command(
        "XREVRANGE",
        queue.key("events"),
        start,
        "-",
        "COUNT",
        PAGE,
        decode=lambda reply: [(entry_id, replies.pairs(fields or [])) for entry_id, fields in reply],
    )


def node_table(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, Row]]]:
    """A page of a flow's node table: the next cursor (``0`` at the end), and the row of each node."""

    def decode(reply: Any) -> tuple[str, dict[str, Row]]:
        rows = {name: flat_row(text) for name, text in replies.pairs(reply[1]).items()}
        return reply[0], {name: row for name, row in rows.items() if row}

    return command("HSCAN", f"{home.flow(flow_id)}:nodes", cursor, "COUNT", TABLE_PAGE, decode=decode)


def retried(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, list[str]]]:
    """The next cursor (``0`` at the end), and a page of the nodes that ``retry_flow`` would run again."""
    key = f"{home.flow(flow_id)}:failed"
    return command("SSCAN", key, cursor, "COUNT", TABLE_PAGE, decode=lambda reply: (reply[0], list(reply[1])))


def settle_missing(  # noqa: PLR0913  the arguments of one server call
    home: QueueKeys,
    flow_id: str,
    missing: Suspect,
    *,
    outcome: Mapping[str, Any],
    dependents: Iterable[str],
    now_ms: int,
) -> Call[int]:
    """End a node whose job was removed; 1 if this call has ended it. Repeatable."""
    queue, job_id = missing.queue, missing.job_id
    keys = [home.flow(flow_id), queue.job(job_id), queue.parents(job_id)]
    args: list[Word] = [now_ms, flow_id, job_id, json.dumps(outcome), *dependents]
    return function("gmo_settle_missing", keys, args, replies.integer)
