"""The operations of Queue and AsyncQueue on the whole queue: find jobs, sum up usage, control the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Literal, TypeVar, cast

from glidemq_orchestrate.attempts import dead_letters as dead_letters_ops
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import lasting, whole
from glidemq_orchestrate.jobs import usage as usages
from glidemq_orchestrate.jobs.job import Job, JobId
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.jobs.states import EndedState, JobState, JobStateLike
from glidemq_orchestrate.jobs.tags import TagCount, tag_counts
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.queues import (
    dead_letters,
    failure_groups,
    limits,
    listing,
    metrics,
    removal,
    statistics,
    tracking,
)
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.failure_groups import FailureGroups
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.listing import (
    MAX_EXAMINED,
    FoundJobs,
    JobCounts,
    JobFilter,
    JobPage,
    TaggedJobs,
)
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.queues.statistics import QueueStatistics
from glidemq_orchestrate.queues.tracking import Tracked, TrackedStream
from glidemq_orchestrate.wire import stored
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
Compression = Literal["none", "gzip"]


class QueueOperationsBase:
    """Base of the operations on one queue."""

    def __init__(self, keys: QueueKeys, clock: Clock, compression: Compression = "none") -> None:
        if compression not in ("none", "gzip"):
            raise ConfigurationError(f"compression {described(compression)} is unknown; use 'none' or 'gzip'")
        self._keys, self._clock, self._packed = keys, clock, compression == "gzip"

    def _now(self, make: Callable[[int], Op[T]]) -> Op[T]:
        """An operation that needs the server's time, which is unknown until the client is connected."""
        return (yield from make(self._clock.now_ms()))


