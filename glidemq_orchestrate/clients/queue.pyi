# Made by `make generated` from the operations. Do not edit.
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Unpack

from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.jobs import JobOperations
from glidemq_orchestrate.clients.operations.queue import Compression, WholeQueueOperations
from glidemq_orchestrate.flows.status import Wait
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.jobs.bounds import LOOK_AT
from glidemq_orchestrate.jobs.changes import Signal, SuspendInfo
from glidemq_orchestrate.jobs.job import Job, JobId, JobLogs
from glidemq_orchestrate.jobs.option_values import JobRef, RateLimit
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, AwaitedKeywords, JobOptions, OptionKeywords
from glidemq_orchestrate.jobs.output import AcceptedAttempt, JobMessage, OutputChunk
from glidemq_orchestrate.jobs.states import EndedState, JobState, JobStateLike
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.listing import FoundJobs, JobCounts, JobPage
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.queues.removal import Revoked
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.codec import Json, JsonLike
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys

__all__ = [
    "AsyncQueue",
    "DeadLetter",
    "FlowBudget",
    "FoundJobs",
    "GroupInfo",
    "JobCounts",
    "JobLogs",
    "JobPage",
    "MetricPoint",
    "NewJob",
    "OutputChunk",
    "Queue",
    "Signal",
    "SuspendInfo",
    "Usage",
    "UsageSummary",
    "WorkerInfo",
]

class QueueOperations(JobOperations, WholeQueueOperations):
    """What can be done with one queue, each written once for both clients."""

