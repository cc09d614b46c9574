"""The last log lines of the nodes that made a flow fail, for the log of the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_provider_glidemq.exceptions import UPSTREAM
from airflow_provider_glidemq.node_reports import in_block
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate import Flow
    from glidemq_orchestrate.errors import FailedNode

NODES: Final = 3
LINES: Final = 20


def log_failures(flow: Flow, failed: Sequence[FailedNode], log: Logger) -> None:
    """Log what the first nodes that failed had logged themselves; never fails."""
    causes = [node.name for node in failed if not node.reason.startswith(UPSTREAM)]
    try:
        for name, logs in flow.logs(dict.fromkeys(causes[:NODES], -LINES), limit=LINES).items():
            if logs.lines:
                log.error("Node %s had logged:\n%s", name, in_block(logs.lines))
    except GlideMQError as exc:
        log.warning("The logs of the nodes that failed cannot be read: %s", exc)
