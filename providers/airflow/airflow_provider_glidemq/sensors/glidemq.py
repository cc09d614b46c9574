"""Sensors for a flow, a job, or a whole queue of another client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import PokeReturnValue

from airflow_provider_glidemq.conditions import WAITING, Condition, QueueCondition, QueueState
from airflow_provider_glidemq.exceptions import (
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQJobFailed,
    located_errors,
)
from airflow_provider_glidemq.parameters import check_text
from airflow_provider_glidemq.results import check_result, check_size
from airflow_provider_glidemq.sensors.waiting import WaitingSensor
from airflow_provider_glidemq.task_attempt import flow_id_for
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.triggers.queue import GlideMQJobTrigger, GlideMQQueueTrigger
from glidemq_orchestrate import FlowState, runs
from glidemq_orchestrate.errors import FlowNotFound, JobNotFound, Superseded

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from glidemq_orchestrate.runs import Duration, Result

__all__ = ["GlideMQFlowSensor", "GlideMQJobSensor", "GlideMQQueueSensor"]


ENDED: Final = ("completed", "failed")


class GlideMQJobSensor(WaitingSensor):
    """Waits until a job has completed and returns its result. The job may not exist yet.

    ``timeout`` and ``poke_interval`` work as for every sensor. While deferred, the job's event ends the wait,
    and ``poke_interval`` is how often the state is read if no event arrives. A job that is removed when it
    ends (``remove_on_complete``) can be missed.

    Args:
        queue_name: The queue of the job (templated); ``queue`` is the queue of Airflow's own workers.
        job_id: The id of the job (templated).
        allowed_states: The final states that count as success, out of ``completed`` and ``failed``.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer; otherwise poke as every sensor does. The default is
            ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` where that is set, else True.

    Raises:
        GlideMQJobFailed: The job failed, and ``failed`` is not in ``allowed_states``.
        GlideMQResultTooLarge: Its result is more than 48 KiB of JSON, and XCom is in Airflow's database.
        AirflowSensorTimeout: The job has not ended in time; the message contains its state. The job
            continues.
        ValueError, TypeError: While the DAG is parsed: a parameter cannot be right.
    """

    template_fields: Sequence[str] = ("queue_name", "job_id", "glidemq_conn_id")

    def __init__(
        self,
        *,
        queue_name: str,
        job_id: str,
        allowed_states: Sequence[str] = ("completed",),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        with located_errors(self.task_id):
            check_text("queue_name", queue_name)
            check_text("job_id", job_id)
            if not allowed_states or set(allowed_states) - set(ENDED):
                given = ", ".join(allowed_states) or "none"
                raise ValueError(f"allowed_states must be of {', '.join(ENDED)}; got {given}")
        self.queue_name = queue_name
        self.job_id = job_id
        self.allowed_states = tuple(allowed_states)

    def _check(self) -> bool | PokeReturnValue:
        """Whether the job has ended, with its result. Raises for a final state that is not allowed."""
        with self._queue(self.queue_name) as queue:
            try:
                job = queue.get_job(str(self.job_id))
            except JobNotFound:
                return False
        if not job.state.is_terminal:
            return False
        if job.state.value not in self.allowed_states:
            raise GlideMQJobFailed(job.queue, job.id, job.failed_reason or "")
        self.log.info("%s is %s", self._what(), job.state.value)
        if self.do_xcom_push:
            check_size(job.id, {job.name: job.result}, what="job")
        return PokeReturnValue(is_done=True, xcom_value=job.result)

    def _linked(self) -> Mapping[str, str]:
        return {"queue": self.queue_name, "job_id": str(self.job_id)}

    def _what(self) -> str:
        return f"job {self.job_id} of queue {self.queue_name}"

    def _trigger(self, **waiting: Any) -> GlideMQJobTrigger:
        return GlideMQJobTrigger(queue_name=self.queue_name, job_id=str(self.job_id), **waiting)

    def _hint(self) -> str:
        with self._queue(self.queue_name) as queue:
            (state,) = queue.states([str(self.job_id)])
        if state is not None:
            return f"It is {state.value}"
        return (
            f"There is no such job at connection {self.glidemq_conn_id}: check the id and the queue, and "
            "that the client that adds it uses the same server and prefix; or it was removed when it ended"
        )


class GlideMQQueueSensor(WaitingSensor):
    """Waits until a queue meets a condition, such as ``empty`` or ``served``, or has a number of jobs.

    ``timeout`` and ``poke_interval`` work as for every sensor. While deferred, the queue is read every second
    if there is activity, otherwise every ``poke_interval``. The sensor returns the number of jobs by state.
    Jobs that wait for other jobs or for their ordering key are not counted.

    A queue that was never used is empty and idle; a warning is logged, because the name may be wrong.

    Args:
        queue_name: The queue (templated); ``queue`` is the queue of Airflow's own workers.
        condition: ``empty`` (no job waits for a worker), ``idle`` (empty, and no job is active, delayed or
            suspended), ``paused``, ``resumed`` (not paused), ``served`` (live workers have handlers for
            ``jobs``).
        at_least, at_most: Instead of ``condition``: bounds for the total number of jobs in ``states``.
        states: The states to count, out of ``waiting``, ``prioritized``, ``delayed``, ``active``,
            ``suspended``, ``completed``, ``failed``; by default the first two.
        jobs: Job names, for ``served``. A Node worker does not list its handlers, and counts for all names.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer; otherwise poke as every sensor does. The default is
            ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` where that is set, else True.

    Raises:
        AirflowSensorTimeout: The condition was not met in time; the message contains the state of the queue.
        ValueError, TypeError: While the DAG is parsed: a parameter cannot be right.
    """

    template_fields: Sequence[str] = ("queue_name", "glidemq_conn_id")

    def __init__(  # noqa: PLR0913  an operator's parameters are its interface
        self,
        *,
        queue_name: str,
        condition: Condition | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
        states: Sequence[str] = WAITING,
        jobs: Sequence[str] = (),
        poke_interval: Duration = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        with located_errors(self.task_id):
            check_text("queue_name", queue_name)
            for name, value in (("states", states), ("jobs", jobs)):
                if isinstance(value, str):
                    raise TypeError(f"{name} must be a list of texts, got {value!r}")
            self._condition = QueueCondition(condition, at_least, at_most, tuple(states), tuple(jobs))
        self.queue_name = queue_name
        self.condition = condition
        self.at_least = at_least
        self.at_most = at_most
        self.states = list(states)
        self.jobs = list(jobs)

    def _check(self) -> bool | PokeReturnValue:
        """Whether the condition is met, with the number of jobs by state."""
        state = self._read()
        if state.is_unknown:
            self.log.warning("%s: it was never used. Is its name right?", self._what())
        if not self._condition.is_met(state):
            return False
        self.log.info("%s: %s", self._what(), state)
        return PokeReturnValue(is_done=True, xcom_value=dict(state.counts))

    def _read(self) -> QueueState:
        with self._queue(self.queue_name) as queue:
            return QueueState.of(
                queue.counts(indexed_only=True).with_elements(), queue.is_paused(), queue.workers()
            )

    def _linked(self) -> Mapping[str, str]:
        return {"queue": self.queue_name}

    def _what(self) -> str:
        return f"queue {self.queue_name} {'to be' if self.condition else 'with'} {self._condition}"

    def _trigger(self, **waiting: Any) -> GlideMQQueueTrigger:
        condition = {
            name: getattr(self, name) for name in ("condition", "at_least", "at_most", "states", "jobs")
        }
        return GlideMQQueueTrigger(queue_name=self.queue_name, condition=condition, **waiting)

    def _hint(self) -> str:
        state = self._read()
        unknown = " A queue of this name was never used: is it right?" if state.is_unknown else ""
        return f"It has {state}.{unknown}"


TERMINAL: Final = tuple(state.value for state in FlowState if state.is_terminal)


class GlideMQFlowSensor(WaitingSensor):
    """Waits until a flow has completed. The flow may not exist yet.

    Give ``flow_id``, or the task that runs the flow: ``external_dag_id``, ``external_task_id``,
    ``external_run_id``. ``timeout`` and ``poke_interval`` work as for every sensor. While deferred, the
    flow's event ends the wait, and ``poke_interval`` is how often the state is read if no event arrives.

    Args:
        flow_id: The id of the flow (templated).
        external_dag_id: The DAG of the task that runs the flow (templated).
        external_task_id: The id of that task (templated).
        external_run_id: The id of its DAG run (templated).
        external_map_index: The index of a mapped task; -1 for a task that is not mapped.
        allowed_states: The final states that count as success, out of ``completed``, ``failed``,
            ``cancelled``.
        result: Which results to return, as ``{node: result}``: ``none``, ``leaves``, ``all`` or a list of
            names.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer; otherwise poke as every sensor does. The default is
            ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` where that is set, else True.

    Raises:
        GlideMQResultTooLarge: The results are more than 48 KiB of JSON, and XCom is in Airflow's database.
        GlideMQFlowFailed, GlideMQFlowCancelled: The flow ended in a state that is not in ``allowed_states``.
        AirflowSensorTimeout: The flow has not ended in time; the message contains its state. The flow
            continues.
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
        with located_errors(self.task_id):
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

    def _check(self) -> bool | PokeReturnValue:
        """Whether the flow has ended, with its results. Raises for a final state that is not allowed."""
        with self._producer() as producer:
            try:
                flow = producer.get(self._id())
            except FlowNotFound:
                return False
            try:
                return PokeReturnValue(is_done=True, xcom_value=self._judge(flow)) if _ended(flow) else False
            except Superseded:  # it was restarted in between
                return False

    def _linked(self) -> Mapping[str, str]:
        return {"flow_id": self._id()}

    def _what(self) -> str:
        return f"flow {self._id()}"

    def _trigger(self, **waiting: Any) -> GlideMQFlowTrigger:
        return GlideMQFlowTrigger(flow_id=self._id(), wait_for_flow=True, **waiting)

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
    """Whether the flow has ended; if not, supervise it, as Node workers alone do not."""
    if flow.status().state.is_terminal:
        return True
    flow.supervise()
    return flow.status().state.is_terminal