class Queue(SyncFacade):
    """One queue on one server.

    Args:
        name: 1 to 256 characters, none of ``{ } :``.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        compression: ``gzip`` packs the data of the jobs that are added; every reader unpacks it.
        clock: For tests.

    Raises:
        ConfigurationError: The name, the URL, the prefix or the compression is not usable. No connection is
            opened before the first call.
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
        """Add one job; it is visible to workers when this returns, and as durable as ``confirm`` demands.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: Attempts, delay, priority, own id, and so on.
            keywords: The same one by one, in place of those in ``options``: ``attempts=3, delay=10``. See
                ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
            InvalidJob: The name is empty, an option is not valid, or the id in the options is taken; nothing
                was added.
            JobSkipped: It is a duplicate by the deduplication in the options; nothing was added.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
            NotConfirmed: The job was added, but not confirmed in time as ``confirm`` requires.
        """

    def add_many(self, jobs: Iterable[NewJob]) -> list[JobId | None]:
        """Add many jobs in order, in few round trips; all are checked before the first is sent.

        Not all or nothing: calls of up to 100 jobs follow one another, and workers start with the first.

        Returns:
            The id of each job, in the order given; None for one that was not added because its own id is
            taken or it is a duplicate.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: A job cannot be sent; nothing was sent.
            ServerBusy: The server refused a part, for example when out of memory; the rest was added.
            OutcomeUnknown: The connection broke after sending. Repeat only when all jobs have own ids.
            NotConfirmed: They were added, but not confirmed in time as ``confirm`` requires.
        """

    def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: Duration = 30,
        **keywords: Unpack[AwaitedKeywords],
    ) -> Json:
        """Add one job and wait until it has ended; returns its result.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: As for ``add``, but without any that remove the job before it can be read.
            timeout: Longest time to wait, to the millisecond. The job continues after a time-out. The time
                limit of the job itself is ``options=JobOptions(timeout=...)``.
            keywords: Other options, in place of those in ``options``.

        Raises:
            JobFailed: It has failed for good, was revoked, or has expired; ``exc.reason`` states which.
            WaitTimeout: It has not ended in time; it may still end.
            JobNotFound: It was removed.
            InvalidJob: The options remove the job; and as for ``add``. Nothing was added.
        """

    def get_job(self, job_id: str, *, lenient: bool = False) -> Job:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Return a job whose data or result is not valid JSON without them, as ``broken``.

        Raises:
            JobNotFound: There is none with this id.
            DecodeError: Its data or result is not valid JSON; not if ``lenient``.
        """

    def wait_of(self, job_id: str) -> Wait | None:
        """Why a job does not run now, and until when, as ``Flow.waits``; None for one that runs or has ended.

        Also None for one that waits for jobs on which it depends.

        Raises:
            JobNotFound: There is none with this id.
        """

    def retry(self, job_id: str) -> None:
        """Run a failed job again, immediately, without its delay; its attempts count from zero.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has not failed, or it is a node of a flow, which is retried as a whole.
        """

    def revoke(self, job_id: str) -> Revoked:
        """End a job that does not run yet; ask a running one to stop.

        Returns:
            ``revoked``: it has failed, with that reason. ``flagged``: it is running, and its worker is
            notified; it may still complete.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has ended; nothing was changed.
        """

    def remove(self, job_id: str) -> None:
        """Delete a job with its logs, its output and its place in the queue.

        A job that waited for it waits no longer. Later calls of a running attempt are refused.

        Raises:
            JobNotFound: There is none with this id. A repeat raises this.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """

    def change_priority(self, job_id: str, priority: int) -> None:
        """Change the priority of a job that does not run yet, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    def change_delay(self, job_id: str, delay: Duration) -> None:
        """Let a job that does not run yet start ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    def promote(self, job_id: str) -> None:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It is not delayed.
        """

    def add_log(self, job_id: str, line: str) -> None:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: There is none with this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """

    def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> JobLogs:
        """Read log lines, the oldest first; none for a job that does not exist.

        Args:
            job_id: The job.
            offset: How many lines to leave out; -20: all but the last 20. Lines that are gone count as well.
            limit: The most lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """

    def set_progress(self, job_id: str, progress: JsonLike) -> None:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """

    def update_data(self, job_id: str, data: JsonLike) -> None:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    def report_tokens(self, job_id: str, tokens: int) -> None:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: There is none with this id.
        """

    def children_values(self, job_id: str) -> dict[JobRef, Json]:
        """The results of the completed jobs that a job waits or waited for, in any queue.

        Raises:
            ChildrenFailed: Some have ended without a result: failed, expired, revoked or removed. It has the
                reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """

    def parents(self, job_id: str) -> list[JobRef]:
        """The jobs that wait for a job, in any queue; in a DAG these are its dependents.

        Raises:
            JobNotFound: There is none with this id.
        """

    def suspend_info(self, job_id: str) -> SuspendInfo | None:
        """Why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: There is none with this id.
        """

    def signal(self, job_id: str, name: str, data: JsonLike = None) -> bool:
        """Send a signal to a suspended job, which then runs again and sees it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    def add_output(self, job_id: str, fields: Mapping[str, str]) -> str:
        """Append to the output stream of a job: texts by name, at most 1 MiB. Returns the entry's id.

        Raises:
            JobNotFound: There is none with this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """

    def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: Duration = 0
    ) -> list[OutputChunk]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; without one it does not wait.
        """

    def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> list[JobMessage]:
        """Read what the attempts of a job have written by ``ctx.write_message``, the oldest first.

        Args:
            job_id: The job.
            after: Only those after this position, the ``id`` of a message; None: from the start.
            limit: At most so many, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` no position; nothing was sent.
        """

    def accepted_attempts(self, job_ids: Sequence[str]) -> Mapping[str, AcceptedAttempt]:
        """The attempts whose results were accepted, by job; only of those that have written messages.

        A job that runs again has none until it has completed again.
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

    def search(
        self,
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        look_at: int | None = LOOK_AT,
    ) -> FoundJobs:
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

    def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> JobPage:
        """Examine about a thousand keys, and return the matching jobs among them.

        Start with cursor ``"0"`` and continue with the cursor of each page until that is ``"0"`` again. A
        page may be empty; a job that exists all the time is returned at least once.
        """

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        """The state of each of many jobs, in this order, 500 in a trip; None for one that does not exist."""

    def counts(self, *, indexed_only: bool = False, look_at: int | None = LOOK_AT) -> JobCounts:
        """How many jobs are in each state. A job that a worker has taken and not started counts as active.

        Args:
            indexed_only: Leave out the jobs that wait for other jobs or for their ordering key: glide-mq has
                no index for those, and counting them means scanning the keys of the server.
            look_at: About how many jobs are examined for that, by default a second's work. None: all.

        Returns:
            The numbers; ``at_least`` holds the states whose counting ended at ``look_at``.
        """

    def now(self) -> datetime:
        """The server's time, by which leases and due times go; to some milliseconds, UTC."""

    def pause(self) -> None:
        """Let no worker of this package start a job until ``resume``; running ones continue. Repeatable.

        Node workers ignore it, and so do the workers of broadcasts.
        """

    def resume(self) -> None:
        """Let workers start jobs again. Repeatable."""

    def is_paused(self) -> bool:
        """Whether the queue is paused."""

    def clean(self, state: EndedState, *, grace: Duration = 0, limit: int = 1000) -> list[JobId]:
        """Delete jobs that ended ``grace`` ago or earlier, the oldest first; returns their ids.

        Nodes of flows that have not ended remain, and so do children that a job which has not ended may
        read. Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """

    def drain(self, *, delayed: bool = False) -> int:
        """Delete the jobs that wait to run, also those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of flows that have not ended. A
        job that waited only for deleted ones is then ready to run, and is deleted too.

        Args:
            delayed: Also delayed jobs, including those that wait for another attempt.
        """

    def obliterate(self, *, force: bool = False) -> None:
        """Delete everything in the queue: jobs, flows whose home it is, events, settings, schedules.

        Stop its workers first: they recreate the keys they need. Repeatable.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """

    def retry_failed(self, count: int | None = None) -> int:
        """Run failed jobs again, the oldest first, all or at most ``count``; returns how many.

        All means as many as have failed at the start: jobs that fail again during the call remain failed.
        Nodes of flows remain failed: a flow is retried as a whole.
        """

    def set_global_concurrency(self, limit: int | None) -> None:
        """Let at most ``limit`` jobs run at the same time over all workers; None removes it. Repeatable.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent.
        """

    def global_concurrency(self) -> int | None:
        """How many jobs may run at the same time over all workers; None: no limit."""

    def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable."""

    def global_rate_limit(self) -> RateLimit | None:
        """How often jobs may start over all workers; None: no limit."""

    def rate_limit_group(self, key: str, duration: Duration, *, extend: bool = True) -> datetime:
        """Hold back the jobs of an ordering key; returns until when.

        Args:
            key: The ordering key; it may have no job yet.
            duration: From now on, at least a millisecond.
            extend: Keep a later end that was set before; otherwise replace it.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """

    def groups(self) -> list[GroupInfo]:
        """The ordering keys in use, with their running jobs and those held back.

        A key of which no job waits or runs goes once no limit of it is used up, and may be
        listed for a while after that.
        """

    def metrics(self, state: EndedState = JobState.COMPLETED) -> list[MetricPoint]:
        """How many jobs ended in a state per minute and how long they ran, oldest first; for about a day.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """

    def lost_workers(self) -> list[LostWorker]:
        """The workers that are gone, with how many jobs wait until their leases end."""

    def workers(self) -> list[WorkerInfo]:
        """The live workers of the queue, the oldest first."""

    def set_dead_letter_queue(self, name: str | None) -> None:
        """Set the queue to which workers copy jobs that have failed for good; None: no queue. Repeatable.

        Covers every cause of failure while workers of this package serve the queue: the handler, a time to
        live, workers that died of it. Not covered: nodes of flows that end because of others, and jobs
        revoked before they ran. The copy is made once, within seconds, even if the worker dies.

        Raises:
            ConfigurationError: The name is not usable, or it is this queue; nothing was sent.
        """

    def dead_letter_queue(self) -> str | None:
        """The queue for dead letters; None if none is set."""

    def dead_letters(self, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """The dead letters of this queue, the oldest first."""

    def get_dead_letter(self, letter_id: str) -> DeadLetter:
        """Read one dead letter.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's.
        """

    def remove_dead_letter(self, letter_id: str) -> None:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's. A repeat raises this.
        """

    def replay_dead_letter(self, letter_id: str) -> JobId:
        """Run the failed job again, so that jobs that wait for it can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job no longer exists and had to be added again.

        Raises:
            JobNotFound: There is no such letter.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """

    def report_usage(self, job_id: str, usage: Usage) -> None:
        """Report what a job used; replaces an earlier report of the job, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: There is none with this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """

    def usage(self, job_id: str) -> Usage | None:
        """The usage that a job reported; None if it reported none."""

    def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> UsageSummary:
        """Sum up what jobs used, by the minute; 30 days are kept.

        Args:
            start: With a time zone; an hour before the end when left out.
            end: With a time zone; now when left out.
            queues: Names; all queues under this prefix that have usage when left out.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """

    def flow_budget(self, root_id: str) -> FlowBudget | None:
        """The budget of a flow made by glide-mq's producer, by its root job's id; None if it has none."""

