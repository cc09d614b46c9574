"""What the event log tells of a node: times, attempts, queue, result."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

import dagster as dg

from glidemq_orchestrate import NodeStatus
from glidemq_orchestrate.runs import Json, json_size

MAX_RESULT_BYTES: Final = 10_000
ROWS: Final = "dagster/row_count"

Metadata = dict[str, dg.MetadataValue]


def node_metadata(
    node: NodeStatus, result: Json, *, flow_id: str, link: str, ready_at: datetime | None
) -> Metadata:
    """The metadata of the asset of a node.

    Args:
        node: The node, which has completed.
        result: Its result; ``{"rows": 3}`` is the number of rows of the asset.
        flow_id: Its flow.
        link: To the flow, or "".
        ready_at: When it could have begun to run; None: unknown.
    """
    metadata: Metadata = {
        "glidemq/flow_id": dg.MetadataValue.text(flow_id),
        "glidemq/node": dg.MetadataValue.text(node.name),
        "glidemq/queue": dg.MetadataValue.text(node.queue),
        "glidemq/job_id": dg.MetadataValue.text(node.job_id),
        "glidemq/attempts": dg.MetadataValue.int(node.attempts),
    }
    if node.worker is not None:
        metadata["glidemq/worker"] = dg.MetadataValue.text(node.worker)
    if link:
        metadata["glidemq/flow"] = dg.MetadataValue.url(link)
    times = {"glidemq/started_at": node.started_at, "glidemq/finished_at": node.finished_at}
    metadata |= {name: dg.MetadataValue.timestamp(at) for name, at in times.items() if at is not None}
    if ready_at is not None and node.started_at is not None:
        waited = max((node.started_at - ready_at).total_seconds(), 0.0)
        metadata["glidemq/queued_seconds"] = dg.MetadataValue.float(waited)
    if node.seconds is not None:
        metadata["glidemq/run_seconds"] = dg.MetadataValue.float(node.seconds)
    rows = result.get("rows") if isinstance(result, dict) else None
    if isinstance(rows, int) and not isinstance(rows, bool):
        metadata[ROWS] = dg.MetadataValue.int(rows)
    return metadata | result_metadata(result)


def result_metadata(result: Json, name: str = "glidemq/result") -> Metadata:
    """The result, unless it is None or too large for an event log."""
    if result is None or json_size(result) > MAX_RESULT_BYTES:
        return {}
    if isinstance(result, dict | list):
        return {name: dg.MetadataValue.json(result)}
    return {name: dg.MetadataValue.text(json.dumps(result))}
