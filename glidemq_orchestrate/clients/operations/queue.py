"""What Queue and AsyncQueue do for the whole queue: find jobs, sum up their usage, control the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeVar, cast

from glidemq_orchestrate.attempts import dead_letters as dead_letters_ops
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs import usage as usages
from glidemq_orchestrate.jobs.bounds import LOOK_AT, lasting
from glidemq_orchestrate.jobs.job import Job, JobId
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.jobs.states import EndedState, JobState, JobStateLike
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.queues import dead_letters, limits, listing, metrics, removal
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.listing import FoundJobs, JobCounts, JobFilter, JobPage
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.wire import stored
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
Compression = Literal["none", "gzip"]


class QueueOperationsBase:
    """Operations of one queue."""

    def __init__(self, keys: QueueKeys, clock: Clock, compression: Compression = "none") -> None:
        if compression not in ("none", "gzip"):
            raise ConfigurationError(f"compression {described(compression)} is unknown; use 'none' or 'gzip'")
        self._keys, self._clock, self._packed = keys, clock, compression == "gzip"

    def _now(self, make: Callable[[int], Op[T]]) -> Op[T]:
        """An operation that needs the server's time, which is known only when the client is connected."""
        return (yield from make(self._clock.now_ms()))


class WholeQueueOperations(QueueOperationsBase):
    """Calls that find jobs, read their usage, or control the whole queue."""

    def get_jobs(
        self,
        state: JobStateLike,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        exclude_data: bool = False,
    ) -> Op[list[Job]]:
        """List the jobs of one state.

        Waiting jobs come in the order in which workers take them, ended and delayed ones by time. Jobs that
        wait for other jobs have no order, and finding them means scanning all keys of the server, a page at a
        time. A job whose data is not valid JSON is listed with ``broken`` set.

        Args:
            state: Any state.
            offset: How many to skip. Jobs that change state during the call may be skipped or listed twice.
            limit: How many to return at most.
            newest_first: In reverse; for completed, failed, delayed, prioritized and suspended jobs.
            exclude_data: Leave data and result out, and do not transfer them.
        """
        return listing.get_jobs(
            self._keys,
            JobFilter(_state(state)),
            range(offset, offset + limit),
            exclude_data=exclude_data,
            newest_first=newest_first,
        )

    def search(  # noqa: PLR0913  what is wanted, and how much
        self,
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        look_at: int | None = LOOK_AT,
    ) -> Op[FoundJobs]:
        """Find the jobs that match all given criteria; no call to the server takes longer than a page.

        Args:
            state: Only jobs of this state; without it all keys of the server are scanned.
            name: Only jobs of this name, exactly.
            data: Only jobs whose data has these keys with these values at the top level.
            limit: How many to return at most.
            exclude_data: Leave data and result out of the returned jobs.
            look_at: About how many jobs are examined at most, by default a second's work; if a state has no
                index, other keys count a little too. None: all. ``scan_jobs`` reads all of a large queue in
                pages.

        Returns:
            The jobs; ``is_partial`` is true if the search ended at ``look_at``, and there may be more.
        """
        return listing.search(
            self._keys, JobFilter(_state(state), name, data), limit, look_at, exclude_data=exclude_data
        )

    def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> Op[JobPage]:
        """Examine about a thousand keys, and return the matching jobs among them.

        Start with cursor ``"0"`` and continue with the cursor of each page until that is ``"0"`` again. A
        page may be empty; a job that exists all the time is returned at least once.
        """
        return listing.scan_jobs(
            self._keys, JobFilter(_state(state), name), cursor, exclude_data=exclude_data
        )

    def states(self, job_ids: Sequence[str]) -> Op[list[JobState | None]]:
        """The state of each of many jobs, in this order, 500 in a trip; None for one that does not exist."""
        return listing.states(self._keys, job_ids)

    def counts(self, *, indexed_only: bool = False, look_at: int | None = LOOK_AT) -> Op[JobCounts]:
        """How many jobs are in each state. A job that a worker has taken and not started counts as active.

        Args:
            indexed_only: Leave out the jobs that wait for other jobs or for their ordering key: glide-mq has
                no index for those, and counting them means scanning the keys of the server.
            look_at: About how many jobs are examined for that, by default a second's work. None: all.

        Returns:
            The numbers; ``at_least`` holds the states whose counting ended at ``look_at``.
        """
        return listing.counts(self._keys, indexed_only=indexed_only, look_at=look_at)

    def report_usage(self, job_id: str, usage: Usage) -> Op[None]:
        """Report what a job used; replaces an earlier report of the job, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: There is none with this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """
        return usages.report(self._keys, job_id, usage, self._clock)

    def usage(self, job_id: str) -> Op[Usage | None]:
        """The usage that a job reported; None if it reported none."""
        return usages.usage_of(self._keys, job_id)

    def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> Op[UsageSummary]:
        """Sum up what jobs used, by the minute; 30 days are kept.

        Args:
            start: With a time zone; an hour before the end when left out.
            end: With a time zone; now when left out.
            queues: Names; all queues under this prefix that have usage when left out.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """
        return (yield from usages.summary(self._keys.prefix, queues, start, end, self._clock.now_ms()))

    def flow_budget(self, root_id: str) -> Op[FlowBudget | None]:
        """The budget of a flow made by glide-mq's producer, by its root job's id; None if it has none."""
        return usages.budget(self._keys, root_id)

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
        span, ended = lasting("grace", grace), cast("JobState", state)
        return self._now(lambda now_ms: removal.clean(self._keys, ended, span, limit, now_ms))

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

        All means as many as have failed at the start: jobs that fail again during the call remain failed.
        Nodes of flows remain failed: a flow is retried as a whole.
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
        return metrics.metrics(self._keys, cast("JobState", state))

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
        revoked before they ran. The copy is made once, within seconds, even if the worker dies.

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


def _state(state: JobStateLike | None) -> JobState | None:
    """A state, which a text is equal to; what is none is refused with the filter."""
    return cast("JobState | None", state)