class AsyncQueue(AsyncFacade):
    """One queue on one server, with awaitable calls, for one event loop.

    Args:
        name: 1 to 256 characters, none of ``{ } :``.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        compression: ``gzip`` packs the data of the jobs that are added; every reader unpacks it.
        clock: For tests.

    Raises:
        ConfigurationError: The name, the URL, the prefix or the compression is not usable. No connection is
            opened before the first call.
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
        """Add one job; it is visible to workers when this returns, and as durable as ``confirm`` demands.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: Attempts, delay, priority, own id, and so on.
            keywords: The same one by one, in place of those in ``options``: ``attempts=3, delay=10``. See
                ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
            InvalidJob: The name is empty, an option is not valid, or the id in the options is taken; nothing
                was added.
            JobSkipped: It is a duplicate by the deduplication in the options; nothing was added.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
            NotConfirmed: The job was added, but not confirmed in time as ``confirm`` requires.
        """

    async def add_many(self, jobs: Iterable[NewJob]) -> list[JobId | None]:
        """Add many jobs in order, in few round trips; all are checked before the first is sent.

        Not all or nothing: calls of up to 100 jobs follow one another, and workers start with the first.

        Returns:
            The id of each job, in the order given; None for one that was not added because its own id is
            taken or it is a duplicate.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: A job cannot be sent; nothing was sent.
            ServerBusy: The server refused a part, for example when out of memory; the rest was added.
            OutcomeUnknown: The connection broke after sending. Repeat only when all jobs have own ids.
            NotConfirmed: They were added, but not confirmed in time as ``confirm`` requires.
        """

    async def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: Duration = 30,
        **keywords: Unpack[AwaitedKeywords],
    ) -> Json:
        """Add one job and wait until it has ended; returns its result.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: As for ``add``, but without any that remove the job before it can be read.
            timeout: Longest time to wait, to the millisecond. The job continues after a time-out. The time
                limit of the job itself is ``options=JobOptions(timeout=...)``.
            keywords: Other options, in place of those in ``options``.

        Raises:
            JobFailed: It has failed for good, was revoked, or has expired; ``exc.reason`` states which.
            WaitTimeout: It has not ended in time; it may still end.
            JobNotFound: It was removed.
            InvalidJob: The options remove the job; and as for ``add``. Nothing was added.
        """

    async def get_job(self, job_id: str, *, lenient: bool = False) -> Job:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Return a job whose data or result is not valid JSON without them, as ``broken``.

        Raises:
            JobNotFound: There is none with this id.
            DecodeError: Its data or result is not valid JSON; not if ``lenient``.
        """

    async def wait_of(self, job_id: str) -> Wait | None:
        """Why a job does not run now, and until when, as ``Flow.waits``; None for one that runs or has ended.

        Also None for one that waits for jobs on which it depends.

        Raises:
            JobNotFound: There is none with this id.
        """

    async def retry(self, job_id: str) -> None:
        """Run a failed job again, immediately, without its delay; its attempts count from zero.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has not failed, or it is a node of a flow, which is retried as a whole.
        """

    async def revoke(self, job_id: str) -> Revoked:
        """End a job that does not run yet; ask a running one to stop.

        Returns:
            ``revoked``: it has failed, with that reason. ``flagged``: it is running, and its worker is
            notified; it may still complete.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has ended; nothing was changed.
        """

    async def remove(self, job_id: str) -> None:
        """Delete a job with its logs, its output and its place in the queue.

        A job that waited for it waits no longer. Later calls of a running attempt are refused.

        Raises:
            JobNotFound: There is none with this id. A repeat raises this.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """

    async def change_priority(self, job_id: str, priority: int) -> None:
        """Change the priority of a job that does not run yet, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    async def change_delay(self, job_id: str, delay: Duration) -> None:
        """Let a job that does not run yet start ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """

    async def promote(self, job_id: str) -> None:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It is not delayed.
        """

    async def add_log(self, job_id: str, line: str) -> None:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: There is none with this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """

    async def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> JobLogs:
        """Read log lines, the oldest first; none for a job that does not exist.

        Args:
            job_id: The job.
            offset: How many lines to leave out; -20: all but the last 20. Lines that are gone count as well.
            limit: The most lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """

    async def set_progress(self, job_id: str, progress: JsonLike) -> None:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """

    async def update_data(self, job_id: str, data: JsonLike) -> None:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    async def report_tokens(self, job_id: str, tokens: int) -> None:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: There is none with this id.
        """

    async def children_values(self, job_id: str) -> dict[JobRef, Json]:
        """The results of the completed jobs that a job waits or waited for, in any queue.

        Raises:
            ChildrenFailed: Some have ended without a result: failed, expired, revoked or removed. It has the
                reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """

    async def parents(self, job_id: str) -> list[JobRef]:
        """The jobs that wait for a job, in any queue; in a DAG these are its dependents.

        Raises:
            JobNotFound: There is none with this id.
        """

    async def suspend_info(self, job_id: str) -> SuspendInfo | None:
        """Why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: There is none with this id.
        """

    async def signal(self, job_id: str, name: str, data: JsonLike = None) -> bool:
        """Send a signal to a suspended job, which then runs again and sees it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """

    async def add_output(self, job_id: str, fields: Mapping[str, str]) -> str:
        """Append to the output stream of a job: texts by name, at most 1 MiB. Returns the entry's id.

        Raises:
            JobNotFound: There is none with this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """

    async def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: Duration = 0
    ) -> list[OutputChunk]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; without one it does not wait.
        """

    async def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> list[JobMessage]:
        """Read what the attempts of a job have written by ``ctx.write_message``, the oldest first.

        Args:
            job_id: The job.
            after: Only those after this position, the ``id`` of a message; None: from the start.
            limit: At most so many, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` no position; nothing was sent.
        """

    async def accepted_attempts(self, job_ids: Sequence[str]) -> Mapping[str, AcceptedAttempt]:
        """The attempts whose results were accepted, by job; only of those that have written messages.

        A job that runs again has none until it has completed again.
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

    async def search(
        self,
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        look_at: int | None = LOOK_AT,
    ) -> FoundJobs:
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

    async def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> JobPage:
        """Examine about a thousand keys, and return the matching jobs among them.

        Start with cursor ``"0"`` and continue with the cursor of each page until that is ``"0"`` again. A
        page may be empty; a job that exists all the time is returned at least once.
        """

    async def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        """The state of each of many jobs, in this order, 500 in a trip; None for one that does not exist."""

    async def counts(self, *, indexed_only: bool = False, look_at: int | None = LOOK_AT) -> JobCounts:
        """How many jobs are in each state. A job that a worker has taken and not started counts as active.

        Args:
            indexed_only: Leave out the jobs that wait for other jobs or for their ordering key: glide-mq has
                no index for those, and counting them means scanning the keys of the server.
            look_at: About how many jobs are examined for that, by default a second's work. None: all.

        Returns:
            The numbers; ``at_least`` holds the states whose counting ended at ``look_at``.
        """

    async def now(self) -> datetime:
        """The server's time, by which leases and due times go; to some milliseconds, UTC."""

    async def pause(self) -> None:
        """Let no worker of this package start a job until ``resume``; running ones continue. Repeatable.

        Node workers ignore it, and so do the workers of broadcasts.
        """

    async def resume(self) -> None:
        """Let workers start jobs again. Repeatable."""

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""

    async def clean(self, state: EndedState, *, grace: Duration = 0, limit: int = 1000) -> list[JobId]:
        """Delete jobs that ended ``grace`` ago or earlier, the oldest first; returns their ids.

        Nodes of flows that have not ended remain, and so do children that a job which has not ended may
        read. Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """

    async def drain(self, *, delayed: bool = False) -> int:
        """Delete the jobs that wait to run, also those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of flows that have not ended. A
        job that waited only for deleted ones is then ready to run, and is deleted too.

        Args:
            delayed: Also delayed jobs, including those that wait for another attempt.
        """

    async def obliterate(self, *, force: bool = False) -> None:
        """Delete everything in the queue: jobs, flows whose home it is, events, settings, schedules.

        Stop its workers first: they recreate the keys they need. Repeatable.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """

    async def retry_failed(self, count: int | None = None) -> int:
        """Run failed jobs again, the oldest first, all or at most ``count``; returns how many.

        All means as many as have failed at the start: jobs that fail again during the call remain failed.
        Nodes of flows remain failed: a flow is retried as a whole.
        """

    async def set_global_concurrency(self, limit: int | None) -> None:
        """Let at most ``limit`` jobs run at the same time over all workers; None removes it. Repeatable.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent.
        """

    async def global_concurrency(self) -> int | None:
        """How many jobs may run at the same time over all workers; None: no limit."""

    async def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable."""

    async def global_rate_limit(self) -> RateLimit | None:
        """How often jobs may start over all workers; None: no limit."""

    async def rate_limit_group(self, key: str, duration: Duration, *, extend: bool = True) -> datetime:
        """Hold back the jobs of an ordering key; returns until when.

        Args:
            key: The ordering key; it may have no job yet.
            duration: From now on, at least a millisecond.
            extend: Keep a later end that was set before; otherwise replace it.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """

    async def groups(self) -> list[GroupInfo]:
        """The ordering keys in use, with their running jobs and those held back.

        A key of which no job waits or runs goes once no limit of it is used up, and may be
        listed for a while after that.
        """

    async def metrics(self, state: EndedState = JobState.COMPLETED) -> list[MetricPoint]:
        """How many jobs ended in a state per minute and how long they ran, oldest first; for about a day.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """

    async def lost_workers(self) -> list[LostWorker]:
        """The workers that are gone, with how many jobs wait until their leases end."""

    async def workers(self) -> list[WorkerInfo]:
        """The live workers of the queue, the oldest first."""

    async def set_dead_letter_queue(self, name: str | None) -> None:
        """Set the queue to which workers copy jobs that have failed for good; None: no queue. Repeatable.

        Covers every cause of failure while workers of this package serve the queue: the handler, a time to
        live, workers that died of it. Not covered: nodes of flows that end because of others, and jobs
        revoked before they ran. The copy is made once, within seconds, even if the worker dies.

        Raises:
            ConfigurationError: The name is not usable, or it is this queue; nothing was sent.
        """

    async def dead_letter_queue(self) -> str | None:
        """The queue for dead letters; None if none is set."""

    async def dead_letters(self, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """The dead letters of this queue, the oldest first."""

    async def get_dead_letter(self, letter_id: str) -> DeadLetter:
        """Read one dead letter.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's.
        """

    async def remove_dead_letter(self, letter_id: str) -> None:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: There is none with this id, or it is another queue's. A repeat raises this.
        """

    async def replay_dead_letter(self, letter_id: str) -> JobId:
        """Run the failed job again, so that jobs that wait for it can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job no longer exists and had to be added again.

        Raises:
            JobNotFound: There is no such letter.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """

    async def report_usage(self, job_id: str, usage: Usage) -> None:
        """Report what a job used; replaces an earlier report of the job, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: There is none with this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """

    async def usage(self, job_id: str) -> Usage | None:
        """The usage that a job reported; None if it reported none."""

    async def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> UsageSummary:
        """Sum up what jobs used, by the minute; 30 days are kept.

        Args:
            start: With a time zone; an hour before the end when left out.
            end: With a time zone; now when left out.
            queues: Names; all queues under this prefix that have usage when left out.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """

    async def flow_budget(self, root_id: str) -> FlowBudget | None:
        """The budget of a flow made by glide-mq's producer, by its root job's id; None if it has none."""
