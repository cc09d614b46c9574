"""Calls for watching a flow: several event streams in one call, and single nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate._protocol.flows.nodes import node_status, read_row
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command
from glidemq_orchestrate.wire.keys import QueueKeys

COUNT: Final = 500

Entries = list[tuple[str, dict[str, str]]]


def read_streams(positions: Mapping[QueueKeys, str], wait_ms: int) -> Call[dict[QueueKeys, Entries]]:
    """Events after a position in each queue, if there are any; waits at most ``wait_ms`` for the first."""
    queues = {queue.key("events"): queue for queue in positions}

    def decode(reply: Any) -> dict[QueueKeys, Entries]:
        return {queues[key]: entries for key, entries in replies.stream_entries(reply).items()}

    head: tuple[Word, ...] = ("XREAD", "COUNT", COUNT, "BLOCK", max(wait_ms, 1), "STREAMS")
    return command(*head, *queues, *positions.values(), decode=decode, blocks_for=wait_ms / 1000)


def rows(home: QueueKeys, flow_id: str, names: Sequence[str]) -> Call[list[str | None]]:
    """Rows of the node table by name; None for a missing node."""
    return command("HMGET", f"{home.flow(flow_id)}:nodes", *names, decode=list)


def record_marks(home: QueueKeys, flow_id: str) -> Call[list[str | None]]:
    """Which generation took the place of this one, and when its jobs were removed; None if none, or not."""
    return command("HMGET", home.flow(flow_id), "superseded", "expired_at", decode=list)


def node_of_row(prefix: str, name: str, row: str, reason: str = "") -> Call[NodeStatus]:
    """The status of a node; if its job is missing, failed for ``reason``, or completed if that is ''."""
    _, queue, job_id, *_ = read_row(row) or (0, "", "")
    return node_status(QueueKeys(prefix, queue), job_id, name, row, reason)


def node(prefix: str, known: NodeStatus, reason: str = "") -> Call[NodeStatus]:
    """The status of a node that was read before."""
    row: list[Any] = [0, known.queue, known.job_id, known.job, *known.after]
    place = QueueKeys(prefix, known.queue)
    return node_status(place, known.job_id, known.name, json.dumps(row), reason)
