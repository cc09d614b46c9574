"""The history pipeline as a flow: names, order and payloads. Needs no PySpark."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.spark.steps.run import JOB_NAME
from glidemq_orchestrate.wire.codec import Json

MODULE: Final = "glidemq_orchestrate.spark.history.steps"
TABLES: Final = ("durations", "slowest", "retries", "critical_paths")
OPTIONS: Final = JobOptions(attempts=3, timeout=timedelta(minutes=30))


def build(location: str, *, queue: str = "spark", days: int = 30) -> FlowSpec:
    """The pipeline: ``collect``, then the four tables of ``TABLES`` in parallel, then ``report``.

    ``collect`` adds the flows that have ended since its last run to the table ``nodes``. It may run at any
    interval that is shorter than the retention of flows. A repeat adds no duplicates.

    Args:
        location: Directory that every worker of the queue can read and write; the same for each run.
        queue: Queue of all nodes, served by a worker of ``glidemq_orchestrate.spark``.
        days: How many past days the first run collects and each run reports: 1 to 3,650.

    Raises:
        InvalidFlow: ``days`` is out of range.
    """
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 3_650:
        raise InvalidFlow(f"days must be a whole number from 1 to 3650, got {described(days)}")

    def node(name: str, function: str, after: tuple[str, ...], **arguments: Json) -> FlowNode:
        data: Json = {
            "callable": f"{MODULE}:{function}",
            "arguments": {"days": days, **arguments},
            "location": location,
        }
        return FlowNode(name, queue=queue, job=JOB_NAME, data=data, after=after, options=OPTIONS)

    return FlowSpec(
        "history",
        nodes=[
            node("collect", "collect", ()),
            *(node(table, "tabulate", ("collect",), table=table) for table in TABLES),
            node("report", "report", ("collect", *TABLES)),
        ],
    )
