"""The operations of Queue and AsyncQueue on tracked jobs, and on the history of a job."""

from __future__ import annotations

from operator import attrgetter

from glidemq_orchestrate.clients.operations.combining import by_key, nothing
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import on_all, with_job
from glidemq_orchestrate.clients.outage import Outage
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs import history
from glidemq_orchestrate.jobs.history import JobHistory
from glidemq_orchestrate.queues import tracking
from glidemq_orchestrate.queues.tracking import Tracked, TrackedStream
from glidemq_orchestrate.wire.call import Op


class TrackingOperations(QueueOperationsBase):
    """Operations on tracked jobs and histories."""

    @on_all(by_key(attrgetter("since")))
    def tracked(self) -> Op[list[Tracked]]:
        """List the tracked jobs and flows as they are now, those tracked longest first."""
        return tracking.tracked(self._keys)

    def watch_tracked(self) -> TrackedStream:
        """Yield the changes of the tracked jobs and flows, without an end; first what each is now.

        Reports each difference once: state, attempts, progress, options and tags of jobs, state and counts of
        flows, and that one of them was removed. What changes twice between two reads is reported once; a read
        follows each event of a tracked job, and at most a second later. Jobs that are tracked during the
        watch are included from then on. Lost events cause no missed change. After the first read the watch
        survives outages of the server, such as a failover, and logs them.

        Raises:
            TransportError: The server is unreachable at the first read.
        """
        return TrackedStream(self._keys, self._clock, self._member_keys)

    def tracked_outage(self, timeout: Duration | None) -> Outage:
        """What waits during an outage of the server while ``watch_tracked`` reads."""
        return Outage(f"tracked jobs and flows of queue {self._keys.queue}", timeout=timeout)

    @with_job
    def track(self, job_id: str) -> Op[None]:
        """Track a job: ``watch_tracked`` and ``glidemq track`` report its changes, until ``untrack``.

        From now on the job also records its ``history``. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob: The queue tracks 1,000 jobs and flows, which is the limit.
        """
        return self._now(lambda now_ms: tracking.track_job(self._keys, job_id, now_ms))

    @on_all(nothing)
    def untrack(self, job_id: str) -> Op[None]:
        """Stop tracking a job, also one that was removed. Repeatable."""
        return tracking.untrack_job(self._keys, job_id)

    @with_job
    def history(self, job_id: str) -> Op[JobHistory]:
        """Read what happened to a job, oldest first: that it was added, started, lost, failed and so on.

        A job records its changes if it has the option ``history``, or since it is tracked: the last 99. For
        any other job, also of Node workers, this returns what its fields and the events of the queue still
        show: the last start and end, and what is among the last 1,000 events of the queue.

        Returns:
            The entries; ``is_partial`` is true if some may be missing.

        Raises:
            JobNotFound: No job has this id.
        """
        return history.history(self._keys, job_id)
