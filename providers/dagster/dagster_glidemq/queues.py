"""Adds, reads and revokes the jobs of steps and runs, and detects lost jobs.

Calls are retried during short outages of the server.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.durations import in_seconds
from glidemq_orchestrate import JobState, Keep, NewJob, Queue
from glidemq_orchestrate.errors import JobNotFound, JobStateConflict
from glidemq_orchestrate.jobs import Job
from glidemq_orchestrate.runs import Patience, in_text

KEEP: Final = Keep(age=timedelta(days=1))
"""How long ended jobs are kept, for the health check and for people."""


class Queues:
    """Queue clients, created on first use; a forked child creates its own.

    Args:
        connection: The connection to the server.
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
        """The dashboard page of the job; empty without a dashboard."""
        return self._connection.link(queue=queue, job_id=job_id)

    def add(self, queue: str, job: NewJob, *, job_id: str, lease: timedelta) -> None:
        """Add a job under this id. A waiting or running job with that id stays; an ended one is replaced.

        Repeatable. After a kill the job exists or does not; the health check of the step or run detects
        which.

        Raises:
            TransportError: The server cannot be reached for longer than ``patience``.
        """
        options = replace(
            job.options, job_id=job_id, lease=lease, remove_on_complete=KEEP, remove_on_fail=KEEP
        )
        self.patience(lambda: self._add(self.of(queue), job_id, replace(job, options=options)))

    def read(self, queue: str, job_id: str) -> Job | None:
        """Read a job; None if there is none.

        Raises:
            TransportError: The server cannot be reached.
        """
        try:
            return self.of(queue).get_job(job_id)
        except JobNotFound:
            return None

    def states(self, queue: str, job_ids: Sequence[str]) -> list[JobState | None]:
        """The states of many jobs; None for a job that does not exist.

        Raises:
            TransportError: The server cannot be reached.
        """
        return self.of(queue).states(job_ids)

    def revoke(self, queue: str, job_id: str) -> str:
        """End the job: ``revoked`` if it had not started, and never will; ``flagged`` if its worker ends it.

        Repeatable. Returns '' for a job that has ended or does not exist.

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
        """The number of live workers of the queue that run jobs of this name."""
        return sum(job_name in (worker.handlers or ()) for worker in self.of(queue).workers())

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        for queue in self._made.values():
            queue.close()

    @staticmethod
    def _add(queue: Queue, job_id: str, job: NewJob) -> None:
        if queue.add_many([job]) != [None]:
            return
        with suppress(JobNotFound):  # it was removed in between
            if not queue.get_job(job_id).state.is_terminal:
                return
            queue.remove(job_id)  # of an earlier launch of the same
        queue.add_many([job])


FRESH_SECONDS: Final = 2.0
_ENDED: Final = frozenset({None, JobState.COMPLETED, JobState.FAILED})


class JobStates:
    """The states of the awaited jobs, and the numbers of workers that serve their queues.

    A caller that reads a thousand jobs in turn causes one read per queue: states are cached for
    ``FRESH_SECONDS``. An unknown job is read alone; an ended job is removed from the cache.

    Args:
        queues: The queues.
        job_name: Only workers that run jobs of this name count.
        clock: The clock, for tests.
    """

    def __init__(self, queues: Queues, job_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._queues, self._job_name, self._clock = queues, job_name, clock
        self._states: dict[str, dict[str, JobState | None]] = defaultdict(dict)
        self._workers: dict[str, int] = {}
        self._read_at: dict[str, float] = {}

    def add(self, queue: str, job_id: str) -> None:
        """Register a job that was just added."""
        self._states[queue][job_id] = JobState.WAITING

    def state(self, queue: str, job_id: str) -> JobState | None:
        """The state of a job; None if there is none.

        Raises:
            TransportError: The server cannot be reached.
        """
        self._refresh(queue)
        known = self._states[queue]
        if job_id not in known:
            known[job_id] = self._queues.states(queue, [job_id])[0]
        state = known[job_id]
        if state in _ENDED:
            del known[job_id]
        return state

    def workers(self, queue: str) -> int:
        """The number of live workers that serve a queue.

        Raises:
            TransportError: The server cannot be reached.
        """
        self._refresh(queue)
        if queue not in self._workers:
            self._workers[queue] = self._queues.workers_for(queue, self._job_name)
        return self._workers[queue]

    def _refresh(self, queue: str) -> None:
        now = self._clock()
        if now - self._read_at.get(queue, -FRESH_SECONDS) < FRESH_SECONDS:
            return
        ids = list(self._states[queue])
        self._states[queue] = dict(zip(ids, self._queues.states(queue, ids), strict=True)) if ids else {}
        self._workers.pop(queue, None)
        self._read_at[queue] = now


MARGIN_SECONDS: Final = 5.0


class Overdue:
    """How long something has been observed continuously, by the clock of this process.

    An expired lease counts only after a while: after an outage of the server, workers renew their leases as
    soon as it is back, which may be later than the check.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._since: dict[str, float] = {}
        self._clock = clock

    def seconds(self, what: str, *, is_so: bool) -> float:
        """How long this has been true continuously; 0 if it is not true, or true for the first time."""
        if not is_so:
            self.forget(what)
            return 0.0
        now = self._clock()
        return now - self._since.setdefault(what, now)

    def forget(self, *whats: str) -> None:
        """Reset these observations."""
        for what in whats:
            self._since.pop(what, None)


def why_lost(
    job: Job | None, now: datetime, overdue: Overdue, *, margin: float = MARGIN_SECONDS
) -> str | None:
    """Why no worker will finish the job; None while it waits or runs.

    Args:
        job: The job; None if there is none.
        now: The server's time.
        overdue: The earlier observations.
        margin: For how many seconds a lease must have been observed as expired.
    """
    if job is None:
        return "its job is not in the queue: it was removed, or the server has lost it"
    if job.state is JobState.FAILED:
        return f"its job failed: {in_text(job.failed_reason or 'no reason given')}"
    if job.state is JobState.COMPLETED:
        return "its job has completed, but the event log has no end of it"
    if job.lost_attempts:
        return "the worker that ran it was lost"
    has_lapsed = job.lease_until is not None and job.lease_until < now
    if overdue.seconds(f"{job.queue}/{job.id}", is_so=has_lapsed) >= margin and has_lapsed:
        return f"the worker that ran it was lost: {job.worker or 'it'} has not renewed the lease of its job"
    return None
