# Made by `make generated` from the operations. Do not edit.
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Unpack

from glidemq_orchestrate.attempts.handler_code import HandlerCode
from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.adding import AddingOperations
from glidemq_orchestrate.clients.operations.changes import ChangeOperations
from glidemq_orchestrate.clients.operations.dead_letters import DeadLetterOperations
from glidemq_orchestrate.clients.operations.dependencies import DependencyOperations
from glidemq_orchestrate.clients.operations.failures import FailureOperations
from glidemq_orchestrate.clients.operations.finding import FindingOperations
from glidemq_orchestrate.clients.operations.limits import LimitOperations
from glidemq_orchestrate.clients.operations.output import OutputOperations
from glidemq_orchestrate.clients.operations.queue import Compression, WholeQueueOperations
from glidemq_orchestrate.clients.operations.statistics import StatisticsOperations
from glidemq_orchestrate.clients.operations.tags import TagOperations
from glidemq_orchestrate.clients.operations.tracking import TrackingOperations
from glidemq_orchestrate.clients.operations.usage import UsageOperations
from glidemq_orchestrate.flows.status import Wait
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.jobs.changes import Signal, SuspendInfo
from glidemq_orchestrate.jobs.history import HistoryEntry, JobHistory
from glidemq_orchestrate.jobs.job import Job, JobId, JobLogs
from glidemq_orchestrate.jobs.option_values import JobRef, RateLimit
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, AwaitedKeywords, JobOptions, OptionKeywords
from glidemq_orchestrate.jobs.output import AcceptedAttempt, JobMessage, OutputChunk
from glidemq_orchestrate.jobs.states import EndedState, JobState, JobStateLike
from glidemq_orchestrate.jobs.tags import TagCount
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.dependencies import CancelledJobs, ChangedDependencies
from glidemq_orchestrate.queues.failure_groups import FailureGroup, FailureGroups, FailureSample
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.listing import MAX_EXAMINED, FoundJobs, JobCounts, JobPage, TaggedJobs
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.queues.open_arrays import ElementCounts
from glidemq_orchestrate.queues.recent import RecentStatistics
from glidemq_orchestrate.queues.removal import Revoked
from glidemq_orchestrate.queues.statistics import (
    DurationBucket,
    Durations,
    HandlerStatistics,
    QueueStatistics,
)
from glidemq_orchestrate.queues.tracking import Tracked, TrackedChange
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys

__all__ = [
    "AsyncQueue",
    "CancelledJobs",
    "ChangedDependencies",
    "DeadLetter",
    "DurationBucket",
    "Durations",
    "ElementCounts",
    "FailureGroup",
    "FailureGroups",
    "FailureSample",
    "FlowBudget",
    "FoundJobs",
    "GroupInfo",
    "HandlerCode",
    "HandlerStatistics",
    "HistoryEntry",
    "JobCounts",
    "JobHistory",
    "JobLogs",
    "JobPage",
    "MetricPoint",
    "NewJob",
    "OutputChunk",
    "Queue",
    "QueueStatistics",
    "RecentStatistics",
    "Signal",
    "SuspendInfo",
    "TagCount",
    "TaggedJobs",
    "Tracked",
    "TrackedChange",
    "Usage",
    "UsageSummary",
    "WorkerInfo",
]

class QueueOperations(
    AddingOperations,
    FindingOperations,
    ChangeOperations,
    DependencyOperations,
    OutputOperations,
    TagOperations,
    TrackingOperations,
    FailureOperations,
    DeadLetterOperations,
    LimitOperations,
    StatisticsOperations,
    UsageOperations,
    WholeQueueOperations,
):
    """The operations on one queue, written once for both clients."""

