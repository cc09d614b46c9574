"""What the nodes that made a flow fail have logged, for the log of the step: with their tracebacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dagster_glidemq.identity import Context
from glidemq_orchestrate import Flow
from glidemq_orchestrate.errors import FailedNode, GlideMQError
from glidemq_orchestrate.foundation.log_text import in_block

NODES: Final = 3
LINES: Final = 20
CHARACTERS: Final = 10_000  # a traceback has 8,000 at most
UPSTREAM: Final = "upstream failed: "


def log_failures(context: Context, flow: Flow, failed: Sequence[FailedNode]) -> None:
    """Log the last lines of the first nodes that failed by themselves; never fails."""
    causes = [node.name for node in failed if not node.reason.startswith(UPSTREAM)]
    try:
        for name, logs in flow.logs(dict.fromkeys(causes[:NODES], -LINES), limit=LINES).items():
            if logs.lines:
                lines = in_block(line[:CHARACTERS] for line in logs.lines)
                context.log.error("node %s had logged:\n%s", name, lines)
    except GlideMQError as exc:
        context.log.warning("the logs of the nodes that failed cannot be read: %s", exc)
