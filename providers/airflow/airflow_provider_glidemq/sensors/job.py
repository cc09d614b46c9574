"""GlideMQJobSensor: waits for a job that somebody else has added, or will add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import PokeReturnValue

from airflow_provider_glidemq.exceptions import GlideMQJobFailed
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook
from airflow_provider_glidemq.patience import looking_up
from airflow_provider_glidemq.results import check_size
from airflow_provider_glidemq.sensors.waiting import WaitingSensor, check_text
from airflow_provider_glidemq.triggers.jobs import GlideMQJobTrigger
from glidemq_orchestrate.errors import JobNotFound

if TYPE_CHECKING:
    from glidemq_orchestrate import Queue

ENDED: Final = ("completed", "failed")


class GlideMQJobSensor(WaitingSensor):
    """Waits until a job has completed and returns its result; waits for one that does not exist yet too.

    ``timeout`` and ``poke_interval`` (seconds) are those of every sensor; while deferred, the job's event
    ends the wait, and ``poke_interval`` is how often the state is read if no event came. A job that is
    removed when it ends (``remove_on_complete``) can be missed.

    Args:
        queue_name: The queue of the job (templated); ``queue`` is Airflow's, of its own workers.
        job_id: The job (templated).
        allowed_states: Which ends count as success: of ``completed``, ``failed``.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer; otherwise poke as every sensor does. The default is
            ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` where that is set, else True.

    Raises:
        GlideMQJobFailed: The job failed, and ``failed`` is not in ``allowed_states``.
        GlideMQResultTooLarge: Its result is more than 48 KiB of JSON, and XCom is in Airflow's database.
        AirflowSensorTimeout: It had not ended in time; the message tells how it was. The job goes on.
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
        check_text("queue_name", queue_name)
        check_text("job_id", job_id)
        if not allowed_states or set(allowed_states) - set(ENDED):
            given = ", ".join(allowed_states) or "none"
            raise ValueError(f"allowed_states must be of {', '.join(ENDED)}; got {given}")
        self.queue_name = queue_name
        self.job_id = job_id
        self.allowed_states = tuple(allowed_states)

    def _look(self) -> bool | PokeReturnValue:
        """Whether the job has ended, with its result; raises for an end that is not allowed."""
        with self._queue() as queue:
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

    def _queue(self) -> Queue:
        with looking_up(self.glidemq_conn_id):
            return GlideMQHook(self.glidemq_conn_id).get_queue(self.queue_name)

    def _linked(self) -> Mapping[str, str]:
        return {"queue": self.queue_name, "job_id": str(self.job_id)}

    def _what(self) -> str:
        return f"job {self.job_id} of queue {self.queue_name}"

    def _trigger(self, poll_interval: float, deadline: float, not_before: float) -> GlideMQJobTrigger:
        return GlideMQJobTrigger(
            queue_name=self.queue_name,
            job_id=str(self.job_id),
            glidemq_conn_id=self.glidemq_conn_id,
            poll_interval=poll_interval,
            deadline=deadline,
            not_before=not_before,
        )

    def _hint(self) -> str:
        with self._queue() as queue:
            (state,) = queue.states([str(self.job_id)])
        if state is not None:
            return f"It is {state.value}"
        return (
            f"There is no such job at connection {self.glidemq_conn_id}: check the id and the queue, and "
            "that the client that adds it uses the same server and prefix; or it was removed when it ended"
        )
