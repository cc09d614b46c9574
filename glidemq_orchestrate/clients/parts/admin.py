"""The part of Queue and AsyncQueue that controls the whole queue."""

from __future__ import annotations

from datetime import datetime, timedelta

from glidemq_orchestrate.attempts import dead_letters as letters
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.clients.parts.part import AsyncQueueBase, QueueBase
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.ordering import RateLimit
from glidemq_orchestrate.jobs.states import EndedState, JobState
from glidemq_orchestrate.queues import cleaning, dead_letters, metrics
from glidemq_orchestrate.queues import limits as ops
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.wire import stored


class AdminCalls(QueueBase):
    """Calls that control the whole queue."""

    def now(self) -> datetime:
        """The server's time, by which leases and due times go; to some milliseconds, UTC."""
        return stored.as_time(self._now())

    def pause(self) -> None:
        """Let no worker of this package start a job until ``resume``; running ones continue. Repeatable.

        Node workers ignore it, and so do the workers of broadcasts.
        """
        self._run(ops.pause(self._keys))

    def resume(self) -> None:
        """Let workers start jobs again. Repeatable."""
        self._run(ops.pause(self._keys, resume=True))

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self._run(ops.is_paused(self._keys))

    def clean(self, state: EndedState, *, grace: timedelta = timedelta(0), limit: int = 1000) -> list[JobId]:
        """Delete jobs that ended ``grace`` ago or earlier, the oldest first; returns their ids.

        Nodes of flows that have not ended remain, and so do children that a job which has not ended may
        read. Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """
        return self._run(cleaning.clean(self._keys, state, grace, limit, self._now()))

    def drain(self, *, delayed: bool = False) -> int:
        """Delete the jobs that wait to run, also those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of flows that have not ended. A
        job that waited only for deleted ones is then ready to run, and is deleted too.

        Args:
            delayed: Also delayed jobs, including those that wait for another attempt.
        """
        return self._run(cleaning.drain(self._keys, delayed=delayed, now_ms=self._now()))

    def obliterate(self, *, force: bool = False) -> None:
        """Delete everything in the queue: jobs, flows whose home it is, events, settings, schedulers.

        Stop its workers first: they recreate the keys they need. Repeatable.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """
        self._run(cleaning.obliterate(self._keys, force=force))

    def retry_failed(self, count: int | None = None) -> int:
        """Run failed jobs again, the oldest first, all or at most ``count``; returns how many.

        All means as many as have failed at the start: jobs that fail again meanwhile remain failed. Nodes of
        flows remain failed: a flow is retried as a whole.
        """
        return self._run(cleaning.retry_failed(self._keys, count, self._now()))

    def set_global_concurrency(self, limit: int | None) -> None:
        """Let at most ``limit`` jobs run at the same time over all workers; None removes it. Repeatable.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent.
        """
        self._run(ops.set_global_concurrency(self._keys, limit))

    def global_concurrency(self) -> int | None:
        """How many jobs may run at the same time over all workers; None: no limit."""
        return self._run(ops.global_concurrency(self._keys))

    def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable."""
        self._run(ops.set_global_rate_limit(self._keys, limit))

    def global_rate_limit(self) -> RateLimit | None:
        """How often jobs may start over all workers; None: no limit."""
        return self._run(ops.global_rate_limit(self._keys))

    def rate_limit_group(self, key: str, duration: timedelta, *, extend: bool = True) -> datetime:
        """Hold back the jobs of an ordering key; returns until when.

        Args:
            key: The ordering key; it may have no job yet.
            duration: From now on, at least a millisecond.
            extend: Keep a later end that was set before; otherwise replace it.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """
        return self._run(ops.rate_limit_group(self._keys, key, duration, self._now(), extend=extend))

    def groups(self) -> list[GroupInfo]:
        """The ordering keys in use, with their running jobs and those held back.

        A key of which no job waits or runs goes once no limit of it is used up, and may be
        listed for a while after that.
        """
        return self._run(ops.groups(self._keys))

    def metrics(self, state: EndedState = JobState.COMPLETED) -> list[MetricPoint]:
        """How many jobs ended in a state per minute and how long they ran, oldest first; for about a day.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """
        return self._run(metrics.metrics(self._keys, state))

    def lost_workers(self) -> list[LostWorker]:
        """The workers that are gone, with how many jobs wait until their leases end."""
        return self._run(workers.lost(self._keys, self._now()))

    def workers(self) -> list[WorkerInfo]:
        """The live workers of the queue, the oldest first."""
        return self._run(workers.live(self._keys, self._now()))

    def set_dead_letter_queue(self, name: str | None) -> None:
        """Set the queue to which workers copy jobs that have failed for good; None: no queue. Repeatable.

        Covers every cause of failure while workers of this package serve the queue: the handler, a time to
        live, workers that died of it. Not covered: nodes of flows that end because of others, and jobs
        revoked before they ran. The copy is made once, within seconds, even if the worker dies meanwhile.

        Raises:
            ConfigurationError: The name is not usable, or it is this queue; nothing was sent.
        """
        self._run(dead_letters.set_queue(self._keys, name))

    def dead_letter_queue(self) -> str | None:
        """The queue for dead letters; None if none is set."""
        return self._run(letters.queue_of(self._keys))

    def dead_letters(self, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """The dead letters of this queue, the oldest first."""
        return self._run(dead_letters.dead_letters(self._keys, offset, limit))

    def get_dead_letter(self, letter_id: str) -> DeadLetter:
        """Read one dead letter.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's.
        """
        return self._run(dead_letters.get(self._keys, letter_id))

    def remove_dead_letter(self, letter_id: str) -> None:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's. A repeat raises this.
        """
        self._run(dead_letters.remove(self._keys, letter_id, self._now()))

    def replay_dead_letter(self, letter_id: str) -> JobId:
        """Run the failed job again, so that jobs that wait for it can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job no longer exists and had to be added again.

        Raises:
            JobNotFound: There is no such letter.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """
        return self._run(dead_letters.replay(self._keys, letter_id, self._now()))


