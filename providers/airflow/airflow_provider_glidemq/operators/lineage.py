"""OpenLineage inputs and outputs of the Spark steps of a flow; Airflow's OpenLineage provider calls this."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from glidemq_orchestrate.errors import JobNotFound
from glidemq_orchestrate.runs import Json

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from glidemq_orchestrate import Flow, FlowProducer, FlowSpec, Queue
    from glidemq_orchestrate.spark.lineage import Lineage

SPARK: Final = "spark."
MAX_STEPS: Final = 1_000


class LineageSource(Protocol):
    """What ``ReportsLineage`` needs of the task that it is a part of."""

    def _id(self, ti: RuntimeTaskInstanceProtocol) -> str: ...
    def _declared(self) -> FlowSpec | None: ...
    def _producer(self) -> FlowProducer: ...
    def _queue(self, name: str) -> Queue: ...
    def get_openlineage_facets_on_complete(
        self, task_instance: RuntimeTaskInstanceProtocol
    ) -> OperatorLineage[Any, Any] | None: ...


class ReportsLineage:
    """A task whose flow may have Spark steps that report their inputs and outputs.

    They report it in their data or in their result, ``{"lineage": {"inputs": [...], "outputs": [...]}}``, and
    Spark reports which folders its queries read and write. The lineage of the task combines all its steps: a
    dataset that one step writes and another reads is an output.
    """

    def get_openlineage_facets_on_start(self: LineageSource) -> OperatorLineage[Any, Any] | None:
        """The inputs and outputs that the steps declare in their data."""
        if (spec := self._declared()) is None:
            return None
        return _as_openlineage(node.data for node in spec.nodes if node.job.startswith(SPARK))

    def get_openlineage_facets_on_complete(
        self: LineageSource, task_instance: RuntimeTaskInstanceProtocol
    ) -> OperatorLineage[Any, Any] | None:
        """The inputs and outputs of the first 1,000 completed steps, read from the server."""
        with self._producer() as producer:
            return _as_openlineage(list(_reports(producer.get(self._id(task_instance)), self._queue)))

    def get_openlineage_facets_on_failure(
        self: LineageSource, task_instance: RuntimeTaskInstanceProtocol
    ) -> OperatorLineage[Any, Any] | None:
        """The same, for the steps that completed before the flow failed."""
        return self.get_openlineage_facets_on_complete(task_instance)


def _reports(flow: Flow, open_queue: Callable[[str], Queue]) -> Iterator[Any]:
    """The data and results of the completed Spark steps, and the reports of Spark about them."""
    steps = (node for node in flow.nodes() if node.job.startswith(SPARK) and node.state == "completed")
    with contextlib.ExitStack() as clients:
        queues: dict[str, Queue] = {}
        for node in islice(steps, MAX_STEPS):
            if node.queue not in queues:
                queues[node.queue] = clients.enter_context(open_queue(node.queue))
            with contextlib.suppress(JobNotFound):
                job = queues[node.queue].get_job(node.job_id)
                yield from (job.data, job.result, job.progress)


def _as_openlineage(reports: Any) -> OperatorLineage[Any, Any]:
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415  with OpenLineage only
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415  with OpenLineage only

    from glidemq_orchestrate.spark.lineage import Lineage  # noqa: PLC0415

    whole = Lineage.together(_readable(one) for one in reports)
    return OperatorLineage(
        inputs=[Dataset(*one) for one in whole.inputs], outputs=[Dataset(*one) for one in whole.outputs]
    )


def _readable(value: Json) -> Lineage:
    """The lineage in the data or the result of a step; invalid lineage is ignored."""
    from glidemq_orchestrate.spark.lineage import Lineage  # noqa: PLC0415  with OpenLineage only

    with contextlib.suppress(ValueError):
        return Lineage.of(value)
    return Lineage()
