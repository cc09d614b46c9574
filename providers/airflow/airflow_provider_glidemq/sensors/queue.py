"""GlideMQQueueSensor: waits until a queue fulfils a condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import PokeReturnValue

from airflow_provider_glidemq.conditions import WAITING, Condition, QueueCondition, QueueState
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook
from airflow_provider_glidemq.patience import looking_up
from airflow_provider_glidemq.sensors.waiting import WaitingSensor, check_text
from airflow_provider_glidemq.triggers.queues import GlideMQQueueTrigger


class GlideMQQueueSensor(WaitingSensor):
    """Waits until a queue is ``empty``, ``idle``, ``paused``, ``resumed`` or ``served``, or has so many jobs.

    ``timeout`` and ``poke_interval`` (seconds) are those of every sensor; while deferred, the queue is looked
    at each second while something happens there, and else after ``poke_interval``. What it returns is the
    number of jobs by state. Jobs that wait for other jobs or for their ordering key are in no number.

    A queue that nobody has ever used is empty and idle; the log says so, as its name may be wrong.

    Args:
        queue_name: The queue (templated); ``queue`` is Airflow's, of its own workers.
        condition: ``empty`` (no job waits for a worker), ``idle`` (nor runs, nor is delayed or suspended),
            ``paused``, ``resumed`` (not paused), ``served`` (a worker is alive, with handlers for ``jobs``).
        at_least, at_most: Instead: how many jobs are in ``states`` together.
        states: Which states are counted: of ``waiting``, ``prioritized``, ``delayed``, ``active``,
            ``suspended``, ``completed``, ``failed``; by default the first two.
        jobs: Job names, for ``served``; a worker in Node does not tell its handlers, and counts for all.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer; otherwise poke as every sensor does. The default is
            ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` where that is set, else True.

    Raises:
        AirflowSensorTimeout: It was not so in time; the message tells how it was.
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
        poke_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        check_text("queue_name", queue_name)
        for name, value in (("states", states), ("jobs", jobs)):
            if isinstance(value, str):
                raise TypeError(f"{name} must be a list of texts, got {value!r}")
        self.queue_name = queue_name
        self.condition = condition
        self.at_least = at_least
        self.at_most = at_most
        self.states = list(states)
        self.jobs = list(jobs)
        self._wanted = QueueCondition(condition, at_least, at_most, tuple(states), tuple(jobs))

    def _look(self) -> bool | PokeReturnValue:
        """Whether the condition is fulfilled, with the number of jobs by state."""
        state = self._read()
        if state.is_unknown:
            self.log.warning("%s: nobody has used it yet. Is its name right?", self._what())
        if not self._wanted.is_met(state):
            return False
        self.log.info("%s: %s", self._what(), state)
        return PokeReturnValue(is_done=True, xcom_value=dict(state.counts))

    def _read(self) -> QueueState:
        with looking_up(self.glidemq_conn_id):
            client = GlideMQHook(self.glidemq_conn_id).get_queue(self.queue_name)
        with client as queue:
            return QueueState.of(queue.counts(indexed_only=True), queue.is_paused(), queue.workers())

    def _linked(self) -> Mapping[str, str]:
        return {"queue": self.queue_name}

    def _what(self) -> str:
        return (
            f"queue {self.queue_name} to be {self._wanted}"
            if self.condition
            else f"queue {self.queue_name} with {self._wanted}"
        )

    def _trigger(self, poll_interval: float, deadline: float, not_before: float) -> GlideMQQueueTrigger:
        return GlideMQQueueTrigger(
            queue_name=self.queue_name,
            condition={
                "condition": self.condition,
                "at_least": self.at_least,
                "at_most": self.at_most,
                "states": self.states,
                "jobs": self.jobs,
            },
            glidemq_conn_id=self.glidemq_conn_id,
            poll_interval=poll_interval,
            deadline=deadline,
            not_before=not_before,
        )

    def _hint(self) -> str:
        state = self._read()
        unknown = " Nobody has used a queue of this name: is it right?" if state.is_unknown else ""
        return f"It has {state}.{unknown}"
