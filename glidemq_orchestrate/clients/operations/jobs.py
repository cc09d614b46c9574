"""The operations of Queue and AsyncQueue on single jobs: add, await, read, change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.flows.status import Wait
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.foundation.values import lasting
from glidemq_orchestrate.jobs import adding, changes, history, job, output
from glidemq_orchestrate.jobs.adding import NewJob, traced
from glidemq_orchestrate.jobs.awaited import add_awaited, wait_for
from glidemq_orchestrate.jobs.changes import SuspendInfo
from glidemq_orchestrate.jobs.history import JobHistory
from glidemq_orchestrate.jobs.job import Job, JobId, JobLogs
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, AwaitedKeywords, JobOptions, OptionKeywords
from glidemq_orchestrate.jobs.output import AcceptedAttempt, JobMessage, OutputChunk
from glidemq_orchestrate.jobs.tags import change_tags
from glidemq_orchestrate.queues import dependencies, removal, tracking, waits
from glidemq_orchestrate.queues.dependencies import CancelledJobs, ChangedDependencies
from glidemq_orchestrate.queues.removal import Revoked
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike


class JobOperations(QueueOperationsBase):
    """Operations on single jobs."""

    def retry(self, job_id: str) -> Op[None]:
        """Rerun a failed job immediately, without its delay; its attempts are counted from zero.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It has not failed, or it is a node of a flow: retry the flow.
        """
        yield from changes.retry(self._keys, job_id, self._clock.now_ms())

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

    def cancel(self, job_ids: Iterable[str], *, cascade: bool = False) -> Op[CancelledJobs]:
        """End jobs as ``revoke`` does, unless another job waits for one of them: it would wait for ever.

        All or none, unless another client lets a job wait for one of them at the same time; safe to repeat.

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
        return self._now(
            lambda now_ms: dependencies.cancel_jobs(self._keys, job_ids, now_ms, cascade=cascade)
        )

    def depends_on(self, job_id: str, others: Iterable[str]) -> Op[ChangedDependencies]:
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
            InvalidJob: There are too many jobs; nothing was sent.
        """
        return self._now(lambda now_ms: dependencies.add_dependencies(self._keys, job_id, others, now_ms))

    def depends_off(self, job_id: str, others: Iterable[str] | None = None) -> Op[ChangedDependencies]:
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
        return self._now(lambda now_ms: dependencies.remove_dependencies(self._keys, job_id, others, now_ms))

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

    def remove(self, job_id: str) -> Op[None]:
        """Delete a job with its logs, its output and its place in the queue.

        A job that depends on it stops waiting. Later calls of a running attempt are refused.

        Raises:
            JobNotFound: No job has this id, as after an earlier call.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """
        yield from removal.remove(self._keys, job_id, self._clock.now_ms())

    def change_priority(self, job_id: str, priority: int) -> Op[None]:
        """Change the priority of a job that has not started, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        return self._now(lambda now_ms: changes.change_priority(self._keys, job_id, priority, now_ms))

    def change_delay(self, job_id: str, delay: Duration) -> Op[None]:
        """Start a job that has not started ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: No job has this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        span = lasting("delay", delay)
        return self._now(lambda now_ms: changes.change_delay(self._keys, job_id, span, now_ms))

    def promote(self, job_id: str) -> Op[None]:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: It is not delayed.
        """
        return self._now(lambda now_ms: changes.promote(self._keys, job_id, now_ms))

    def tag(self, job_id: str, tags: Iterable[str]) -> Op[list[str]]:
        """Add tags to a job, by which ``tagged`` finds it; returns all its tags. Repeatable.

        Raises:
            InvalidJob: A tag is not valid, or the job would have more than 32; nothing was changed.
            JobNotFound: No job has this id.
        """
        return self._now(lambda now_ms: change_tags(self._keys, job_id, "add", tags, now_ms))

    def untag(self, job_id: str, tags: Iterable[str]) -> Op[list[str]]:
        """Take tags off a job; returns the remaining ones. Ignores tags that it does not have. Repeatable.

        Raises:
            InvalidJob: A tag is not valid; nothing was sent.
            JobNotFound: No job has this id.
        """
        return self._now(lambda now_ms: change_tags(self._keys, job_id, "remove", tags, now_ms))

    def track(self, job_id: str) -> Op[None]:
        """Track a job: ``watch_tracked`` and ``glidemq track`` report its changes, until ``untrack``.

        From now on the job also records its ``history``. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob: The queue tracks 1,000 jobs and flows, which is the limit.
        """
        return self._now(lambda now_ms: tracking.track_job(self._keys, job_id, now_ms))

    def untrack(self, job_id: str) -> Op[None]:
        """Stop tracking a job, also one that was removed. Repeatable."""
        return tracking.untrack_job(self._keys, job_id)

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

    def add_log(self, job_id: str, line: str) -> Op[None]:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: No job has this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """
        return output.add_log(self._keys, job_id, line)

    def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> Op[JobLogs]:
        """Read log lines, oldest first; none for a missing job.

        Args:
            job_id: The job.
            offset: The number of lines to skip; -20: all but the last 20. Removed lines count too.
            limit: The max number of lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """
        return output.logs(self._keys, job_id, offset, limit)

    def set_progress(self, job_id: str, progress: JsonLike) -> Op[None]:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """
        yield from changes.update(self._keys, job_id, "progress", progress, self._clock.now_ms())

    def update_data(self, job_id: str, data: JsonLike) -> Op[None]:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: No job has this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        yield from changes.update(self._keys, job_id, "data", data, self._clock.now_ms())

    def report_tokens(self, job_id: str, tokens: int) -> Op[None]:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: No job has this id.
        """
        yield from changes.report_tokens(self._keys, job_id, tokens, self._clock.now_ms())

    def children_values(self, job_id: str) -> Op[dict[JobRef, Any]]:
        """Read the results of the completed jobs that a job depends on, in any queue.

        Raises:
            ChildrenFailed: Some ended without a result: failed, expired, revoked or removed. The exception
                has their reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """
        return job.children_values(self._keys, job_id)

    def parents(self, job_id: str) -> Op[list[JobRef]]:
        """List the dependents of a job, in any queue.

        Raises:
            JobNotFound: No job has this id.
        """
        return job.parents(self._keys, job_id)

    def suspend_info(self, job_id: str) -> Op[SuspendInfo | None]:
        """Read why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: No job has this id.
        """
        return changes.suspend_info(self._keys, job_id)

    def signal(self, job_id: str, name: str, data: JsonLike = None) -> Op[bool]:
        """Send a signal to a suspended job, which resumes and can read it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        return (yield from changes.signal(self._keys, job_id, name, data, self._clock.now_ms()))

    def add_output(self, job_id: str, fields: Mapping[str, str]) -> Op[str]:
        """Append an entry to the output of a job: texts by name, at most 1 MiB. Returns the id of the entry.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """
        return output.add_output(self._keys, job_id, fields)

    def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: Duration = 0
    ) -> Op[list[OutputChunk]]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; 0: does not wait.

        Raises:
            ConfigurationError: ``limit`` is less than 1, or ``timeout`` is not valid; nothing was sent.
        """
        return output.read_output(
            self._keys, job_id, after, limit, milliseconds(duration("timeout", timeout))
        )

    def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> Op[list[JobMessage]]:
        """Read the messages that attempts of a job wrote by ``ctx.write_message``, oldest first.

        Args:
            job_id: The job.
            after: Only messages after this position, the ``id`` of a message; None: from the start.
            limit: The max number of messages, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` is not a position; nothing was sent.
        """
        return output.messages(self._keys, job_id, after, limit)

    def accepted_attempts(self, job_ids: Sequence[str]) -> Op[Mapping[str, AcceptedAttempt]]:
        """Read the attempts with accepted results, by job; only those that have written messages.

        A rerun job has none until it has completed again.
        """
        return output.accepted(self._keys, job_ids)

    def add(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> Op[JobId]:
        """Add one job; on return it is visible to workers, and as durable as ``confirm`` requires.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: Attempts, delay, priority, custom id, and so on.
            keywords: Single options that override those in ``options``: ``attempts=3, delay=10``. See
                ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
            InvalidJob: The name is empty, an option is not valid, or the custom id is in use; nothing was
                added.
            JobSkipped: It is a duplicate according to ``deduplication``; nothing was added.
            OutcomeUnknown: The connection broke after sending. Safe to repeat only with a custom id in the
                options.
            NotConfirmed: The job was added, but the confirmation required by ``confirm`` did not arrive in
                time.
        """
        return self._add(NewJob(name, data, options=options, **keywords))

    def _add(self, new: NewJob) -> Op[JobId]:
        with telemetry.adding(self._keys.queue, new.name) as trace:
            new = traced(new, trace)
            return (yield from adding.add_job(self._keys, new, self._clock.now_ms(), packed=self._packed))

    def add_many(self, jobs: Iterable[NewJob]) -> Op[list[JobId | None]]:
        """Add many jobs in order, in few round trips. All are checked before the first is sent.

        Not atomic: calls of up to 100 jobs follow one another, and workers may start with the first.

        Returns:
            The id of each job, in order; None for a job that was not added because its custom id is in use or
            it is a duplicate.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: A job cannot be sent; nothing was sent.
            ServerBusy: The server refused a part, for example when out of memory; the rest was added.
            OutcomeUnknown: The connection broke after sending. Safe to repeat only if all jobs have custom
                ids.
            NotConfirmed: The jobs were added, but the confirmation required by ``confirm`` did not arrive in
                time.
        """
        with telemetry.adding(self._keys.queue, "") as trace:
            new = [traced(job, trace) for job in jobs] if trace else jobs
            return (yield from adding.add_many(self._keys, new, self._clock.now_ms(), packed=self._packed))

    def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: Duration = 30,
        **keywords: Unpack[AwaitedKeywords],
    ) -> Op[Op[Any]]:
        """Add one job and wait until it has ended; returns its result.

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
        """
        return self._add_and_wait(
            NewJob(name, data, options=options, **keywords), milliseconds(duration("timeout", timeout))
        )

    def _add_and_wait(self, new: NewJob, limit: int) -> Op[Op[Any]]:
        adding = add_awaited(self._keys, new, limit, self._clock, packed=self._packed)
        return wait_for(self._keys, (yield from adding), self._clock)

    def get_job(self, job_id: str, *, lenient: bool = False) -> Op[Job]:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Do not raise for data or a result that is not valid JSON: return the job without both, as
                ``broken``.

        Raises:
            JobNotFound: No job has this id.
            DecodeError: Its data or result is not valid JSON, and ``lenient`` is false.
        """
        return job.get_job(self._keys, job_id, lenient=lenient)

    def wait_of(self, job_id: str) -> Op[Wait | None]:
        """Explain why a job is not running, and until when, as ``Flow.waits``; None if it runs or has ended.

        Also None for a job that waits for its dependencies.

        Raises:
            JobNotFound: No job has this id.
        """
        return (yield from waits.wait_of(self._keys, job_id, self._clock.now_ms()))
