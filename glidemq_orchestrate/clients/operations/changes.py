"""The operations of Queue and AsyncQueue that change single jobs."""

from __future__ import annotations

from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import with_job
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.foundation.values import lasting
from glidemq_orchestrate.jobs import changes
from glidemq_orchestrate.jobs.changes import SuspendInfo
from glidemq_orchestrate.queues import removal
from glidemq_orchestrate.queues.removal import Revoked
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike


class ChangeOperations(QueueOperationsBase):
    """Operations that change single jobs."""

    @with_job
    def retry(self, job_id: str) -> Op[None]:
        """Rerun a failed job immediately, without its delay; its attempts are counted from zero.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It has not failed, or it is a node of a flow: retry the flow.
        """
        yield from changes.retry(self._keys, job_id, self._clock.now_ms())

    @with_job
    def revoke(self, job_id: str) -> Op[Revoked]:
        """End a job that is not running; request that a running one stop.

        Returns:
            ``revoked``: the job has failed, with that reason. ``flagged``: it is running, and its worker is
            notified; it may still complete.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It has ended; nothing was changed.
        """
        return removal.revoke(self._keys, job_id, self._clock)

    @with_job
    def take_back(self, job_id: str, *, grace: Duration = 0) -> Op[str]:
        """Take a running job from its worker, without waiting for the end of its lease.

        The job waits again, at no cost of an attempt; its log names the worker. What the old attempt still
        reports is refused. Its worker learns of it with its next heartbeat: it cancels an async handler and
        sets ``ctx.cancelled`` for others, and until then both attempts may run side by side. A repeat may
        take the job from its next worker.

        Args:
            job_id: The job.
            grace: How long the worker may still run it. The next heartbeat sets ``ctx.cancelled``, with
                ``is_stopping``, also for async handlers. If the job ends in this time, that is accepted.
                Otherwise the first heartbeat afterwards takes it away, or the end of the lease, if the worker
                sends none. A repeat sets the time anew.

        Returns:
            The id of the worker that held it.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It is not running, or a Node worker runs it, which nothing could stop; nothing
                was changed.
            InvalidJob: ``grace`` is negative or too long; nothing was sent.
        """
        span = lasting("grace", grace)
        return self._now(lambda now_ms: changes.take_back(self._keys, job_id, span, now_ms))

    @with_job
    def remove(self, job_id: str) -> Op[None]:
        """Delete a job with its logs, its output and its place in the queue.

        A job that depends on it stops waiting. Later calls of a running attempt are refused.

        Raises:
            JobNotFound: No job has this id, as after an earlier call.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """
        yield from removal.remove(self._keys, job_id, self._clock.now_ms())

    @with_job
    def change_priority(self, job_id: str, priority: int) -> Op[None]:
        """Change the priority of a job that has not started, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        return self._now(lambda now_ms: changes.change_priority(self._keys, job_id, priority, now_ms))

    @with_job
    def change_delay(self, job_id: str, delay: Duration) -> Op[None]:
        """Start a job that has not started ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        span = lasting("delay", delay)
        return self._now(lambda now_ms: changes.change_delay(self._keys, job_id, span, now_ms))

    @with_job
    def promote(self, job_id: str) -> Op[None]:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It is not delayed.
        """
        return self._now(lambda now_ms: changes.promote(self._keys, job_id, now_ms))

    @with_job
    def set_progress(self, job_id: str, progress: JsonLike) -> Op[None]:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """
        yield from changes.update(self._keys, job_id, "progress", progress, self._clock.now_ms())

    @with_job
    def update_data(self, job_id: str, data: JsonLike) -> Op[None]:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        yield from changes.update(self._keys, job_id, "data", data, self._clock.now_ms())

    @with_job
    def suspend_info(self, job_id: str) -> Op[SuspendInfo | None]:
        """Read why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: No job has this id.
        """
        return changes.suspend_info(self._keys, job_id)

    @with_job
    def signal(self, job_id: str, name: str, data: JsonLike = None) -> Op[bool]:
        """Send a signal to a suspended job, which resumes and can read it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        return (yield from changes.signal(self._keys, job_id, name, data, self._clock.now_ms()))
