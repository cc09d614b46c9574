"""GlideMQOperator: one job behind one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_glidemq.description import check_job, job_spec
from airflow_provider_glidemq.operators.lifecycle import FlowTask
from airflow_provider_glidemq.results import KEEPING, check_size
from airflow_provider_glidemq.version_compat import AirflowFailException, AirflowSkipException
from glidemq_orchestrate import runs

if TYPE_CHECKING:
    from airflow.sdk import Context

    from glidemq_orchestrate import Flow, FlowSpec, FlowStatus, JobOptions


class GlideMQOperator(FlowTask):
    """Runs one job on a queue, waits for its end without a worker slot, and returns its result.

    The job is a flow of one node, so all that is said of ``GlideMQFlowOperator`` holds: it is submitted once,
    also when the Airflow worker dies; a retry attaches to it while it runs and runs it again when it
    failed, a clear runs it again, a kill cancels it, and it does not outlive a task that has vanished.

    A handler that raises ``Skip`` skips the task. ``attempts`` of the job and ``retries`` of the task
    multiply: the worker repeats a job that fails, with its ``backoff``, and the task sees only the end; a
    retry of the task then gives it all its attempts again. Prefer attempts: they cost Airflow nothing.
    Retries are for what no attempt cures: no worker, an unreachable server, a lost Airflow worker.

    Args:
        queue_name: The queue (templated); ``queue`` is Airflow's, of its own workers.
        job: The handler's name (templated).
        data: What the handler gets as ``ctx.data`` (templated): JSON, at most 1 MiB.
        options: ``JobOptions``, or a dict of its fields as in a flow file (templated).
        retention: How long after its end the job is kept; a number is seconds. None: until it is removed.
        flow_id: An id of your own (templated); default: derived from DAG, DAG run, task and map index.
        glidemq_conn_id, deferrable, defer_after, poll_interval, logging_interval, show_logs, callbacks,
        require_workers, cancel_on_kill, lease, on_existing: As of ``GlideMQFlowOperator``.

    Raises:
        GlideMQFlowFailed: The job failed: with the reason, after how many attempts.
        AirflowSkipException: Its handler skipped it.
        GlideMQResultTooLarge: Its result is more than 48 KiB of JSON, and XCom is in Airflow's database.
        GlideMQFlowCancelled, GlideMQFlowSuperseded, GlideMQFlowTimeout, GlideMQException,
        AirflowFailException: As ``GlideMQFlowOperator``.
        ValueError, TypeError: While the DAG is parsed: a parameter cannot be right.
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "job",
        "data",
        "options",
        "flow_id",
        "glidemq_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"data": "json", "options": "json"}
    structured_fields: ClassVar[tuple[str, ...]] = ("options",)
    ui_color = "#dbe9f4"

    def __init__(
        self,
        *,
        queue_name: str,
        job: str,
        data: Any = None,
        options: JobOptions | Mapping[str, Any] | None = None,
        retention: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.job = job
        self.data = data
        self.options = options
        self.retention = retention
        self._is_checked = False
        if self.is_being_parsed:
            self._check()

    def resolve_template_files(self) -> None:
        """Refuse a job that cannot run; Airflow has parsed the DAG.

        Raises:
            GlideMQError, TypeError: It cannot run with any values of its templates.
        """
        self._check()
        super().resolve_template_files()

    def _check(self) -> None:
        if not self._is_checked:
            with self._told():
                check_job(self._parts(), self.options, self.retention, self._marks())
            self._is_checked = True

    def _parts(self) -> dict[str, Any]:
        return {"queue": self.queue_name, "job": self.job, "data": self.data}

    def _described(self, context: Context) -> FlowSpec:  # noqa: ARG002  its fields are rendered
        try:
            return job_spec(self._parts(), self.options, self.retention)
        except TypeError as exc:
            raise AirflowFailException(str(exc)) from exc

    def _linked(self, flow: Flow) -> Mapping[str, str]:
        (node,) = flow.nodes()
        return {"flow_id": flow.id, "queue": node.queue, "job_id": node.job_id}

    def _returned(self, flow: Flow, status: FlowStatus) -> Any:
        if status.skipped:
            (node,) = flow.nodes()
            why = f"job {node.job} was skipped: {runs.in_text(node.reason)}"
            self.log.info(why)  # Airflow logs none
            raise AirflowSkipException(why)
        results = flow.results()
        if self.do_xcom_push:
            check_size(flow.id, results, KEEPING)
        return next(iter(results.values()), None)
