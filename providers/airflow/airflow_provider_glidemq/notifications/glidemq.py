"""GlideMQNotifier: adds a job to a queue when a task or DAG run succeeds, fails, is retried or is late."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseNotifier

from airflow_provider_glidemq.description import check_job, job_spec
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from airflow_provider_glidemq.templates import is_unknown
from glidemq_orchestrate import NewJob

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

    from glidemq_orchestrate import JobOptions

MAX_TEXT: Final = 1_000
_OF_TASK: Final = ("dag_id", "task_id", "run_id", "map_index", "try_number", "state")
_OF_RUN: Final = ("dag_id", "run_id")


class GlideMQNotifier(BaseNotifier):
    """Adds a job: for callbacks of tasks and DAGs such as ``on_failure_callback``, and for deadline alerts.

    Args:
        queue_name: The queue (templated).
        job: The name of the job (templated).
        data: The data of the job (templated): JSON. By default the context from Airflow: ids of DAG, run and
            task, map index, try, ``state``, ``reason`` and ``exception``.
        options: ``JobOptions``, or a dict of its fields as in a flow file (templated).
        once: A key of the notification (templated), such as ``{{ dag.dag_id }} {{ run_id }}``: a second
            notification with the same key adds no job while the first job exists. None: each notification
            adds a job.
        glidemq_conn_id: The connection (templated).

    Raises:
        GlideMQError, TypeError: While the DAG is parsed: a parameter is invalid. While the notification is
            sent: the job cannot be added; Airflow logs the error, and the outcome of the task does not
            change.
    """

    template_fields: Sequence[str] = ("queue_name", "job", "data", "options", "once", "glidemq_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"data": "json", "options": "json"}

    def __init__(  # noqa: PLR0913  all but the first two have defaults
        self,
        *,
        queue_name: str,
        job: str,
        data: Any = None,
        options: JobOptions | Mapping[str, Any] | None = None,
        once: str | None = None,
        glidemq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_job({"queue": queue_name, "job": job, "data": data}, options, None)
        if once is not None and not (isinstance(once, str) and once) and not is_unknown(once):
            raise TypeError(f"once must be a text that is not empty, got {once!r}")
        self.queue_name = queue_name
        self.job = job
        self.data = data
        self.options = options
        self.once = once
        self.glidemq_conn_id = glidemq_conn_id

    def _update_context(self, context: Context) -> Context:
        """Add the names of other callbacks to the context of a deadline alert, which has only a DAG run."""
        return super()._update_context({**_of_deadline(context), **context})  # type: ignore[typeddict-item]

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render the fields as every notifier does, with the names for a deadline alert too."""
        known = {**_of_deadline(context), **context}
        if "dag" not in context:
            jinja_env = jinja_env or self.get_template_env(dag=None)
        super().render_template_fields(known, jinja_env)  # type: ignore[arg-type]

    def notify(self, context: Context) -> None:
        """Add the job. Repeatable with ``once``."""
        new = self._new(context)
        with GlideMQHook(self.glidemq_conn_id).get_queue(self.queue_name) as queue:
            self._tell(queue.add_many([new])[0])

    async def async_notify(self, context: Context) -> None:
        """Add the job, from a triggerer (Airflow 3.2 and later). Repeatable with ``once``."""
        new = self._new(context)
        queue = await GlideMQHook(self.glidemq_conn_id).aget_queue(self.queue_name)
        try:
            self._tell((await queue.add_many([new]))[0])
        finally:
            await queue.close()

    def _new(self, context: Context) -> NewJob:
        data = context_data(context) if self.data is None else self.data
        parts = {"queue": self.queue_name, "job": self.job, "data": data}
        (node,) = job_spec(parts, self.options, None).nodes
        options = node.options
        # Airflow 3.1 keeps a template that renders to an empty text.
        if self.once is not None and (is_unknown(self.once) or not str(self.once).strip()):
            self.log.warning("once renders to an empty text, which is no key: it is ignored")
        elif self.once is not None:
            name = hashlib.sha256(str(self.once).encode()).hexdigest()[:32]
            options = replace(options, job_id=f"once-{name}")
        return NewJob(node.job, node.data, options=options)

    def _tell(self, job_id: str | None) -> None:
        if job_id is None:
            self.log.info("Queue %s: the notification was sent before, so no job is added", self.queue_name)
        else:
            self.log.info("Queue %s: job %s is added", self.queue_name, job_id)


@dataclass(frozen=True, slots=True)
class _NamedDag:
    """The DAG in the context of a deadline alert: its id alone."""

    dag_id: str
    render_template_as_native_obj: bool = False


def _of_deadline(context: Mapping[str, Any]) -> dict[str, Any]:
    """The usual template names for a deadline alert, whose context is a response of the API."""
    run = context.get("dag_run")
    if not isinstance(run, Mapping) or "dag_run_id" not in run:
        return {}
    found: dict[str, Any] = {"run_id": run["dag_run_id"]}
    if "dag_id" in run:
        found["dag"] = _NamedDag(str(run["dag_id"]))
    if at := run.get("logical_date") or run.get("run_after"):
        found |= {"ts": str(at), "ds": str(at)[:10], "ds_nodash": str(at)[:10].replace("-", "")}
    return found


def context_data(context: Mapping[str, Any]) -> dict[str, Any]:
    """The context of a callback as JSON; it differs between a task, a DAG and a deadline."""
    context = {**_of_deadline(context), **context}
    found: dict[str, Any] = {}
    for source, names in (("dag_run", _OF_RUN), ("ti", _OF_TASK)):
        one = context.get(source)
        for name in names:
            value = one.get(name) if isinstance(one, Mapping) else getattr(one, name, None)
            if value is not None:
                found[name] = value if isinstance(value, int) else str(value)
    if "dag_id" not in found and (dag_id := getattr(context.get("dag"), "dag_id", None)):
        found["dag_id"] = str(dag_id)
    for name in ("run_id", "reason"):
        if (value := context.get(name)) is not None:
            found[name] = str(value)[:MAX_TEXT]
    if (error := context.get("exception")) is not None:
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        found["exception"] = text[:MAX_TEXT]
    return found
