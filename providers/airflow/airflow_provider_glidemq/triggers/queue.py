"""Triggers for the end of a job, and for a condition on a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_glidemq.conditions import QueueCondition
from airflow_provider_glidemq.parameters import Converted, Seconds, in_seconds
from airflow_provider_glidemq.triggers.waiting import WaitingTrigger

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared.client import SharedClient


@dataclass(kw_only=True, eq=False, repr=False)
class GlideMQQueueTrigger(WaitingTrigger):
    """Fires once, with ``status`` ``met`` and the ``queue``, when the queue meets the condition.

    ``status`` is ``timeout`` at the deadline, and ``error`` if a retry would not help (see ``reason``). The
    queue is read every second if there is activity, once for all triggers of a triggerer.

    Args:
        queue_name: The queue.
        condition: The fields of a ``QueueCondition``.
        glidemq_conn_id: The connection.
        poll_interval: How often the queue is read if no event arrives.
        deadline: When to give up, in seconds since the epoch; None: never.
        not_before: Do not fire earlier, in seconds since the epoch; None: as soon as possible.

    Raises:
        ValueError, TypeError: The condition is invalid.
    """

    subject = "Queue {queue_name}"

    queue_name: str
    condition: Mapping[str, Any]
    poll_interval: Seconds = Converted(10.0, in_seconds)

    def __post_init__(self) -> None:
        """Refuse an invalid condition."""
        super().__post_init__()
        given = self.condition.items()
        lists = {name: tuple(value) for name, value in given if isinstance(value, list | tuple)}
        self._condition = QueueCondition(**{**self.condition, **lists})

    async def _watch(self, client: SharedClient) -> dict[str, Any]:
        events = client.events(self.queue_name)
        watcher = await events.watch_queue(seldom=self.poll_interval)
        try:
            while True:
                state = await watcher.wait(None)
                if state is not None and self._condition.is_met(state):
                    return self._event("met", str(state))
        finally:
            events.unwatch(watcher)

    def _about(self) -> dict[str, Any]:
        return {"queue": self.queue_name}


_ENDED: Final = frozenset({"completed", "failed"})


@dataclass(kw_only=True, eq=False, repr=False)
class GlideMQJobTrigger(WaitingTrigger):
    """Fires once, when a job has ended, with its ``status``, ``queue`` and ``job_id``.

    ``status`` is ``completed`` or ``failed``; ``timeout`` at the deadline; ``error`` if a retry would not
    help (see ``reason``). The trigger also waits for a job that does not exist yet, and for an unreachable
    server.

    Args:
        queue_name: The queue of the job.
        job_id: The id of the job.
        glidemq_conn_id: The connection.
        poll_interval: How often the state is read if no event arrives.
        deadline: When to give up, in seconds since the epoch; None: never.
        not_before: Do not fire earlier, in seconds since the epoch; None: as soon as the job has ended.
    """

    subject = "Job {job_id} of queue {queue_name}"

    queue_name: str
    job_id: str

    async def _watch(self, client: SharedClient) -> dict[str, Any]:
        events = client.events(self.queue_name)
        watcher = await events.watch_job(self.job_id, seldom=self.poll_interval)
        try:
            while (state := await watcher.wait(None)) not in _ENDED:
                self.log.info("%s is %s", self.what, state)
            return self._event(str(state), "")
        finally:
            events.unwatch(watcher)

    def _about(self) -> dict[str, Any]:
        return {"queue": self.queue_name, "job_id": self.job_id}
