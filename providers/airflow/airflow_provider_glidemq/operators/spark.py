"""GlideMQSparkOperator: one Spark step on a warm session, behind one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_provider_glidemq.by_import_path import SPARK_JOB
from airflow_provider_glidemq.operators.job import GlideMQOperator
from airflow_provider_glidemq.templates import is_unknown
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.named import is_named
from glidemq_orchestrate.foundation.names import MAX_NAME, shown


class GlideMQSparkOperator(GlideMQOperator):
    """Runs one Spark step on the warm session of a glide-mq worker, and returns what the step returns.

    The step is a function ``step(spark, ctx, **arguments)``; ``spark`` is a ``SparkSession`` of its own, on
    the context that the worker keeps, so no JVM is started. How many stages and tasks are done is in the log
    of the task; a task that is killed ends the Spark jobs of its step. What the step returns is small JSON,
    such as counts of rows and the paths of what it has written.

    Workers for it: ``glidemq worker --app glidemq_orchestrate.spark --allow-import mypackage --queue spark``.
    Master and settings of their session are theirs: ``GLIDEMQ_SPARK_MASTER``, ``GLIDEMQ_SPARK_CONF``.

    Args:
        application: The step, ``package.module:function`` (templated), of a package that the workers were
            started with.
        arguments: Its arguments by name (templated).
        location: Directory or URI where it reads and writes (templated): ``ctx.data["location"]``.
        lineage: What it reads and writes, for OpenLineage (templated), as ``{"inputs": [...], "outputs":
            [...]}`` of paths, URIs or ``{"namespace", "name"}``. The step may also return it.
        conf: Settings of Spark SQL for this step alone (templated), such as ``spark.sql.shuffle.partitions``.
        user: For whom the step runs (templated), as Spark's pages show it: ``spark.glidemq.user``. It gives
            no rights.
        queue_name: The queue (templated); ``queue`` is Airflow's, of its own workers.
        options, retention, flow_id, glidemq_conn_id, deferrable, defer_after, poll_interval,
        logging_interval, show_logs, callbacks, require_workers, cancel_on_kill, lease, on_existing: As of
        ``GlideMQOperator``.

    Raises:
        GlideMQFlowFailed: The step failed: with the reason, after how many attempts.
        GlideMQResultTooLarge, GlideMQFlowCancelled, GlideMQFlowSuperseded, GlideMQFlowTimeout,
        GlideMQException, AirflowSkipException, AirflowFailException: As of ``GlideMQOperator``.
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
        """The name of the node, and the data of its job but location and conf."""
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
