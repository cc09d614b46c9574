"""The node table of a flow: a row for each node, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate.flows.ref import FlowRef
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import parsed

LAST_RANK: Final = 1e9  # for unreadable nodes; no flow has so many nodes
TABLE_PAGE: Final = 200


def write_table(home: QueueKeys, flow_id: str, rows: Mapping[str, str]) -> Call[None]:
    """Store rows of the node table."""
    words = [word for pair in rows.items() for word in pair]
    return command("HSET", f"{home.flow(flow_id)}:nodes", *words, decode=replies.anything)


def read_rows(ref: FlowRef) -> Op[dict[str, Row]]:
    """The row of every node by name, dependencies before dependents. Works for every path."""
    found: dict[str, Row] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(node_table(ref.home, ref.flow_id, cursor))
        found |= page
        if cursor == "0":
            return dict(sorted(found.items(), key=lambda item: item[1][0]))


def node_table(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, Row]]]:
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