class AsyncAdminCalls(AsyncQueueBase):
    """``AdminCalls`` with awaitable calls; same arguments, same errors."""

    async def now(self) -> datetime:
        """See ``Queue.now``."""
        return stored.as_time(await self._now())

    async def pause(self) -> None:
        """See ``Queue.pause``."""
        await self._run(ops.pause(self._keys))

    async def resume(self) -> None:
        """See ``Queue.resume``."""
        await self._run(ops.pause(self._keys, resume=True))

    async def is_paused(self) -> bool:
        """See ``Queue.is_paused``."""
        return await self._run(ops.is_paused(self._keys))

    async def clean(
        self, state: EndedState, *, grace: timedelta = timedelta(0), limit: int = 1000
    ) -> list[JobId]:
        """See ``Queue.clean``."""
        return await self._run(cleaning.clean(self._keys, state, grace, limit, await self._now()))

    async def drain(self, *, delayed: bool = False) -> int:
        """See ``Queue.drain``."""
        return await self._run(cleaning.drain(self._keys, delayed=delayed, now_ms=await self._now()))

    async def obliterate(self, *, force: bool = False) -> None:
        """See ``Queue.obliterate``."""
        await self._run(cleaning.obliterate(self._keys, force=force))

    async def retry_failed(self, count: int | None = None) -> int:
        """See ``Queue.retry_failed``."""
        return await self._run(cleaning.retry_failed(self._keys, count, await self._now()))

    async def set_global_concurrency(self, limit: int | None) -> None:
        """See ``Queue.set_global_concurrency``."""
        await self._run(ops.set_global_concurrency(self._keys, limit))

    async def global_concurrency(self) -> int | None:
        """See ``Queue.global_concurrency``."""
        return await self._run(ops.global_concurrency(self._keys))

    async def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """See ``Queue.set_global_rate_limit``."""
        await self._run(ops.set_global_rate_limit(self._keys, limit))

    async def global_rate_limit(self) -> RateLimit | None:
        """See ``Queue.global_rate_limit``."""
        return await self._run(ops.global_rate_limit(self._keys))

    async def rate_limit_group(self, key: str, duration: timedelta, *, extend: bool = True) -> datetime:
        """See ``Queue.rate_limit_group``."""
        return await self._run(
            ops.rate_limit_group(self._keys, key, duration, await self._now(), extend=extend)
        )

    async def groups(self) -> list[GroupInfo]:
        """See ``Queue.groups``."""
        return await self._run(ops.groups(self._keys))

    async def metrics(self, state: EndedState = JobState.COMPLETED) -> list[MetricPoint]:
        """See ``Queue.metrics``."""
        return await self._run(metrics.metrics(self._keys, state))

    async def lost_workers(self) -> list[LostWorker]:
        """See ``Queue.lost_workers``."""
        return await self._run(workers.lost(self._keys, await self._now()))

    async def workers(self) -> list[WorkerInfo]:
        """See ``Queue.workers``."""
        return await self._run(workers.live(self._keys, await self._now()))

    async def set_dead_letter_queue(self, name: str | None) -> None:
        """See ``Queue.set_dead_letter_queue``."""
        await self._run(dead_letters.set_queue(self._keys, name))

    async def dead_letter_queue(self) -> str | None:
        """See ``Queue.dead_letter_queue``."""
        return await self._run(letters.queue_of(self._keys))

    async def dead_letters(self, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """See ``Queue.dead_letters``."""
        return await self._run(dead_letters.dead_letters(self._keys, offset, limit))

    async def get_dead_letter(self, letter_id: str) -> DeadLetter:
        """See ``Queue.get_dead_letter``."""
        return await self._run(dead_letters.get(self._keys, letter_id))

    async def remove_dead_letter(self, letter_id: str) -> None:
        """See ``Queue.remove_dead_letter``."""
        await self._run(dead_letters.remove(self._keys, letter_id, await self._now()))

    async def replay_dead_letter(self, letter_id: str) -> JobId:
        """See ``Queue.replay_dead_letter``."""
        return await self._run(dead_letters.replay(self._keys, letter_id, await self._now()))
