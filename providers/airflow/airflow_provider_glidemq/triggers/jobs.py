"""GlideMQJobTrigger: waits for the end of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID
from airflow_provider_glidemq.triggers.waiting import MAX_REASON, WaitingTrigger

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared import SharedClient

_ENDED: Final = frozenset({"completed", "failed"})


class GlideMQJobTrigger(WaitingTrigger):
    """Fires once, when a job has ended, with its ``status``, ``queue`` and ``job_id``.

    ``status`` is ``completed`` or ``failed``; ``timeout`` at the deadline; ``error`` when a retry would not
    help (``reason`` holds why). A job that does not exist yet is waited for, and so is a server that cannot
    be reached.

    Args:
        queue_name: The queue of the job.
        job_id: The job.
        glidemq_conn_id: The connection.
        poll_interval: Seconds after which the state is read again even if no event came.
        deadline: When to give up, in seconds since the epoch; None: never.
        not_before: Do not fire earlier, in seconds since the epoch; None: as soon as the job has ended.
    """

    def __init__(  # noqa: PLR0913  all but the first two have defaults
        self,
        *,
        queue_name: str,
        job_id: str,
        glidemq_conn_id: str = DEFAULT_CONN_ID,
        poll_interval: float = 30.0,
        deadline: float | None = None,
        not_before: float | None = None,
    ) -> None:
        super().__init__(
            glidemq_conn_id=glidemq_conn_id,
            poll_interval=poll_interval,
            deadline=deadline,
            not_before=not_before,
        )
        self.queue_name = queue_name
        self.job_id = job_id
        self.what = f"Job {job_id} of queue {queue_name}"

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which a triggerer recreates the trigger."""
        return (
            "airflow_provider_glidemq.triggers.jobs.GlideMQJobTrigger",
            {
                "queue_name": self.queue_name,
                "job_id": self.job_id,
                **self._waiting(),
            },
        )

    async def _watch(self, client: SharedClient) -> dict[str, Any]:
        events = client.events(self.queue_name)
        subscription = await events.subscribe_job(self.job_id, seldom=self.poll_interval)
        try:
            while (state := await subscription.wait(None)) not in _ENDED:
                self.log.info("%s is %s", self.what, state)
            return self._told(str(state), "")
        finally:
            events.unsubscribe(subscription)

    def _told(self, status: str, reason: str) -> dict[str, Any]:
        return {
            "status": status,
            "queue": self.queue_name,
            "job_id": self.job_id,
            "reason": reason[:MAX_REASON],
        }
