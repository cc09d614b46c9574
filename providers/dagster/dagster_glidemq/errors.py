"""Errors of the core as Dagster shows them: a ``Failure`` with the details for the run page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dagster as dg

from glidemq_orchestrate.errors import FailedNode, FlowConflict, FlowFailed, GlideMQError
from glidemq_orchestrate.runs import in_text

MAX_ROWS: Final = 50


def failure_from(exc: GlideMQError, flow_id: str, *, allow_retries: bool | None = None) -> dg.Failure:
    """Turn an error of the core into the ``Failure`` that a step raises.

    Args:
        exc: The error.
        flow_id: The flow; becomes metadata.
        allow_retries: Whether the step's retry policy applies; None: only if the error is retryable.
    """
    metadata: dict[str, dg.MetadataValue] = {
        "glidemq/flow_id": dg.MetadataValue.text(flow_id),
        "glidemq/error": dg.MetadataValue.text(type(exc).__name__),
    }
    description = in_text(str(exc))
    if isinstance(exc, FlowFailed):
        metadata["glidemq/failed_count"] = dg.MetadataValue.int(len(exc.failed))
        metadata["glidemq/failed_nodes"] = failed_table(exc.failed)
    elif isinstance(exc, FlowConflict):
        description = (
            f"{description}. Only the runs that began a flow can change it: use another flow_id for this one"
        )
    retries = exc.retryable if allow_retries is None else allow_retries
    return dg.Failure(description=description, metadata=metadata, allow_retries=retries)


def failed_table(failed: Sequence[FailedNode]) -> dg.TableMetadataValue:
    """The first 50 failed nodes as a table, causes before consequences."""
    columns = {"node": "string", "reason": "string", "attempts": "int", "job_id": "string"}
    rows = [
        dg.TableRecord(
            {
                "node": node.name,
                "reason": in_text(node.reason),
                "attempts": node.attempts,
                "job_id": node.job_id,
            }
        )
        for node in failed[:MAX_ROWS]
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table(records=rows, schema=schema)
