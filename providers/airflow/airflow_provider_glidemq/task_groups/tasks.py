"""The tasks that a group creates: one submits the flow; one for each original task shows its nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_glidemq.description import check_description
from airflow_provider_glidemq.exceptions import GlideMQNodeFailed, again_in_group, airflow_errors
from airflow_provider_glidemq.group_flow import GROUP_LABEL, XCOM_LAUNCHED, array_of, flow_of, value_of
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook, looking_up, patience_for
from airflow_provider_glidemq.operators.lifecycle import FlowTask
from airflow_provider_glidemq.results import check_count, check_size
from airflow_provider_glidemq.task_attempt import TaskKey
from airflow_provider_glidemq.triggers.node import TRIGGER, GlideMQNodeTrigger
from airflow_provider_glidemq.triggers.waiting import SECONDS_DEFERRED
from airflow_provider_glidemq.version_compat import (
    STARTS_FROM_TRIGGER,
    AirflowException,
    AirflowSkipException,
)
from glidemq_orchestrate import runs

if TYPE_CHECKING:
    from airflow.sdk import Context

    from glidemq_orchestrate import Flow, FlowProducer, FlowSpec


class GlideMQLaunchOperator(FlowTask):
    """Submits the flow of a ``GlideMQTaskGroup`` and ends: the other tasks of the group watch its nodes.

    The group creates it. Until the flow is submitted, retries, clears and kills work as for
    ``GlideMQFlowOperator``. A clear restarts the flow. After the submission, its XCom ``glidemq_group`` has
    ``{"flow_id", "generation", "skipped", "is_masked"}``; the other tasks of the group wait for this XCom.

    Args:
        tasks: The tasks of the group, in the form of nodes of a flow file (templated).
        group: The id of the group.
        glidemq_conn_id, require_workers, cancel_on_kill, lease: See ``GlideMQFlowOperator``.

    Raises:
        GlideMQFlowSuperseded, GlideMQException, AirflowFailException: See ``GlideMQFlowOperator``.
        InvalidFlow, TypeError: While the DAG is parsed: the flow cannot run for any values of
            its templates.
    """

    template_fields: Sequence[str] = ("tasks", "glidemq_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"tasks": "json"}
    structured_fields: ClassVar[tuple[str, ...]] = ("tasks",)
    ui_color = "#dbe9f4"
    shows_end: ClassVar[bool] = False

    def __init__(self, *, tasks: Sequence[Mapping[str, Any]], group: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tasks = tasks
        self.group = self._group = group
        self._skipped: tuple[str, ...] = ()
        if self.is_being_parsed:
            self._check()

    def _check(self) -> None:
        nodes = [{key: part for key, part in task.items() if key != "expand"} for task in self.tasks]
        with self._located_errors():
            check_description({"name": self.group, "nodes": nodes}, self._marks())

    def _described(self, context: Context) -> FlowSpec:
        ti = context["ti"]
        made = flow_of(f"{ti.dag_id}.{self.group}"[:256], self.tasks, labels={GROUP_LABEL: self.group})
        self._skipped = made.skipped
        return made.spec

    def _wait_and_end(self, context: Context, producer: FlowProducer, flow: Flow) -> None:
        """Store which generation the tasks of the group watch, and end."""
        self._keep_while_deferred(producer, flow)
        context["ti"].xcom_push(
            key=XCOM_LAUNCHED,
            value={
                "flow_id": flow.id,
                "generation": flow.generation,
                "skipped": list(self._skipped),
                "is_masked": self._is_masked,
            },
        )


class GlideMQNodeMonitor(BaseOperator):
    """Waits for the nodes of a task of a ``GlideMQTaskGroup``, and ends as they do.

    The group creates it in place of the original task, with its id, position, edges and callbacks. On Airflow
    3.3 it runs only in the triggerer. If it is mapped, and on 3.1 and 3.2, a worker defers it and the
    triggerer ends it. If it has outlets, or callbacks for success or skips, it resumes in a worker, because
    only a worker emits asset events and calls these callbacks. It also resumes if it fails and has callbacks
    or emails for failures, which then get the exception. Airflow listeners are only notified of an end in a
    worker.

    Args:
        node: The name of the node, or of the expanded task.
        is_expanded: Whether it has a node for each item.
        launch: The id of the task that submits the flow.
        nodes_before: The upstream tasks in the group, and their nodes.
        group: The id of the group.
        group_tasks: The ids of the tasks of the group.
        watch: The parameters of the trigger that all tasks of the group share.

    Raises:
        GlideMQNodeFailed: The node failed, or one of the nodes of an expanded task.
        AirflowSkipException: The node was skipped.
        GlideMQResultTooLarge: The result is more than 48 KiB of JSON, and a task outside the group waits for
            it.
    """

    ui_color = "#dbe9f4"
    template_fields: Sequence[str] = ()

    def __init__(  # noqa: PLR0913  the group supplies them
        self,
        *,
        node: str,
        is_expanded: bool,
        launch: str,
        nodes_before: Mapping[str, str],
        group: str,
        group_tasks: Sequence[str],
        watch: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        self.node = node
        self.is_expanded = is_expanded
        self.launch = launch
        self.nodes_before = dict(nodes_before)
        self.group = group
        self.group_tasks = list(group_tasks)
        self.watch = dict(watch)
        super().__init__(**kwargs)  # reads start_trigger_args
        # A busy scheduler may treat a resuming task as lost; a failed node is not retried.
        self.retries = 1 if self._needs_worker else 0

    # Airflow reads both when it serializes the DAG: only then are all edges known.

    @property
    def start_from_trigger(self) -> bool:  # type: ignore[override]
        """Whether the task runs without a worker."""
        return STARTS_FROM_TRIGGER and not self._is_repeated and not self._needs_worker

    @property
    def _needs_worker(self) -> bool:
        """Whether the task must end in a worker."""
        return bool(self.outlets or self.on_success_callback or self.on_skipped_callback)

    @property
    def _is_mapped_over(self) -> bool:
        """Whether another task is expanded over the result."""
        return next(self.iter_mapped_dependants(), None) is not None

    @property
    def _is_repeated(self) -> bool:
        """Whether an enclosing task group is expanded."""
        return self.get_closest_mapped_task_group() is not None

    @property
    def _tells_failure(self) -> bool:
        """Whether there are callbacks for failures: they run in a worker, which has the exception."""
        return bool(self.on_failure_callback or (self.email and self.email_on_failure))

    @property
    def start_trigger_args(self) -> StartTriggerArgs:  # type: ignore[override]
        """The trigger with which the task starts."""
        return StartTriggerArgs(
            trigger_cls=TRIGGER,
            next_method="execute_complete",
            trigger_kwargs={**self._watching(), "ends_task": True, "resumes_failed": self._tells_failure},
        )

    def execute(self, context: Context) -> NoReturn:
        """Wait in the triggerer."""
        ti = context["ti"]
        self.defer(
            trigger=GlideMQNodeTrigger(
                **self._watching(),
                ends_task=not self._needs_worker,
                resumes_failed=self._tells_failure,
                not_before=time.time() + SECONDS_DEFERRED,
                place=list(TaskKey.of(ti)),
                attempt=ti.max_tries - (self.retries or 0) + 1,  # a clear raises it, a retry does not
            ),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Context, event: dict[str, Any] | str | None = None) -> Any:  # noqa: ARG002
        """End as the nodes do, and return their result, which is read from the server."""
        if isinstance(event, str):  # dag.test resumes a task that its trigger ends
            event = {
                "status": "completed" if event == "success" else event,
                "reason": "see above",
                "nodes": [],
            }
        if event is None or "status" not in event:
            raise AirflowException(f"the trigger sent no usable event: {event!r}")
        if event["status"] == "skipped":
            why = runs.in_text(event["reason"])
            self.log.info("%s", why)  # Airflow logs none
            raise AirflowSkipException(why)
        if event["status"] != "completed":
            advice = again_in_group(event["flow_id"]) if "flow_id" in event else ""
            raise GlideMQNodeFailed(self.node, event["reason"], advice)
        if not self.do_xcom_push or not event["nodes"]:
            return None
        flow_id, nodes = event["flow_id"], event["nodes"]
        conn_id = self.watch["glidemq_conn_id"]
        with airflow_errors(conn_id):
            patience = patience_for(self.log, f"Flow {flow_id}", conn_id)
            results = patience(lambda: self._results(flow_id, nodes))
        check_size(event["flow_id"], results)
        return value_of(results, self.node, is_expanded=self.is_expanded)

    def _results(self, flow_id: str, nodes: Sequence[str]) -> Mapping[str, Any]:
        conn_id = self.watch["glidemq_conn_id"]
        with looking_up(conn_id):
            producer = GlideMQHook(conn_id).get_producer()
        with producer:
            flow = producer.get(flow_id)
            results = flow.results(nodes)
            if array := array_of(nodes):
                check_count(flow_id, array, results[array]["completed"])
                return {array: list(flow.array(array).results().values())}
            return results

    def _watching(self) -> dict[str, Any]:
        self._check_edges()
        outside = self.downstream_task_ids - set(self.group_tasks)
        return {
            **self.watch,
            "node": self.node,
            "is_expanded": self.is_expanded,
            "launch": self.launch,
            "nodes_before": self.nodes_before,
            "group": self.group,
            "pushes": "none" if not self.do_xcom_push else "keys" if self.multiple_outputs else "value",
            "is_needed": bool(outside),
            "is_mapped_over": bool(outside) and self._is_mapped_over,
        }

    def _check_edges(self) -> None:
        """Refuse edges that were set after the group was closed: the flow does not have them.

        Also refuse tasks that are expanded over results that Airflow cannot count: it fails them silently.
        """
        if late := sorted(self.upstream_task_ids - {self.launch, *self.group_tasks}):
            raise AirflowException(
                f"task {self.task_id} waits for {late[0]} since the group was closed, its node does not: "
                f"set the edge in the with block of the group, or let all wait: {late[0]} >> group"
            )
        if self._is_repeated and self._is_mapped_over:
            raise AirflowException(
                f"a task is expanded over {self.task_id}, which is in an expanded task group: Airflow cannot "
                "expand over that. Let a task take the results and return them as a list, and expand over it"
            )
