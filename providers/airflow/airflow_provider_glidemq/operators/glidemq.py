"""The operators for a job, for a Spark step, and (from ``flow``) for a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_glidemq.description import check_job, job_spec
from airflow_provider_glidemq.functions import SPARK_JOB
from airflow_provider_glidemq.operators.flow import GlideMQFlowOperator
from airflow_provider_glidemq.operators.lifecycle import XCOM_FLOW_ID, FlowTask
from airflow_provider_glidemq.results import KEEPING, check_size
from airflow_provider_glidemq.task_attempt import flow_id_for
from airflow_provider_glidemq.templates import is_unknown
from airflow_provider_glidemq.version_compat import AirflowFailException, AirflowSkipException
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.functions import is_named
from glidemq_orchestrate.foundation.texts import shown
from glidemq_orchestrate.foundation.values import MAX_NAME

if TYPE_CHECKING:
    from airflow.sdk import Context

    from glidemq_orchestrate import Flow, FlowSpec, JobOptions
    from glidemq_orchestrate.flows import FlowStatus
    from glidemq_orchestrate.runs import Duration

__all__ = ["XCOM_FLOW_ID", "GlideMQFlowOperator", "GlideMQOperator", "GlideMQSparkOperator", "flow_id_for"]


class GlideMQOperator(FlowTask):
    """Runs one job on a queue, waits for its end without a worker slot, and returns its result.

    The job is a flow of one node, so everything about ``GlideMQFlowOperator`` applies. It is submitted only
    once, even if the Airflow worker dies. A retry attaches to it while it runs, and runs it again if it
    failed. A clear runs it again, and a kill cancels it. It does not outlive a task that has vanished.

    A handler that raises ``Skip`` skips the task. The ``attempts`` of the job and the ``retries`` of the task
    multiply: the worker repeats a failing job with its ``backoff``, and the task sees only the end; each
    retry of the task then grants all attempts again. Prefer attempts: they cost Airflow nothing. Use retries
    for what no attempt can fix: no worker, an unreachable server, a lost Airflow worker.

    Args:
        queue_name: The queue (templated); ``queue`` is the queue of Airflow's own workers.
        job: The name of the job's handler (templated).
        data: The data for the handler, ``ctx.data`` (templated): JSON, at most 1 MiB.
        options: ``JobOptions``, or a dict of its fields as in a flow file (templated).
        retention: How long the job is kept after its end; a number means seconds. None: until it is removed.
        flow_id: Your own id for the flow (templated); default: derived from DAG, DAG run, task and map index.
        glidemq_conn_id, deferrable, defer_after, poll_interval, logging_interval, show_logs, callbacks,
        require_workers, cancel_on_kill, lease, on_existing: See ``GlideMQFlowOperator``.

    Raises:
        GlideMQFlowFailed: The job failed; with the reason and the number of attempts.
        AirflowSkipException: Its handler skipped it.
        GlideMQResultTooLarge: Its result is more than 48 KiB of JSON, and XCom is in Airflow's database.
        GlideMQFlowCancelled, GlideMQFlowSuperseded, GlideMQFlowTimeout, GlideMQException,
        AirflowFailException: See ``GlideMQFlowOperator``.
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
        retention: Duration | None = None,
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
            GlideMQError, TypeError: The job cannot run for any values of its templates.
        """
        self._check()
        super().resolve_template_files()

    def _check(self) -> None:
        if not self._is_checked:
            with self._located_errors():
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


class GlideMQSparkOperator(GlideMQOperator):
    """Runs one Spark step on the warm session of a glide-mq worker, and returns its result.

    The step is a function ``step(spark, ctx, **arguments)``; ``spark`` is a new ``SparkSession`` on the
    context that the worker keeps open, so no JVM is started. The task log shows how many stages and tasks are
    done. Killing the task ends the Spark jobs of its step. The result should be small JSON, such as row
    counts and the paths of the output.

    Workers for it: ``glidemq worker --app glidemq_orchestrate.spark --allow-import mypackage --queue spark``.
    The workers define the master and settings of the session: ``GLIDEMQ_SPARK_MASTER``,
    ``GLIDEMQ_SPARK_CONF``.

    Args:
        application: The step, ``package.module:function`` (templated), in a package that the workers allow
            (``--allow-import``).
        arguments: The arguments of the step by name (templated).
        location: The directory or URI where the step reads and writes (templated): ``ctx.data["location"]``.
        lineage: The inputs and outputs of the step for OpenLineage (templated), as ``{"inputs": [...],
            "outputs": [...]}`` of paths, URIs or ``{"namespace", "name"}``. The step may also return it.
        conf: Spark SQL settings for this step only (templated), such as ``spark.sql.shuffle.partitions``.
        user: The user for whom the step runs (templated), as the Spark UI shows it: ``spark.glidemq.user``.
            It grants no rights.
        queue_name: The queue (templated); ``queue`` is the queue of Airflow's own workers.
        options, retention, flow_id, glidemq_conn_id, deferrable, defer_after, poll_interval,
        logging_interval, show_logs, callbacks, require_workers, cancel_on_kill, lease, on_existing: See
            ``GlideMQOperator``.

    Raises:
        GlideMQFlowFailed: The step failed; with the reason and the number of attempts.
        GlideMQResultTooLarge, GlideMQFlowCancelled, GlideMQFlowSuperseded, GlideMQFlowTimeout,
        GlideMQException, AirflowSkipException, AirflowFailException: See ``GlideMQOperator``.
        ValueError, TypeError: While the DAG is parsed: a parameter cannot be right.
    """

    template_fields: Sequence[str] = (
        "application",
        "arguments",
        "location",
        "conf",
        "lineage",
        "user",
        *(field for field in GlideMQOperator.template_fields if field not in ("job", "data")),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "arguments": "json",
        "conf": "json",
        "lineage": "json",
        "options": "json",
    }
    shows_progress = True

    def __init__(  # noqa: PLR0913  an operator's parameters are its interface
        self,
        *,
        application: str,
        arguments: Mapping[str, Any] | None = None,
        location: str | None = None,
        conf: Mapping[str, Any] | None = None,
        lineage: Mapping[str, Any] | None = None,
        user: str | None = None,
        queue_name: str = "spark",
        **kwargs: Any,
    ) -> None:
        self.application = application
        self.arguments = arguments
        self.location = location
        self.conf = conf
        self.lineage = lineage
        self.user = user
        super().__init__(queue_name=queue_name, job=SPARK_JOB, **kwargs)

    def _parts(self) -> dict[str, Any]:
        step = self._step()
        for name in ("location", "conf", "lineage", "user"):
            if (value := getattr(self, name)) is not None:
                step["data"] = {**step["data"], name: value}
        return {"queue": self.queue_name, "job": SPARK_JOB, **step}

    def _step(self) -> dict[str, Any]:
        """The name of the node, and the data of its job except ``location`` and ``conf``."""
        for name in ("arguments", "conf", "lineage"):
            value: object = getattr(self, name)
            if not (value is None or isinstance(value, Mapping) or is_unknown(value, self._marks())):
                raise TypeError(f"{name} must be a dict, got {type(value).__name__}")
        application: object = self.application
        name = "step"
        if not is_unknown(application, self._marks()):
            if not isinstance(application, str) or not is_named(application):
                raise ConfigurationError(
                    f"application {shown(str(application))} is not package.module:function: a Spark step is "
                    "a function that the worker imports"
                )
            name = application.partition(":")[2]
        return {
            "name": name[:MAX_NAME],
            "data": {"callable": application, "arguments": {} if self.arguments is None else self.arguments},
        }
