"""What Queue and AsyncQueue do: that controls the whole queue."""

from __future__ import annotations

from datetime import datetime

from glidemq_orchestrate.attempts import dead_letters as dead_letters_ops
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.clients.operations.queue_base import QueueOperationsBase
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration
from glidemq_orchestrate.jobs.bounds import lasting
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.jobs.states import EndedState, JobState
from glidemq_orchestrate.queues import dead_letters, limits, metrics, removal
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.wire import stored
from glidemq_orchestrate.wire.call import Op


class AdminOperations(QueueOperationsBase):
    """Calls that control the whole queue."""

    def now(self) -> Op[datetime]:
        """The server's time, by which leases and due times go; to some milliseconds, UTC."""
        yield from ()  # without a call to the server
        return stored.as_time(self._clock.now_ms())

    def pause(self) -> Op[None]:
        """Let no worker of this package start a job until ``resume``; running ones continue. Repeatable.

        Node workers ignore it, and so do the workers of broadcasts.
        """
        return limits.pause(self._keys)

    def resume(self) -> Op[None]:
        """Let workers start jobs again. Repeatable."""
        return limits.pause(self._keys, resume=True)

    def is_paused(self) -> Op[bool]:
        """Whether the queue is paused."""
        return limits.is_paused(self._keys)

    def clean(self, state: EndedState, *, grace: Duration = 0, limit: int = 1000) -> Op[list[JobId]]:
        """Delete jobs that ended ``grace`` ago or earlier, the oldest first; returns their ids.

        Nodes of flows that have not ended remain, and so do children that a job which has not ended may
        read. Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """
        span = lasting("grace", grace)
        return self._now(lambda now_ms: removal.clean(self._keys, state, span, limit, now_ms))

    def drain(self, *, delayed: bool = False) -> Op[int]:
        """Delete the jobs that wait to run, also those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of flows that have not ended. A
        job that waited only for deleted ones is then ready to run, and is deleted too.

        Args:
            delayed: Also delayed jobs, including those that wait for another attempt.
        """
        return (yield from removal.drain(self._keys, delayed=delayed, now_ms=self._clock.now_ms()))

    def obliterate(self, *, force: bool = False) -> Op[None]:
        """Delete everything in the queue: jobs, flows whose home it is, events, settings, schedules.

        Stop its workers first: they recreate the keys they need. Repeatable.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """
        return removal.obliterate(self._keys, force=force)

    def retry_failed(self, count: int | None = None) -> Op[int]:
        """Run failed jobs again, the oldest first, all or at most ``count``; returns how many.

        All means as many as have failed at the start: jobs that fail again meanwhile remain failed. Nodes of
        flows remain failed: a flow is retried as a whole.
        """
        return (yield from removal.retry_failed(self._keys, count, self._clock.now_ms()))

    def set_global_concurrency(self, limit: int | None) -> Op[None]:
        """Let at most ``limit`` jobs run at the same time over all workers; None removes it. Repeatable.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent.
        """
        return limits.set_global_concurrency(self._keys, limit)

    def global_concurrency(self) -> Op[int | None]:
        """How many jobs may run at the same time over all workers; None: no limit."""
        return limits.global_concurrency(self._keys)

    def set_global_rate_limit(self, limit: RateLimit | None) -> Op[None]:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable."""
        return limits.set_global_rate_limit(self._keys, limit)

    def global_rate_limit(self) -> Op[RateLimit | None]:
        """How often jobs may start over all workers; None: no limit."""
        return limits.global_rate_limit(self._keys)

    def rate_limit_group(self, key: str, duration: Duration, *, extend: bool = True) -> Op[datetime]:
        """Hold back the jobs of an ordering key; returns until when.

        Args:
            key: The ordering key; it may have no job yet.
            duration: From now on, at least a millisecond.
            extend: Keep a later end that was set before; otherwise replace it.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """
        span = lasting("duration", duration, min_=MILLISECOND)
        return self._now(lambda now_ms: limits.rate_limit_group(self._keys, key, span, now_ms, extend=extend))

    def groups(self) -> Op[list[GroupInfo]]:
        """The ordering keys in use, with their running jobs and those held back.

        A key of which no job waits or runs goes once no limit of it is used up, and may be
        listed for a while after that.
        """
        return limits.groups(self._keys)

    def metrics(self, state: EndedState = JobState.COMPLETED) -> Op[list[MetricPoint]]:
        """How many jobs ended in a state per minute and how long they ran, oldest first; for about a day.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """
        return metrics.metrics(self._keys, state)

    def lost_workers(self) -> Op[list[LostWorker]]:
        """The workers that are gone, with how many jobs wait until their leases end."""
        return (yield from workers.lost(self._keys, self._clock.now_ms()))

    def workers(self) -> Op[list[WorkerInfo]]:
        """The live workers of the queue, the oldest first."""
        return (yield from workers.live(self._keys, self._clock.now_ms()))

    def set_dead_letter_queue(self, name: str | None) -> Op[None]:
        """Set the queue to which workers copy jobs that have failed for good; None: no queue. Repeatable.

        Covers every cause of failure while workers of this package serve the queue: the handler, a time to
        live, workers that died of it. Not covered: nodes of flows that end because of others, and jobs
        revoked before they ran. The copy is made once, within seconds, even if the worker dies meanwhile.

        Raises:
            ConfigurationError: The name is not usable, or it is this queue; nothing was sent.
        """
        return dead_letters.set_queue(self._keys, name)

    def dead_letter_queue(self) -> Op[str | None]:
        """The queue for dead letters; None if none is set."""
        return dead_letters_ops.queue_of(self._keys)

    def dead_letters(self, *, offset: int = 0, limit: int = 100) -> Op[list[DeadLetter]]:
        """The dead letters of this queue, the oldest first."""
        return dead_letters.dead_letters(self._keys, offset, limit)

    def get_dead_letter(self, letter_id: str) -> Op[DeadLetter]:
        """Read one dead letter.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's.
        """
        return dead_letters.get(self._keys, letter_id)

    def remove_dead_letter(self, letter_id: str) -> Op[None]:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's. A repeat raises this.
        """
        yield from dead_letters.remove(self._keys, letter_id, self._clock.now_ms())

    def replay_dead_letter(self, letter_id: str) -> Op[JobId]:
        """Run the failed job again, so that jobs that wait for it can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job no longer exists and had to be added again.

        Raises:
            JobNotFound: There is no such letter.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """
        return (yield from dead_letters.replay(self._keys, letter_id, self._clock.now_ms()))
