"""GlideMQFlowSensor: waits for a flow that another client submitted, or will submit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import PokeReturnValue

from airflow_provider_glidemq.exceptions import GlideMQFlowCancelled, GlideMQFlowFailed
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook
from airflow_provider_glidemq.identity import flow_id_for
from airflow_provider_glidemq.patience import looking_up
from airflow_provider_glidemq.results import check_result, check_size
from airflow_provider_glidemq.sensors.waiting import WaitingSensor
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from glidemq_orchestrate import FlowState, runs
from glidemq_orchestrate.errors import FlowNotFound, Superseded

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow, FlowProducer
    from glidemq_orchestrate.runs import Result

TERMINAL: Final = tuple(state.value for state in FlowState if state.is_terminal)


class GlideMQFlowSensor(WaitingSensor):
    """Waits until a flow has completed; a flow that does not exist yet is waited for too.

    Name the flow by ``flow_id``, or by the task that runs it: ``external_dag_id``, ``external_task_id``,
    ``external_run_id``. ``timeout`` and ``poke_interval`` (seconds) are those of every sensor; while
    deferred, the flow's event ends the wait, and ``poke_interval`` is how often the state is read if no event
    came.

    Args:
        flow_id: The flow's id (templated).
        external_dag_id: DAG of the task that runs the flow (templated).
        external_task_id: That task (templated).
        external_run_id: Its DAG run (templated).
        external_map_index: The index of a mapped task; -1 for a task that is not mapped.
        allowed_states: Final states that count as success: of ``completed``, ``failed``, ``cancelled``.
        result: Which results are returned, as ``{node: result}``: ``none``, ``leaves``, ``all`` or a list of
            names.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer; otherwise poke as every sensor does. The default is
            ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` where that is set, else True.

    Raises:
        GlideMQResultTooLarge: The results are more than 48 KiB of JSON, and XCom is in Airflow's database.
        GlideMQFlowFailed, GlideMQFlowCancelled: The flow ended in a state that is not in ``allowed_states``.
        AirflowSensorTimeout: It had not ended in time; the message tells how it was. The flow goes on.
    """

    template_fields: Sequence[str] = (
        "flow_id",
        "external_dag_id",
        "external_task_id",
        "external_run_id",
        "glidemq_conn_id",
    )
    ui_color = "#e6f1f2"

    def __init__(  # noqa: PLR0913  an operator's parameters are its interface
        self,
        *,
        flow_id: str | None = None,
        external_dag_id: str | None = None,
        external_task_id: str | None = None,
        external_run_id: str | None = None,
        external_map_index: int = -1,
        allowed_states: Sequence[str] = ("completed",),
        result: Result = "none",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_result(result)
        if unknown := set(allowed_states) - set(TERMINAL):
            raise ValueError(
                f"allowed_states must be of {', '.join(TERMINAL)}; got {', '.join(sorted(unknown))}"
            )
        derived = [part is not None for part in (external_dag_id, external_task_id, external_run_id)]
        if any(derived) if flow_id is not None else not all(derived):
            raise ValueError(
                "give either flow_id or all of external_dag_id, external_task_id, external_run_id"
            )
        self.flow_id = flow_id
        self.external_dag_id = external_dag_id
        self.external_task_id = external_task_id
        self.external_run_id = external_run_id
        self.external_map_index = external_map_index
        self.allowed_states = tuple(allowed_states)
        self.result = result

    def _look(self) -> bool | PokeReturnValue:
        """Whether the flow has ended, with its results; raises for a state that is not allowed."""
        with self._producer() as producer:
            try:
                flow = producer.get(self._id())
            except FlowNotFound:
                return False
            try:
                return PokeReturnValue(is_done=True, xcom_value=self._judge(flow)) if _ended(flow) else False
            except Superseded:  # it was restarted since
                return False

    def _linked(self) -> Mapping[str, str]:
        return {"flow_id": self._id()}

    def _what(self) -> str:
        return f"flow {self._id()}"

    def _trigger(self, poll_interval: float, deadline: float, not_before: float) -> GlideMQFlowTrigger:
        return GlideMQFlowTrigger(
            flow_id=self._id(),
            glidemq_conn_id=self.glidemq_conn_id,
            poll_interval=poll_interval,
            deadline=deadline,
            wait_for_flow=True,
            not_before=not_before,
        )

    def _hint(self) -> str:
        with self._producer() as producer:
            try:
                status = producer.get(self._id()).status()
            except FlowNotFound:
                named = "flow_id" if self.flow_id is not None else "DAG, task, run and map index"
                return (
                    f"There is no such flow at connection {self.glidemq_conn_id}: check {named}, and that "
                    "the client that submits it uses the same server and prefix"
                )
        return f"It is {status.state.value}: {status.completed} of {status.total} nodes have completed"

    def _producer(self) -> FlowProducer:
        with looking_up(self.glidemq_conn_id):
            return GlideMQHook(self.glidemq_conn_id).get_producer()

    def _id(self) -> str:
        if self.flow_id is not None:
            return self.flow_id
        return flow_id_for(
            self.external_dag_id or "",
            self.external_task_id or "",
            self.external_run_id or "",
            self.external_map_index,
        )

    def _judge(self, flow: Flow) -> dict[str, Any] | None:
        status = flow.status()
        if status.state.value not in self.allowed_states:
            if status.state is FlowState.CANCELLED:
                raise GlideMQFlowCancelled(flow.id, status.reason)
            raise GlideMQFlowFailed(flow.id, flow.outcome().failed)
        self.log.info("Flow %s is %s", flow.id, status.state.value)
        found = runs.collect(flow, self.result)
        if found is not None and self.do_xcom_push:
            check_size(flow.id, found)
        return found


def _ended(flow: Flow) -> bool:
    """Whether it has ended; until then it is supervised where nobody does that (only Node workers run)."""
    if flow.status().state.is_terminal:
        return True
    flow.supervise()
    return flow.status().state.is_terminal
