"""The last log lines of the nodes that made a flow fail, for the log of the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from airflow_provider_glidemq.exceptions import UPSTREAM
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate import Flow
    from glidemq_orchestrate.errors import FailedNode
    from glidemq_orchestrate.settings import ConnectionSettings

NODES: Final = 3
LINES: Final = 20
CHARACTERS: Final = 1_000


def log_failures(flow: Flow, failed: Sequence[FailedNode], settings: ConnectionSettings, log: Logger) -> None:
    """Log what the first nodes that failed had logged themselves; never fails."""
    causes = [node.name for node in failed if not node.reason.startswith(UPSTREAM)]
    try:
        for name, lines in _tails(flow, causes[:NODES], settings):
            log.error("Node %s had logged:\n%s", name, "\n".join(line[:CHARACTERS] for line in lines))
    except GlideMQError as exc:
        log.warning("The logs of the nodes that failed cannot be read: %s", exc)


def _tails(
    flow: Flow, names: Sequence[str], settings: ConnectionSettings
) -> Iterator[tuple[str, Sequence[str]]]:
    """The last lines of each node that has any."""
    from glidemq_orchestrate import Queue  # noqa: PLC0415  DAG files need it not

    for name in names:
        node = flow.node(name)
        with Queue(node.queue, settings, prefix=settings.prefix) as queue:
            total = queue.logs(node.job_id, limit=0).total
            if total:
                yield name, queue.logs(node.job_id, offset=max(total - LINES, 0), limit=LINES).lines