class WholeQueueOperations(QueueOperationsBase):
    """Operations that find jobs, read usage, or control the whole queue."""

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

        Waiting jobs are in the order in which workers take them, ended and delayed ones by time. Jobs that
        wait for other jobs have no order, and to find them, all keys of the server are scanned in pages. A
        job with data that is not valid JSON has ``broken`` set.

        Args:
            state: The state of the jobs.
            offset: The number of jobs to skip. Jobs that change state during the call may be skipped or
                listed twice.
            limit: The max number of jobs to return.
            newest_first: Reverse the order; for completed, failed, delayed, prioritized and suspended jobs.
            exclude_data: Omit data and result, and do not transfer them.

        Raises:
            ConfigurationError: An argument is not valid, or ``newest_first`` is set for another state.
        """
        return listing.get_jobs(
            self._keys,
            JobFilter(_state(state)),
            range(offset, offset + limit),
            exclude_data=exclude_data,
            newest_first=newest_first,
        )

    def search(  # noqa: PLR0913  criteria and limits
        self,
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        max_examined: int | None = MAX_EXAMINED,
    ) -> Op[FoundJobs]:
        """Find the jobs that match all criteria; each call to the server reads at most a page.

        Args:
            state: Only jobs in this state; None scans all keys of the server.
            name: Only jobs with exactly this name.
            data: Only jobs with these top-level keys and values in their data.
            limit: The max number of jobs to return.
            exclude_data: Omit data and result of the returned jobs.
            max_examined: The approximate max number of jobs to examine, by default what takes about a second;
                None for all. If the state has no index, other keys count a little too. To read all of a large
                queue in pages, use ``scan_jobs``.

        Returns:
            The jobs; ``is_partial`` is true if the search stopped at ``max_examined``, so there may be more.

        Raises:
            ConfigurationError: The state is unknown, or a limit is negative; nothing was sent.
        """
        return listing.search(
            self._keys, JobFilter(_state(state), name, data), limit, max_examined, exclude_data=exclude_data
        )

    def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> Op[JobPage]:
        """Examine about a thousand keys and return the matching jobs.

        Start with cursor ``"0"`` and continue with the cursor of each page until it is ``"0"`` again. A page
        may be empty. A job that exists during the whole scan is returned at least once.

        Raises:
            ConfigurationError: The state is unknown, or ``cursor`` is not valid; nothing was sent.
        """
        return listing.scan_jobs(
            self._keys, JobFilter(_state(state), name), cursor, exclude_data=exclude_data
        )

    def tags(self, *, offset: int = 0, limit: int = 100) -> Op[list[TagCount]]:
        """List the tags with their numbers of jobs, most used first.

        Jobs that another library has removed may be counted for some minutes.

        Raises:
            InvalidJob: ``offset`` is negative, or ``limit`` less than 1; nothing was sent.
        """
        whole("offset", offset, 0)
        whole("limit", limit, 1)
        return ask(tag_counts(self._keys, offset, limit))

    def tagged(
        self, tag: str, *, offset: int = 0, limit: int = 100, exclude_data: bool = False
    ) -> Op[TaggedJobs]:
        """List the jobs with a tag, those that have had it longest first; empty if no job has it.

        Args:
            tag: The tag.
            offset: The number of jobs to skip.
            limit: The max number of jobs to return; ``total`` of the result is how many have the tag.
            exclude_data: Omit data and result, and do not transfer them.

        Raises:
            InvalidJob: An argument is not valid; nothing was sent.
        """
        whole("offset", offset, 0)
        whole("limit", limit, 1)
        return self._now(
            lambda now_ms: listing.tagged(
                self._keys, tag, range(offset, offset + limit), now_ms, exclude_data=exclude_data
            )
        )

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
        return TrackedStream(self._keys, self._clock)

    def tracked_name(self) -> str:
        """What ``watch_tracked`` reads, for the log."""
        return f"tracked jobs and flows of queue {self._keys.queue}"

    def states(self, job_ids: Sequence[str]) -> Op[list[JobState | None]]:
        """Read the states of many jobs, in this order, 500 per round trip; None for a missing job."""
        return listing.states(self._keys, job_ids)

    def counts(self, *, indexed_only: bool = False, max_examined: int | None = MAX_EXAMINED) -> Op[JobCounts]:
        """Count the jobs in each state. A job that a worker has fetched but not started counts as active.

        Args:
            indexed_only: Omit the jobs that wait for other jobs or for their ordering key. glide-mq has no
                index for those, and to count them, all keys of the server are scanned.
            max_examined: The approximate max number of jobs to examine for those, by default what takes about
                a second; None for all.

        Returns:
            The counts; ``at_least`` has the states whose count stopped at ``max_examined``.
        """
        return listing.counts(self._keys, indexed_only=indexed_only, max_examined=max_examined)

    def report_usage(self, job_id: str, usage: Usage) -> Op[None]:
        """Report the usage of a job; replaces an earlier report, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: No job has this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """
        return usages.report(self._keys, job_id, usage, self._clock)

    def usage(self, job_id: str) -> Op[Usage | None]:
        """Read the reported usage of a job; None without a report."""
        return usages.usage_of(self._keys, job_id)

    def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> Op[UsageSummary]:
        """Sum up the usage of jobs, by minute, within the last 30 days.

        Args:
            start: With a time zone; by default an hour before ``end``.
            end: With a time zone; by default now.
            queues: Names of queues; by default all queues under this prefix that have usage.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """
        return (yield from usages.summary(self._keys.prefix, queues, start, end, self._clock.now_ms()))

    def flow_budget(self, root_id: str) -> Op[FlowBudget | None]:
        """Read the budget of a flow of glide-mq's producer by the id of its root job; None without one."""
        return usages.budget(self._keys, root_id)

    def now(self) -> Op[datetime]:
        """Return the server's time, by which leases and due times are set: UTC, within a few milliseconds."""
        yield from ()  # without a call to the server
        return stored.as_time(self._clock.now_ms())

    def pause(self) -> Op[None]:
        """Stop workers of this package from starting jobs; running jobs continue. Repeatable.

        ``resume`` ends the pause. Node workers ignore it, and so do the workers of broadcasts.
        """
        return limits.pause(self._keys)

    def resume(self) -> Op[None]:
        """End the pause: workers start jobs again. Repeatable."""
        return limits.pause(self._keys, resume=True)

    def is_paused(self) -> Op[bool]:
        """Whether the queue is paused."""
        return limits.is_paused(self._keys)

    def clean(self, state: EndedState, *, grace: Duration = 0, limit: int = 1000) -> Op[list[JobId]]:
        """Delete jobs that ended at least ``grace`` ago, oldest first; returns their ids.

        Nodes of unfinished flows remain, and so do children whose results an unfinished job may read.
        Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """
        span, ended = lasting("grace", grace), cast("JobState", state)
        return self._now(lambda now_ms: removal.clean(self._keys, ended, span, limit, now_ms))

    def drain(self, *, delayed: bool = False) -> Op[int]:
        """Delete the waiting jobs, including those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of unfinished flows. A job that
        waited only for deleted jobs becomes ready to run, and is deleted too.

        Args:
            delayed: Delete delayed jobs too, including those that wait for another attempt.
        """
        return (yield from removal.drain(self._keys, delayed=delayed, now_ms=self._clock.now_ms()))

    def obliterate(self, *, force: bool = False) -> Op[None]:
        """Delete everything in the queue: jobs, flows with this home, events, settings, schedules.

        Stop its workers first: they recreate the keys they need. Repeatable.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """
        return removal.obliterate(self._keys, force=force)

    def retry_failed(self, count: int | None = None) -> Op[int]:
        """Rerun failed jobs, oldest first, all or at most ``count``; returns how many.

        "All" are the failed jobs at the start: jobs that fail again during the call remain failed, also those
        that another client has retried, which are not counted. So do nodes of flows: retry the flow.

        Raises:
            InvalidJob: ``count`` is less than 1; nothing was sent.
        """
        return (yield from removal.retry_failed(self._keys, count, self._clock.now_ms()))

    def failures(self, *, max_examined: int | None = MAX_EXAMINED) -> Op[FailureGroups]:
        """Group the failed jobs by cause, largest group first, also those of Node workers.

        A group is what the handler named (``ctx.fail(group=)``); otherwise the class of the exception, or the
        first line of the reason. A node that failed only because of another one is not counted, but
        ``held_back`` of that other one's group is: for this, the nodes of the flows are read.

        Args:
            max_examined: The approximate max number of jobs and nodes to examine, newest failures first, by
                default what takes some seconds; None for all.

        Returns:
            The groups; ``is_partial`` is true if reading stopped at ``max_examined``: all numbers may be
            higher.
        """
        return failure_groups.queue_failures(self._keys, max_examined)

    def retry_failures(self, group: str, *, limit: int = 1000) -> Op[int]:
        """Rerun the failed jobs of a group, oldest first; returns how many. 0 if no failed job is in it.

        Jobs that fail again during the call remain failed, also those that another client has retried, which
        are not counted. So do nodes of flows: use ``Flow.retry_failures``. A repeat continues with the next
        jobs.

        Args:
            group: A group of ``failures``.
            limit: The max number of jobs to rerun.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
        """
        return self._now(lambda now_ms: failure_groups.retry_group(self._keys, group, limit, now_ms))

    def remove_failures(self, group: str, *, limit: int = 1000) -> Op[list[JobId]]:
        """Delete the failed jobs of a group, oldest first; returns their ids. Keeps what ``clean`` keeps.

        Repeatable; stops half-way if the connection breaks.

        Args:
            group: A group of ``failures``.
            limit: The max number of jobs to delete.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
        """
        return self._now(lambda now_ms: failure_groups.remove_group(self._keys, group, limit, now_ms))

    def set_global_concurrency(self, limit: int | None) -> Op[None]:
        """Limit how many jobs run at the same time over all workers; None removes the limit. Repeatable.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent.
        """
        return limits.set_global_concurrency(self._keys, limit)

    def global_concurrency(self) -> Op[int | None]:
        """Read how many jobs may run at the same time over all workers; None: no limit."""
        return limits.global_concurrency(self._keys)

    def set_global_rate_limit(self, limit: RateLimit | None) -> Op[None]:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable."""
        return limits.set_global_rate_limit(self._keys, limit)

    def global_rate_limit(self) -> Op[RateLimit | None]:
        """Read how often jobs may start over all workers; None: no limit."""
        return limits.global_rate_limit(self._keys)

    def rate_limit_group(self, key: str, duration: Duration, *, extend: bool = True) -> Op[datetime]:
        """Block the jobs of an ordering key for a while; returns until when.

        Args:
            key: The ordering key, with or without jobs.
            duration: From now on, at least a millisecond.
            extend: True: a later end that was set earlier remains. False: it is replaced.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """
        span = lasting("duration", duration, min_=MILLISECOND)
        return self._now(lambda now_ms: limits.rate_limit_group(self._keys, key, span, now_ms, extend=extend))

    def groups(self) -> Op[list[GroupInfo]]:
        """List the ordering keys in use, with their numbers of running and blocked jobs.

        A key without waiting or running jobs is removed after its limits have recovered, and may be listed
        for a while longer.
        """
        return limits.groups(self._keys)

    def metrics(self, state: EndedState = JobState.COMPLETED) -> Op[list[MetricPoint]]:
        """Read how many jobs ended in a state per minute, and their run times: about a day, oldest first.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """
        return metrics.metrics(self._keys, cast("JobState", state))

    def statistics(self, day: date | None = None) -> Op[QueueStatistics]:
        """Read how long the jobs of a day waited and ran, by handler, with histograms and percentiles.

        Counts the jobs that workers of this package ran; those of Node workers are in ``metrics`` only.
        Workers report every five seconds and when they stop; a killed one takes its last seconds with it.
        Kept for 30 days.

        Args:
            day: A day in UTC; None: today. A day on which nothing ran has counts of 0.

        Raises:
            ConfigurationError: The day is in the future, or its statistics are gone; nothing was sent.
        """
        return self._now(lambda now_ms: statistics.statistics(self._keys, day, now_ms))

    def lost_workers(self) -> Op[list[LostWorker]]:
        """List the lost workers, each with the number of jobs that wait until its leases end."""
        return (yield from workers.lost(self._keys, self._clock.now_ms()))

    def workers(self) -> Op[list[WorkerInfo]]:
        """List the live workers of the queue, oldest first."""
        return (yield from workers.live(self._keys, self._clock.now_ms()))

    def set_dead_letter_queue(self, name: str | None) -> Op[None]:
        """Set the queue to which workers copy permanently failed jobs; None: no queue. Repeatable.

        While workers of this package serve the queue, this covers every cause of failure: the handler, an
        expired time to live, workers lost to the job. Not covered: nodes that end because of other nodes, and
        jobs revoked before they ran. The job is copied once, within seconds, even if the worker dies.

        Raises:
            ConfigurationError: The name is not valid, or it is this queue; nothing was sent.
        """
        return dead_letters.set_queue(self._keys, name)

    def dead_letter_queue(self) -> Op[str | None]:
        """Read the name of the dead-letter queue; None if none is set."""
        return dead_letters_ops.queue_of(self._keys)

    def dead_letters(self, *, offset: int = 0, limit: int = 100) -> Op[list[DeadLetter]]:
        """List the dead letters of this queue, oldest first."""
        return dead_letters.dead_letters(self._keys, offset, limit)

    def get_dead_letter(self, letter_id: str) -> Op[DeadLetter]:
        """Read one dead letter.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
        """
        return dead_letters.get(self._keys, letter_id)

    def remove_dead_letter(self, letter_id: str) -> Op[None]:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: This queue has no dead letter with this id, as after an earlier call.
        """
        yield from dead_letters.remove(self._keys, letter_id, self._clock.now_ms())

    def replay_dead_letter(self, letter_id: str) -> Op[JobId]:
        """Rerun the failed job, so that its dependents can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job was removed and had to be added again.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """
        return (yield from dead_letters.replay(self._keys, letter_id, self._clock.now_ms()))


def _state(state: JobStateLike | None) -> JobState | None:
    """The state; a text equals its ``StrEnum`` member, and the filter refuses unknown states."""
    return cast("JobState | None", state)