class Queue(SyncFacade):
    """One queue on one server.

    Args:
        name: 1 to 256 characters, none of ``{ } :``.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        compression: ``gzip`` compresses the data of added jobs; every reader decompresses it.
        shards: How many shards the queue has, 1 to 128: a cluster spreads these over its primaries. A new
            queue gets them with the first call. None: as many as the queue has.
        clock: For tests.

    Raises:
        ConfigurationError: The name, the URL, the prefix, the compression or the number of shards is not
            valid. No connection was opened: the first call does that. Each call until one succeeds raises
            ``ShardsMismatch`` if the queue never had this number of shards.
    """

    _keys: QueueKeys
    _operations: QueueOperations

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        shards: int | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    def add(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> JobId:
        """Add one job; on return it is visible to workers, and as durable as ``confirm`` requires.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: Attempts, delay, priority, ``job_id``, and so on.
            keywords: Single options that override those in ``options``: ``attempts=3, delay=10``. See
                ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
            InvalidJob: The name is empty, an option is not valid, or the ``job_id`` is in use; nothing was
                added.
            JobSkipped: It is a duplicate according to ``deduplication``; nothing was added.
            OutcomeUnknown: The connection broke after sending. Safe to repeat only with a ``job_id``.
            NotConfirmed: The job was added, but the confirmation required by ``confirm`` did not arrive in
                time.
        """

    def add_many(self, jobs: Iterable[NewJob]) -> list[JobId | None]:
        """Add many jobs in order, in few round trips. All are checked before the first is sent.

        Not atomic: calls of up to 100 jobs follow one another, and workers may start with the first. In a
        queue with shards the order holds within an ordering key.

        Returns:
            The id of each job, in order; None for a job that was not added because its ``job_id`` is in use
            or it is a duplicate.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: A job cannot be sent; nothing was sent.
            ServerBusy: The server refused a part, for example when out of memory; the rest was added.
            OutcomeUnknown: The connection broke after sending, or some shards could not be reached; then the
                message has how many jobs were added. Safe to repeat only if all jobs have a ``job_id``.
            NotConfirmed: The jobs were added, but the confirmation required by ``confirm`` did not arrive in
                time.
        """

    def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: Duration = 30,
        **keywords: Unpack[AwaitedKeywords],
    ) -> Any:
        """Add one job and wait until it has ended; returns its result.

        Once the job was added, the wait survives outages of the server, such as a failover.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: As for ``add``, without options that remove the job before it can be read.
            timeout: The max time to wait, to the millisecond. The job continues after a timeout. To limit the
                run time of the job, use ``options=JobOptions(timeout=...)``.
            keywords: Single options that override those in ``options``.

        Raises:
            JobFailed: It has failed permanently, was revoked, or has expired; ``exc.reason`` is the reason.
            WaitTimeout: It has not ended in time; it may still end.
            JobNotFound: It was removed.
            InvalidJob: The options remove the job, or as for ``add``. Nothing was added.
            TransportError: The server could not add it, or was unreachable at the end of the time.
        """

    def get_job(self, job_id: str, *, lenient: bool = False) -> Job:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Do not raise for data or a result that is not valid JSON: return the job without both, as
                ``broken``.

        Raises:
            JobNotFound: No job has this id.
            DecodeError: Its data or result is not valid JSON, and ``lenient`` is false.
        """

    def wait_of(self, job_id: str) -> Wait | None:
        """Explain why a job is not running, and until when, as ``Flow.waits``; None if it runs or has ended.

        Also None for a job that waits for its dependencies.

        Raises:
            JobNotFound: No job has this id.
        """

    def retry(self, job_id: str) -> None:
        """Rerun a failed job immediately, without its delay; its attempts are counted from zero.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It has not failed, or it is a node of a flow: retry the flow.
        """

    def revoke(self, job_id: str) -> Revoked:
        """End a job that is not running; request that a running one stop.

        Returns:
            ``revoked``: the job has failed, with that reason. ``flagged``: it is running, and its worker is
            notified; it may still complete.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It has ended; nothing was changed.
        """

    def cancel(self, job_ids: Iterable[str], *, cascade: bool = False) -> CancelledJobs:
        """End jobs as ``revoke`` does, unless another job waits for one of them: it would wait for ever.

        All or none, unless another client lets a job wait for one of them at the same time; safe to repeat.
        In a queue with shards: all or none of those in one shard.

        Args:
            job_ids: At most 100 jobs of this queue.
            cascade: Cancel the jobs that wait for them too, at most 200 in all.

        Returns:
            What became of each: the jobs that had ended, and ids that do not exist, are listed separately.

        Raises:
            HasDependents: A job that is not in the list, or with ``cascade`` one in another queue, waits for
                one of them. Nothing was changed.
            JobStateConflict: One of them, or one that waits for it, is a node of a flow. Nothing was changed.
            InvalidJob: There are too many jobs. Nothing was changed.
        """

    def depends_on(self, job_id: str, others: Iterable[str]) -> ChangedDependencies:
        """Make a job that waits to be started wait for other jobs of this queue to complete. Repeatable.

        A job that fails holds it back until it is retried and completes, is removed, or ``depends_off``.
        Afterwards it returns to its place: with its priority, and delayed until the time when it was due.
        Between nodes, use a flow, which has rules and policies for failures.

        Args:
            job_id: The job: waiting, delayed, prioritized, or waiting for other jobs.
            others: At most 100 jobs.

        Returns:
            What became of each: jobs that have ended, and ids that do not exist, are listed separately.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: The job has begun, has an ordering key, or is a node of a flow; or one of the
                others waits for it. Nothing was changed.
            InvalidJob: There are too many jobs, or one of them is in another shard than the job; nothing was
                changed.
        """

    def depends_off(self, job_id: str, others: Iterable[str] | None = None) -> ChangedDependencies:
        """Make a job no longer wait for these jobs, or for any. Repeatable until the job can start.

        Args:
            job_id: A job that waits for others.
            others: At most 100 jobs of this queue; None: all that it waits for.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: The job does not wait for other jobs, or only for those that its handler has
                added; or it is a node of a flow. Nothing was changed.
            InvalidJob: There are too many jobs; nothing was sent.
        """

    def take_back(self, job_id: str, *, grace: Duration = 0) -> str:
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

    def remove(self, job_id: str) -> None:
        """Delete a job with its logs, its output and its place in the queue.

        A job that depends on it stops waiting. Later calls of a running attempt are refused.

        Raises:
            JobNotFound: No job has this id, as after an earlier call.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """

    def change_priority(self, job_id: str, priority: int) -> None:
        """Change the priority of a job that has not started, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    def change_delay(self, job_id: str, delay: Duration) -> None:
        """Start a job that has not started ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    def promote(self, job_id: str) -> None:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It is not delayed.
        """

    def tag(self, job_id: str, tags: Iterable[str]) -> list[str]:
        """Add tags to a job, by which ``tagged`` finds it; returns all its tags. Repeatable.

        Raises:
            InvalidJob: A tag is not valid, or the job would have more than 32; nothing was changed.
            JobNotFound: No job has this id.
        """

    def untag(self, job_id: str, tags: Iterable[str]) -> list[str]:
        """Take tags off a job; returns the remaining ones. Ignores tags that it does not have. Repeatable.

        Raises:
            InvalidJob: A tag is not valid; nothing was sent.
            JobNotFound: No job has this id.
        """

    def track(self, job_id: str) -> None:
        """Track a job: ``watch_tracked`` and ``glidemq track`` report its changes, until ``untrack``.

        From now on the job also records its ``history``. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob: The queue tracks 1,000 jobs and flows, which is the limit.
        """

    def untrack(self, job_id: str) -> None:
        """Stop tracking a job, also one that was removed. Repeatable."""

    def add_log(self, job_id: str, line: str) -> None:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: No job has this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """

    def history(self, job_id: str) -> JobHistory:
        """Read what happened to a job, oldest first: that it was added, started, lost, failed and so on.

        A job records its changes if it has the option ``history``, or since it is tracked: the last 99. For
        any other job, also of Node workers, this returns what its fields and the events of the queue still
        show: the last start and end, and what is among the last 1,000 events of the queue.

        Returns:
            The entries; ``is_partial`` is true if some may be missing.

        Raises:
            JobNotFound: No job has this id.
        """

    def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> JobLogs:
        """Read log lines, oldest first; none for a missing job.

        Args:
            job_id: The job.
            offset: The number of lines to skip; -20: all but the last 20. Removed lines count too.
            limit: The max number of lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """

    def set_progress(self, job_id: str, progress: JsonLike) -> None:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """

    def update_data(self, job_id: str, data: JsonLike) -> None:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    def report_tokens(self, job_id: str, tokens: int) -> None:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: No job has this id.
        """

    def children_values(self, job_id: str) -> dict[JobRef, Any]:
        """Read the results of the completed jobs that a job depends on, in any queue.

        Raises:
            ChildrenFailed: Some ended without a result: failed, expired, revoked or removed. The exception
                has their reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """

    def parents(self, job_id: str) -> list[JobRef]:
        """List the dependents of a job, in any queue.

        Raises:
            JobNotFound: No job has this id.
        """

    def suspend_info(self, job_id: str) -> SuspendInfo | None:
        """Read why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: No job has this id.
        """

    def signal(self, job_id: str, name: str, data: JsonLike = None) -> bool:
        """Send a signal to a suspended job, which resumes and can read it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    def add_output(self, job_id: str, fields: Mapping[str, str]) -> str:
        """Append an entry to the output of a job: texts by name, at most 1 MiB. Returns the id of the entry.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """

    def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: Duration = 0
    ) -> list[OutputChunk]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; 0: does not wait.

        Raises:
            ConfigurationError: ``limit`` is less than 1, or ``timeout`` is not valid; nothing was sent.
        """

    def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> list[JobMessage]:
        """Read the messages that attempts of a job wrote by ``ctx.write_message``, oldest first.

        Args:
            job_id: The job.
            after: Only messages after this position, the ``id`` of a message; None: from the start.
            limit: The max number of messages, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` is not a position; nothing was sent.
        """

    def accepted_attempts(self, job_ids: Sequence[str]) -> Mapping[str, AcceptedAttempt]:
        """Read the attempts with accepted results, by job; only those that have written messages.

        A rerun job has none until it has completed again.
        """

    def get_jobs(
        self,
        state: JobStateLike,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        exclude_data: bool = False,
    ) -> list[Job]:
        """List the jobs of one state.

        Waiting jobs are in the order in which workers take them, ended and delayed ones by time. Jobs that
        wait for other jobs have no order, and to find them, all keys of the server are scanned in pages. A
        job with data that is not valid JSON has ``broken`` set. Slices of arrays that
        workers hold are among the active ones: the id is that of the array's job, and a number in braces.

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

    def search(
        self,
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        max_examined: int | None = MAX_EXAMINED,
    ) -> FoundJobs:
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

    def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> JobPage:
        """Examine about a thousand keys and return the matching jobs.

        Start with cursor ``"0"`` and continue with the cursor of each page until it is ``"0"`` again. A page
        may be empty. A job that exists during the whole scan is returned at least once.

        Raises:
            ConfigurationError: The state is unknown, or ``cursor`` is not valid; nothing was sent.
        """

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        """Read the states of many jobs, in this order, 500 per round trip; None for a missing job."""

    def counts(self, *, indexed_only: bool = False, max_examined: int | None = MAX_EXAMINED) -> JobCounts:
        """Count the jobs in each state. A job that a worker has fetched but not started counts as active.

        Args:
            indexed_only: Omit the jobs that wait for other jobs or for their ordering key. glide-mq has no
                index for those, and to count them, all keys of the server are scanned.
            max_examined: The approximate max number of jobs to examine for those, by default what takes about
                a second; None for all.

        Returns:
            The counts; ``at_least`` has the states whose count stopped at ``max_examined``, ``elements`` how
            many elements of arrays wait and run. Elements are not jobs: the counts are without them.
        """

    def tags(self, *, offset: int = 0, limit: int = 100) -> list[TagCount]:
        """List the tags with their numbers of jobs, most used first.

        Jobs that another library has removed may be counted for some minutes.

        Raises:
            InvalidJob: ``offset`` is negative, or ``limit`` less than 1; nothing was sent.
        """

    def tagged(
        self, tag: str, *, offset: int = 0, limit: int = 100, exclude_data: bool = False
    ) -> TaggedJobs:
        """List the jobs with a tag, those that have had it longest first; empty if no job has it.

        Args:
            tag: The tag.
            offset: The number of jobs to skip.
            limit: The max number of jobs to return; ``total`` of the result is how many have the tag.
            exclude_data: Omit data and result, and do not transfer them.

        Raises:
            InvalidJob: An argument is not valid; nothing was sent.
        """

    def tracked(self) -> list[Tracked]:
        """List the tracked jobs and flows as they are now, those tracked longest first."""

    def watch_tracked(self) -> Iterator[TrackedChange]:
        """Yield the changes of the tracked jobs and flows, without an end; first what each is now.

        Reports each difference once: state, attempts, progress, options and tags of jobs, state and counts of
        flows, and that one of them was removed. What changes twice between two reads is reported once; a read
        follows each event of a tracked job, and at most a second later. Jobs that are tracked during the
        watch are included from then on. Lost events cause no missed change. After the first read the watch
        survives outages of the server, such as a failover, and logs them.

        Raises:
            TransportError: The server is unreachable at the first read.
        """

    def now(self) -> datetime:
        """Return the server's time, by which leases and due times are set: UTC, within a few milliseconds."""

    def pause(self) -> None:
        """Stop workers of this package from starting jobs; running jobs continue. Repeatable.

        ``resume`` ends the pause. Node workers ignore it, and so do the workers of broadcasts.
        """

    def resume(self) -> None:
        """End the pause: workers start jobs again. Repeatable."""

    def is_paused(self) -> bool:
        """Whether the queue is paused."""

    def clean(self, state: EndedState, *, grace: Duration = 0, limit: int = 1000) -> list[JobId]:
        """Delete jobs that ended at least ``grace`` ago, oldest first; returns their ids.

        Nodes of unfinished flows remain, and so do children whose results an unfinished job may read.
        Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """

    def drain(self, *, delayed: bool = False) -> int:
        """Delete the waiting jobs, including those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of unfinished flows. A job that
        waited only for deleted jobs becomes ready to run, and is deleted too.

        Args:
            delayed: Delete delayed jobs too, including those that wait for another attempt.
        """

    def obliterate(self, *, force: bool = False) -> None:
        """Delete everything in the queue: jobs, flows with this home, events, settings, schedules.

        Stop its workers first: they recreate the keys they need. Repeatable. A queue with shards keeps these,
        with their limits and numbers of jobs, since other clients use them.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """

    def shards(self) -> int:
        """How many shards the queue has, including those that are not used yet; 0 for none."""

    def add_shards(self, count: int) -> int:
        """Let the queue have so many shards; returns how many it has. Repeatable.

        Workers serve the new shards within seconds. Clients add jobs and flows to them after a minute, all
        from the same time on; a new queue uses them at once. Flows end in the shard where they began, and the
        jobs of an ordering key stay together as long as some of them wait or run. Pauses, limits and the
        dead-letter queue hold for the new shards too.

        Args:
            count: At most 128. Shards cannot be removed.

        Raises:
            ConfigurationError: The number is not valid, or this is a shard itself.
            ShardsMismatch: The queue has more. Nothing was changed.
            InvalidJob: The limit of running jobs cannot be divided among so many. Nothing was changed.
        """

    def retry_failed(self, count: int | None = None) -> int:
        """Rerun failed jobs, oldest first, all or at most ``count``; returns how many.

        "All" are the failed jobs at the start: jobs that fail again during the call remain failed, also those
        that another client has retried, which are not counted. So do nodes of flows: retry the flow.

        Raises:
            InvalidJob: ``count`` is less than 1; nothing was sent.
        """

    def failures(self, *, max_examined: int | None = MAX_EXAMINED) -> FailureGroups:
        """Group the failed jobs by cause, largest group first, also those of Node workers.

        A group is what the handler named (``ctx.fail(group=)``); otherwise the class of the exception, or the
        first line of the reason; of an array, that of one of its elements. A node that failed only because of
        another one is not counted, but ``held_back`` of that other one's group is: for this, the nodes of the
        flows are read.

        Args:
            max_examined: The approximate max number of jobs and nodes to examine, newest failures first, by
                default what takes some seconds; None for all.

        Returns:
            The groups; ``is_partial`` is true if reading stopped at ``max_examined``: all numbers may be
            higher. If only flows were left then, ``held_back_is_partial`` alone is true: ``held_back``
            may be higher.
        """

    def retry_failures(self, group: str, *, limit: int = 1000) -> int:
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

    def remove_failures(self, group: str, *, limit: int = 1000) -> list[JobId]:
        """Delete the failed jobs of a group, oldest first; returns their ids. Keeps what ``clean`` keeps.

        Repeatable; stops half-way if the connection breaks.

        Args:
            group: A group of ``failures``.
            limit: The max number of jobs to delete.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
        """

    def set_global_concurrency(self, limit: int | None) -> None:
        """Limit how many jobs run at the same time over all workers; None removes the limit. Repeatable.

        A queue with shards divides the limit evenly among them and itself.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent. Or a queue with shards cannot divide it
                evenly among them and itself: it is less than their number.
        """

    def global_concurrency(self) -> int | None:
        """Read how many jobs may run at the same time over all workers; None: no limit."""

    def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable.

        A queue with shards divides the limit evenly among them and itself.
        """

    def global_rate_limit(self) -> RateLimit | None:
        """Read how often jobs may start over all workers; None: no limit."""

    def rate_limit_group(self, key: str, duration: Duration, *, extend: bool = True) -> datetime:
        """Block the jobs of an ordering key for a while; returns until when.

        Args:
            key: The ordering key, with or without jobs.
            duration: From now on, at least a millisecond.
            extend: True: a later end that was set earlier remains. False: it is replaced.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """

    def groups(self) -> list[GroupInfo]:
        """List the ordering keys in use, with their numbers of running and blocked jobs.

        A key without waiting or running jobs is removed after its limits have recovered, and may be listed
        for a while longer.
        """

    def metrics(self, state: EndedState = JobState.COMPLETED) -> list[MetricPoint]:
        """Read how many jobs ended in a state per minute, and their run times: about a day, oldest first.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """

    def recent_statistics(self, period: Duration = timedelta(hours=1)) -> RecentStatistics:
        """Read how many jobs ended in the last hour, or another period, and how long they waited and ran.

        The durations are those of whole ten minutes and of the jobs that workers of this package ran, which
        report them every five seconds; the ends are those of whole minutes, by any worker.

        Args:
            period: From a minute to a day.

        Raises:
            ConfigurationError: ``period`` is out of range; nothing was sent.
        """

    def statistics(self, day: date | None = None) -> QueueStatistics:
        """Read how long the jobs of a day waited and ran, by handler, with histograms and percentiles.

        Counts the jobs that workers of this package ran; those of Node workers are in ``metrics`` only.
        Workers report every five seconds and when they stop; a killed one takes its last seconds with it.
        Kept for 30 days.

        Args:
            day: A day in UTC; None: today. A day on which nothing ran has counts of 0.

        Raises:
            ConfigurationError: The day is in the future, or its statistics are gone; nothing was sent.
        """

    def lost_workers(self) -> list[LostWorker]:
        """List the lost workers, each with the number of jobs that wait until its leases end."""

    def workers(self) -> list[WorkerInfo]:
        """List the live workers of the queue, oldest first."""

    def set_dead_letter_queue(self, name: str | None) -> None:
        """Set the queue to which workers copy permanently failed jobs; None: no queue. Repeatable.

        While workers of this package serve the queue, this covers every cause of failure: the handler, an
        expired time to live, workers lost to the job. Not covered: nodes that end because of other nodes, and
        jobs revoked before they ran. The job is copied once, within seconds, even if the worker dies.

        Raises:
            ConfigurationError: The name is not valid, or it is this queue; nothing was sent.
        """

    def dead_letter_queue(self) -> str | None:
        """Read the name of the dead-letter queue; None if none is set."""

    def dead_letters(self, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """List the dead letters of this queue, oldest first."""

    def get_dead_letter(self, letter_id: str) -> DeadLetter:
        """Read one dead letter.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
        """

    def remove_dead_letter(self, letter_id: str) -> None:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: This queue has no dead letter with this id, as after an earlier call.
        """

    def replay_dead_letter(self, letter_id: str) -> JobId:
        """Rerun the failed job, so that its dependents can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job was removed and had to be added again.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """

    def report_usage(self, job_id: str, usage: Usage) -> None:
        """Report the usage of a job; replaces an earlier report, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: No job has this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """

    def usage(self, job_id: str) -> Usage | None:
        """Read the reported usage of a job; None without a report."""

    def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> UsageSummary:
        """Sum up the usage of jobs, by minute, within the last 30 days.

        Args:
            start: With a time zone; by default an hour before ``end``.
            end: With a time zone; by default now.
            queues: Names of queues; by default all queues under this prefix that have usage.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """

    def flow_budget(self, root_id: str) -> FlowBudget | None:
        """Read the budget of a flow of glide-mq's producer by the id of its root job; None without one."""

class AsyncQueue(AsyncFacade):
    """One queue on one server, with awaitable calls, for one event loop.

    Args:
        name: 1 to 256 characters, none of ``{ } :``.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        compression: ``gzip`` compresses the data of added jobs; every reader decompresses it.
        shards: How many shards the queue has, 1 to 128: a cluster spreads these over its primaries. A new
            queue gets them with the first call. None: as many as the queue has.
        clock: For tests.

    Raises:
        ConfigurationError: The name, the URL, the prefix, the compression or the number of shards is not
            valid. No connection was opened: the first call does that. Each call until one succeeds raises
            ``ShardsMismatch`` if the queue never had this number of shards.
    """

    _keys: QueueKeys
    _operations: QueueOperations

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        shards: int | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    async def add(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> JobId:
        """Add one job; on return it is visible to workers, and as durable as ``confirm`` requires.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: Attempts, delay, priority, ``job_id``, and so on.
            keywords: Single options that override those in ``options``: ``attempts=3, delay=10``. See
                ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
            InvalidJob: The name is empty, an option is not valid, or the ``job_id`` is in use; nothing was
                added.
            JobSkipped: It is a duplicate according to ``deduplication``; nothing was added.
            OutcomeUnknown: The connection broke after sending. Safe to repeat only with a ``job_id``.
            NotConfirmed: The job was added, but the confirmation required by ``confirm`` did not arrive in
                time.
        """

    async def add_many(self, jobs: Iterable[NewJob]) -> list[JobId | None]:
        """Add many jobs in order, in few round trips. All are checked before the first is sent.

        Not atomic: calls of up to 100 jobs follow one another, and workers may start with the first. In a
        queue with shards the order holds within an ordering key.

        Returns:
            The id of each job, in order; None for a job that was not added because its ``job_id`` is in use
            or it is a duplicate.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: A job cannot be sent; nothing was sent.
            ServerBusy: The server refused a part, for example when out of memory; the rest was added.
            OutcomeUnknown: The connection broke after sending, or some shards could not be reached; then the
                message has how many jobs were added. Safe to repeat only if all jobs have a ``job_id``.
            NotConfirmed: The jobs were added, but the confirmation required by ``confirm`` did not arrive in
                time.
        """

    async def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: Duration = 30,
        **keywords: Unpack[AwaitedKeywords],
    ) -> Any:
        """Add one job and wait until it has ended; returns its result.

        Once the job was added, the wait survives outages of the server, such as a failover.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: As for ``add``, without options that remove the job before it can be read.
            timeout: The max time to wait, to the millisecond. The job continues after a timeout. To limit the
                run time of the job, use ``options=JobOptions(timeout=...)``.
            keywords: Single options that override those in ``options``.

        Raises:
            JobFailed: It has failed permanently, was revoked, or has expired; ``exc.reason`` is the reason.
            WaitTimeout: It has not ended in time; it may still end.
            JobNotFound: It was removed.
            InvalidJob: The options remove the job, or as for ``add``. Nothing was added.
            TransportError: The server could not add it, or was unreachable at the end of the time.
        """

    async def get_job(self, job_id: str, *, lenient: bool = False) -> Job:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Do not raise for data or a result that is not valid JSON: return the job without both, as
                ``broken``.

        Raises:
            JobNotFound: No job has this id.
            DecodeError: Its data or result is not valid JSON, and ``lenient`` is false.
        """

    async def wait_of(self, job_id: str) -> Wait | None:
        """Explain why a job is not running, and until when, as ``Flow.waits``; None if it runs or has ended.

        Also None for a job that waits for its dependencies.

        Raises:
            JobNotFound: No job has this id.
        """

    async def retry(self, job_id: str) -> None:
        """Rerun a failed job immediately, without its delay; its attempts are counted from zero.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It has not failed, or it is a node of a flow: retry the flow.
        """

    async def revoke(self, job_id: str) -> Revoked:
        """End a job that is not running; request that a running one stop.

        Returns:
            ``revoked``: the job has failed, with that reason. ``flagged``: it is running, and its worker is
            notified; it may still complete.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It has ended; nothing was changed.
        """

    async def cancel(self, job_ids: Iterable[str], *, cascade: bool = False) -> CancelledJobs:
        """End jobs as ``revoke`` does, unless another job waits for one of them: it would wait for ever.

        All or none, unless another client lets a job wait for one of them at the same time; safe to repeat.
        In a queue with shards: all or none of those in one shard.

        Args:
            job_ids: At most 100 jobs of this queue.
            cascade: Cancel the jobs that wait for them too, at most 200 in all.

        Returns:
            What became of each: the jobs that had ended, and ids that do not exist, are listed separately.

        Raises:
            HasDependents: A job that is not in the list, or with ``cascade`` one in another queue, waits for
                one of them. Nothing was changed.
            JobStateConflict: One of them, or one that waits for it, is a node of a flow. Nothing was changed.
            InvalidJob: There are too many jobs. Nothing was changed.
        """

    async def depends_on(self, job_id: str, others: Iterable[str]) -> ChangedDependencies:
        """Make a job that waits to be started wait for other jobs of this queue to complete. Repeatable.

        A job that fails holds it back until it is retried and completes, is removed, or ``depends_off``.
        Afterwards it returns to its place: with its priority, and delayed until the time when it was due.
        Between nodes, use a flow, which has rules and policies for failures.

        Args:
            job_id: The job: waiting, delayed, prioritized, or waiting for other jobs.
            others: At most 100 jobs.

        Returns:
            What became of each: jobs that have ended, and ids that do not exist, are listed separately.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: The job has begun, has an ordering key, or is a node of a flow; or one of the
                others waits for it. Nothing was changed.
            InvalidJob: There are too many jobs, or one of them is in another shard than the job; nothing was
                changed.
        """

    async def depends_off(self, job_id: str, others: Iterable[str] | None = None) -> ChangedDependencies:
        """Make a job no longer wait for these jobs, or for any. Repeatable until the job can start.

        Args:
            job_id: A job that waits for others.
            others: At most 100 jobs of this queue; None: all that it waits for.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: The job does not wait for other jobs, or only for those that its handler has
                added; or it is a node of a flow. Nothing was changed.
            InvalidJob: There are too many jobs; nothing was sent.
        """

    async def take_back(self, job_id: str, *, grace: Duration = 0) -> str:
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

    async def remove(self, job_id: str) -> None:
        """Delete a job with its logs, its output and its place in the queue.

        A job that depends on it stops waiting. Later calls of a running attempt are refused.

        Raises:
            JobNotFound: No job has this id, as after an earlier call.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """

    async def change_priority(self, job_id: str, priority: int) -> None:
        """Change the priority of a job that has not started, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    async def change_delay(self, job_id: str, delay: Duration) -> None:
        """Start a job that has not started ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    async def promote(self, job_id: str) -> None:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It is not delayed.
        """

    async def tag(self, job_id: str, tags: Iterable[str]) -> list[str]:
        """Add tags to a job, by which ``tagged`` finds it; returns all its tags. Repeatable.

        Raises:
            InvalidJob: A tag is not valid, or the job would have more than 32; nothing was changed.
            JobNotFound: No job has this id.
        """

    async def untag(self, job_id: str, tags: Iterable[str]) -> list[str]:
        """Take tags off a job; returns the remaining ones. Ignores tags that it does not have. Repeatable.

        Raises:
            InvalidJob: A tag is not valid; nothing was sent.
            JobNotFound: No job has this id.
        """

    async def track(self, job_id: str) -> None:
        """Track a job: ``watch_tracked`` and ``glidemq track`` report its changes, until ``untrack``.

        From now on the job also records its ``history``. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob: The queue tracks 1,000 jobs and flows, which is the limit.
        """

    async def untrack(self, job_id: str) -> None:
        """Stop tracking a job, also one that was removed. Repeatable."""

    async def add_log(self, job_id: str, line: str) -> None:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: No job has this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """

    async def history(self, job_id: str) -> JobHistory:
        """Read what happened to a job, oldest first: that it was added, started, lost, failed and so on.

        A job records its changes if it has the option ``history``, or since it is tracked: the last 99. For
        any other job, also of Node workers, this returns what its fields and the events of the queue still
        show: the last start and end, and what is among the last 1,000 events of the queue.

        Returns:
            The entries; ``is_partial`` is true if some may be missing.

        Raises:
            JobNotFound: No job has this id.
        """

    async def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> JobLogs:
        """Read log lines, oldest first; none for a missing job.

        Args:
            job_id: The job.
            offset: The number of lines to skip; -20: all but the last 20. Removed lines count too.
            limit: The max number of lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """

    async def set_progress(self, job_id: str, progress: JsonLike) -> None:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """

    async def update_data(self, job_id: str, data: JsonLike) -> None:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    async def report_tokens(self, job_id: str, tokens: int) -> None:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: No job has this id.
        """

    async def children_values(self, job_id: str) -> dict[JobRef, Any]:
        """Read the results of the completed jobs that a job depends on, in any queue.

        Raises:
            ChildrenFailed: Some ended without a result: failed, expired, revoked or removed. The exception
                has their reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """

    async def parents(self, job_id: str) -> list[JobRef]:
        """List the dependents of a job, in any queue.

        Raises:
            JobNotFound: No job has this id.
        """

    async def suspend_info(self, job_id: str) -> SuspendInfo | None:
        """Read why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: No job has this id.
        """

    async def signal(self, job_id: str, name: str, data: JsonLike = None) -> bool:
        """Send a signal to a suspended job, which resumes and can read it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    async def add_output(self, job_id: str, fields: Mapping[str, str]) -> str:
        """Append an entry to the output of a job: texts by name, at most 1 MiB. Returns the id of the entry.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """

    async def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: Duration = 0
    ) -> list[OutputChunk]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; 0: does not wait.

        Raises:
            ConfigurationError: ``limit`` is less than 1, or ``timeout`` is not valid; nothing was sent.
        """

    async def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> list[JobMessage]:
        """Read the messages that attempts of a job wrote by ``ctx.write_message``, oldest first.

        Args:
            job_id: The job.
            after: Only messages after this position, the ``id`` of a message; None: from the start.
            limit: The max number of messages, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` is not a position; nothing was sent.
        """

    async def accepted_attempts(self, job_ids: Sequence[str]) -> Mapping[str, AcceptedAttempt]:
        """Read the attempts with accepted results, by job; only those that have written messages.

        A rerun job has none until it has completed again.
        """

    async def get_jobs(
        self,
        state: JobStateLike,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        exclude_data: bool = False,
    ) -> list[Job]:
        """List the jobs of one state.

        Waiting jobs are in the order in which workers take them, ended and delayed ones by time. Jobs that
        wait for other jobs have no order, and to find them, all keys of the server are scanned in pages. A
        job with data that is not valid JSON has ``broken`` set. Slices of arrays that
        workers hold are among the active ones: the id is that of the array's job, and a number in braces.

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

    async def search(
        self,
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        max_examined: int | None = MAX_EXAMINED,
    ) -> FoundJobs:
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

    async def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> JobPage:
        """Examine about a thousand keys and return the matching jobs.

        Start with cursor ``"0"`` and continue with the cursor of each page until it is ``"0"`` again. A page
        may be empty. A job that exists during the whole scan is returned at least once.

        Raises:
            ConfigurationError: The state is unknown, or ``cursor`` is not valid; nothing was sent.
        """

    async def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        """Read the states of many jobs, in this order, 500 per round trip; None for a missing job."""

    async def counts(
        self, *, indexed_only: bool = False, max_examined: int | None = MAX_EXAMINED
    ) -> JobCounts:
        """Count the jobs in each state. A job that a worker has fetched but not started counts as active.

        Args:
            indexed_only: Omit the jobs that wait for other jobs or for their ordering key. glide-mq has no
                index for those, and to count them, all keys of the server are scanned.
            max_examined: The approximate max number of jobs to examine for those, by default what takes about
                a second; None for all.

        Returns:
            The counts; ``at_least`` has the states whose count stopped at ``max_examined``, ``elements`` how
            many elements of arrays wait and run. Elements are not jobs: the counts are without them.
        """

    async def tags(self, *, offset: int = 0, limit: int = 100) -> list[TagCount]:
        """List the tags with their numbers of jobs, most used first.

        Jobs that another library has removed may be counted for some minutes.

        Raises:
            InvalidJob: ``offset`` is negative, or ``limit`` less than 1; nothing was sent.
        """

    async def tagged(
        self, tag: str, *, offset: int = 0, limit: int = 100, exclude_data: bool = False
    ) -> TaggedJobs:
        """List the jobs with a tag, those that have had it longest first; empty if no job has it.

        Args:
            tag: The tag.
            offset: The number of jobs to skip.
            limit: The max number of jobs to return; ``total`` of the result is how many have the tag.
            exclude_data: Omit data and result, and do not transfer them.

        Raises:
            InvalidJob: An argument is not valid; nothing was sent.
        """

    async def tracked(self) -> list[Tracked]:
        """List the tracked jobs and flows as they are now, those tracked longest first."""

    def watch_tracked(self) -> AsyncIterator[TrackedChange]:
        """Yield the changes of the tracked jobs and flows, without an end; first what each is now.

        Reports each difference once: state, attempts, progress, options and tags of jobs, state and counts of
        flows, and that one of them was removed. What changes twice between two reads is reported once; a read
        follows each event of a tracked job, and at most a second later. Jobs that are tracked during the
        watch are included from then on. Lost events cause no missed change. After the first read the watch
        survives outages of the server, such as a failover, and logs them.

        Raises:
            TransportError: The server is unreachable at the first read.
        """

    async def now(self) -> datetime:
        """Return the server's time, by which leases and due times are set: UTC, within a few milliseconds."""

    async def pause(self) -> None:
        """Stop workers of this package from starting jobs; running jobs continue. Repeatable.

        ``resume`` ends the pause. Node workers ignore it, and so do the workers of broadcasts.
        """

    async def resume(self) -> None:
        """End the pause: workers start jobs again. Repeatable."""

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""

    async def clean(self, state: EndedState, *, grace: Duration = 0, limit: int = 1000) -> list[JobId]:
        """Delete jobs that ended at least ``grace`` ago, oldest first; returns their ids.

        Nodes of unfinished flows remain, and so do children whose results an unfinished job may read.
        Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """

    async def drain(self, *, delayed: bool = False) -> int:
        """Delete the waiting jobs, including those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of unfinished flows. A job that
        waited only for deleted jobs becomes ready to run, and is deleted too.

        Args:
            delayed: Delete delayed jobs too, including those that wait for another attempt.
        """

    async def obliterate(self, *, force: bool = False) -> None:
        """Delete everything in the queue: jobs, flows with this home, events, settings, schedules.

        Stop its workers first: they recreate the keys they need. Repeatable. A queue with shards keeps these,
        with their limits and numbers of jobs, since other clients use them.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """

    async def shards(self) -> int:
        """How many shards the queue has, including those that are not used yet; 0 for none."""

    async def add_shards(self, count: int) -> int:
        """Let the queue have so many shards; returns how many it has. Repeatable.

        Workers serve the new shards within seconds. Clients add jobs and flows to them after a minute, all
        from the same time on; a new queue uses them at once. Flows end in the shard where they began, and the
        jobs of an ordering key stay together as long as some of them wait or run. Pauses, limits and the
        dead-letter queue hold for the new shards too.

        Args:
            count: At most 128. Shards cannot be removed.

        Raises:
            ConfigurationError: The number is not valid, or this is a shard itself.
            ShardsMismatch: The queue has more. Nothing was changed.
            InvalidJob: The limit of running jobs cannot be divided among so many. Nothing was changed.
        """

    async def retry_failed(self, count: int | None = None) -> int:
        """Rerun failed jobs, oldest first, all or at most ``count``; returns how many.

        "All" are the failed jobs at the start: jobs that fail again during the call remain failed, also those
        that another client has retried, which are not counted. So do nodes of flows: retry the flow.

        Raises:
            InvalidJob: ``count`` is less than 1; nothing was sent.
        """

    async def failures(self, *, max_examined: int | None = MAX_EXAMINED) -> FailureGroups:
        """Group the failed jobs by cause, largest group first, also those of Node workers.

        A group is what the handler named (``ctx.fail(group=)``); otherwise the class of the exception, or the
        first line of the reason; of an array, that of one of its elements. A node that failed only because of
        another one is not counted, but ``held_back`` of that other one's group is: for this, the nodes of the
        flows are read.

        Args:
            max_examined: The approximate max number of jobs and nodes to examine, newest failures first, by
                default what takes some seconds; None for all.

        Returns:
            The groups; ``is_partial`` is true if reading stopped at ``max_examined``: all numbers may be
            higher. If only flows were left then, ``held_back_is_partial`` alone is true: ``held_back``
            may be higher.
        """

    async def retry_failures(self, group: str, *, limit: int = 1000) -> int:
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

    async def remove_failures(self, group: str, *, limit: int = 1000) -> list[JobId]:
        """Delete the failed jobs of a group, oldest first; returns their ids. Keeps what ``clean`` keeps.

        Repeatable; stops half-way if the connection breaks.

        Args:
            group: A group of ``failures``.
            limit: The max number of jobs to delete.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
        """

    async def set_global_concurrency(self, limit: int | None) -> None:
        """Limit how many jobs run at the same time over all workers; None removes the limit. Repeatable.

        A queue with shards divides the limit evenly among them and itself.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent. Or a queue with shards cannot divide it
                evenly among them and itself: it is less than their number.
        """

    async def global_concurrency(self) -> int | None:
        """Read how many jobs may run at the same time over all workers; None: no limit."""

    async def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable.

        A queue with shards divides the limit evenly among them and itself.
        """

    async def global_rate_limit(self) -> RateLimit | None:
        """Read how often jobs may start over all workers; None: no limit."""

    async def rate_limit_group(self, key: str, duration: Duration, *, extend: bool = True) -> datetime:
        """Block the jobs of an ordering key for a while; returns until when.

        Args:
            key: The ordering key, with or without jobs.
            duration: From now on, at least a millisecond.
            extend: True: a later end that was set earlier remains. False: it is replaced.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """

    async def groups(self) -> list[GroupInfo]:
        """List the ordering keys in use, with their numbers of running and blocked jobs.

        A key without waiting or running jobs is removed after its limits have recovered, and may be listed
        for a while longer.
        """

    async def metrics(self, state: EndedState = JobState.COMPLETED) -> list[MetricPoint]:
        """Read how many jobs ended in a state per minute, and their run times: about a day, oldest first.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """

    async def recent_statistics(self, period: Duration = timedelta(hours=1)) -> RecentStatistics:
        """Read how many jobs ended in the last hour, or another period, and how long they waited and ran.

        The durations are those of whole ten minutes and of the jobs that workers of this package ran, which
        report them every five seconds; the ends are those of whole minutes, by any worker.

        Args:
            period: From a minute to a day.

        Raises:
            ConfigurationError: ``period`` is out of range; nothing was sent.
        """

    async def statistics(self, day: date | None = None) -> QueueStatistics:
        """Read how long the jobs of a day waited and ran, by handler, with histograms and percentiles.

        Counts the jobs that workers of this package ran; those of Node workers are in ``metrics`` only.
        Workers report every five seconds and when they stop; a killed one takes its last seconds with it.
        Kept for 30 days.

        Args:
            day: A day in UTC; None: today. A day on which nothing ran has counts of 0.

        Raises:
            ConfigurationError: The day is in the future, or its statistics are gone; nothing was sent.
        """

    async def lost_workers(self) -> list[LostWorker]:
        """List the lost workers, each with the number of jobs that wait until its leases end."""

    async def workers(self) -> list[WorkerInfo]:
        """List the live workers of the queue, oldest first."""

    async def set_dead_letter_queue(self, name: str | None) -> None:
        """Set the queue to which workers copy permanently failed jobs; None: no queue. Repeatable.

        While workers of this package serve the queue, this covers every cause of failure: the handler, an
        expired time to live, workers lost to the job. Not covered: nodes that end because of other nodes, and
        jobs revoked before they ran. The job is copied once, within seconds, even if the worker dies.

        Raises:
            ConfigurationError: The name is not valid, or it is this queue; nothing was sent.
        """

    async def dead_letter_queue(self) -> str | None:
        """Read the name of the dead-letter queue; None if none is set."""

    async def dead_letters(self, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """List the dead letters of this queue, oldest first."""

    async def get_dead_letter(self, letter_id: str) -> DeadLetter:
        """Read one dead letter.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
        """

    async def remove_dead_letter(self, letter_id: str) -> None:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: This queue has no dead letter with this id, as after an earlier call.
        """

    async def replay_dead_letter(self, letter_id: str) -> JobId:
        """Rerun the failed job, so that its dependents can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job was removed and had to be added again.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """

    async def report_usage(self, job_id: str, usage: Usage) -> None:
        """Report the usage of a job; replaces an earlier report, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: No job has this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """

    async def usage(self, job_id: str) -> Usage | None:
        """Read the reported usage of a job; None without a report."""

    async def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> UsageSummary:
        """Sum up the usage of jobs, by minute, within the last 30 days.

        Args:
            start: With a time zone; by default an hour before ``end``.
            end: With a time zone; by default now.
            queues: Names of queues; by default all queues under this prefix that have usage.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """

    async def flow_budget(self, root_id: str) -> FlowBudget | None:
        """Read the budget of a flow of glide-mq's producer by the id of its root job; None without one."""
