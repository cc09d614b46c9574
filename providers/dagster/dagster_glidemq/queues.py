"""The jobs of steps and runs in their queues: add, read, revoke. Waits out outages of the server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.durations import in_seconds
from glidemq_orchestrate import Job, JobState, Keep, NewJob, Queue
from glidemq_orchestrate.errors import JobNotFound, JobStateConflict
from glidemq_orchestrate.runs import Patience

KEEP: Final = Keep(age=timedelta(days=1))
"""How long ended jobs can be seen: the health check and people read them."""


class Queues:
    """Clients of queues, which are made when they are needed; a forked child makes its own.

    Args:
        connection: Where the server is.
    """

    def __init__(self, connection: GlideMQConnection) -> None:
        self._connection = connection
        self._made: dict[str, Queue] = {}
        self.patience = Patience(in_seconds("patience", connection.patience))

    def of(self, name: str) -> Queue:
        """The client of a queue."""
        if name not in self._made:
            self._made[name] = Queue(name, self._connection.settings())
        return self._made[name]

    def link(self, queue: str, job_id: str) -> str:
        """Where a dashboard shows the job; empty without one."""
        return self._connection.link(queue=queue, job_id=job_id)

    def add(self, queue: str, job: NewJob) -> None:
        """Add a job with an id of its own; one that waits or runs under that id stays, one that ended goes.

        Repeatable. A kill leaves the job, or none, which the health check of the step or run finds.

        Raises:
            TransportError: The server cannot be reached for longer than ``patience``.
        """
        self.patience(lambda: self._added(self.of(queue), job))

    def read(self, queue: str, job_id: str) -> Job | None:
        """The job; None if there is none.

        Raises:
            TransportError: The server cannot be reached.
        """
        try:
            return self.of(queue).get_job(job_id)
        except JobNotFound:
            return None

    def states(self, queue: str, job_ids: Sequence[str]) -> list[JobState | None]:
        """The state of each of many jobs; None for one that is not there.

        Raises:
            TransportError: The server cannot be reached.
        """
        return self.of(queue).states(job_ids)

    def revoke(self, queue: str, job_id: str) -> str:
        """End the job: ``revoked`` if it had not begun, and will not, ``flagged`` if its worker ends it.

        Repeatable; empty for a job that has ended, or that there is not.

        Raises:
            TransportError: The server cannot be reached for longer than ``patience``.
        """
        try:
            return str(self.patience(lambda: self.of(queue).revoke(job_id)))
        except (JobNotFound, JobStateConflict):
            return ""

    def now(self, queue: str) -> datetime:
        """The server's time."""
        return self.of(queue).now()

    def workers_for(self, queue: str, job_name: str) -> int:
        """How many live workers of the queue run jobs of this name."""
        return sum(job_name in (worker.handlers or ()) for worker in self.of(queue).workers())

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        for queue in self._made.values():
            queue.close()

    @staticmethod
    def _added(queue: Queue, job: NewJob) -> None:
        job_id = str(job.options.job_id)
        if queue.add_many([job]) != [None]:
            return
        with suppress(JobNotFound):  # it was removed at this moment
            if not queue.get_job(job_id).state.is_terminal:
                return
            queue.remove(job_id)  # of an earlier launch of the same
        queue.add_many([job])
