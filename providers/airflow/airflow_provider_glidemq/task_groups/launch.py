"""The task that submits the flow of a group, and ends. No driver, no keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_glidemq.description import check_description
from airflow_provider_glidemq.operators.lifecycle import FlowTask
from airflow_provider_glidemq.task_groups.flow import GROUP_LABEL, XCOM_LAUNCHED, flow_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from glidemq_orchestrate import Flow, FlowProducer, FlowSpec


class GlideMQLaunchOperator(FlowTask):
    """Submits the flow of a ``GlideMQTaskGroup`` and ends: the other tasks of the group watch its nodes.

    The group makes it. What is said of ``GlideMQFlowOperator`` about retries, clears and kills until the flow
    is submitted holds for it. A clear restarts the flow. Afterwards its XCom ``glidemq_group`` has
    ``{"flow_id", "generation", "skipped", "is_masked"}``; without it no task of the group shows anything.

    Args:
        tasks: The tasks of the group, in the form of nodes of a flow file (templated).
        group: The id of the group.
        glidemq_conn_id, require_workers, cancel_on_kill, lease: As of ``GlideMQFlowOperator``.

    Raises:
        GlideMQFlowSuperseded, GlideMQException, AirflowFailException: As ``GlideMQFlowOperator``.
        InvalidFlow, TypeError: While the DAG is parsed: the flow cannot run with any values of its templates.
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
        with self._told():
            check_description({"name": self.group, "nodes": nodes}, self._marks())

    def _described(self, context: Context) -> FlowSpec:
        ti = context["ti"]
        made = flow_of(f"{ti.dag_id}.{self.group}"[:256], self.tasks, labels={GROUP_LABEL: self.group})
        self._skipped = made.skipped
        return made.spec

    def _settle(self, context: Context, producer: FlowProducer, flow: Flow) -> None:
        """Tell the tasks of the group which generation is theirs, and end."""
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
