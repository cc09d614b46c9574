"""Queue and AsyncQueue: add jobs, wait for one, read one; plus every call of their parts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.attempts.workers import WorkerInfo
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.parts.admin import AdminCalls, AsyncAdminCalls
from glidemq_orchestrate.clients.parts.jobs import AsyncJobCalls, JobCalls
from glidemq_orchestrate.clients.parts.listing import AsyncListingCalls, ListingCalls
from glidemq_orchestrate.clients.parts.usage import AsyncUsageCalls, UsageCalls
from glidemq_orchestrate.flows.waits import Wait
from glidemq_orchestrate.jobs import adding as ops
from glidemq_orchestrate.jobs.adding import NewJob, traced
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.jobs.job import Job, JobId, JobLogs
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions
from glidemq_orchestrate.jobs.output import OutputChunk
from glidemq_orchestrate.jobs.suspension import Signal, SuspendInfo
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.queues import waits
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.listing import FoundJobs, JobCounts, JobPage, queue_names
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.wire.codec import Json, JsonLike

__all__ = [
    "AsyncQueue",
    "AsyncQueues",
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
    "Queues",
    "Signal",
    "SuspendInfo",
    "Usage",
    "UsageSummary",
    "WorkerInfo",
]

WAIT: Final = timedelta(seconds=30)


class Queue(JobCalls, ListingCalls, AdminCalls, UsageCalls):
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

    def add(self, name: str, data: JsonLike = None, *, options: JobOptions = DEFAULT_OPTIONS) -> JobId:
        """Add one job; it is visible to workers when this returns, and as durable as ``confirm`` demands.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: Attempts, delay, priority, own id, and so on.

        Raises:
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
            InvalidJob: The name is empty, or the id in the options is taken; nothing was added.
            JobSkipped: It is a duplicate by the deduplication in the options; nothing was added.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
            NotConfirmed: The job was added, but what ``confirm`` asks for was not reached in time.
        """
        with telemetry.adding(self._keys.queue, name) as trace:
            new = traced(NewJob(name, data, options), trace)
            return self._run(ops.add_job(self._keys, new, self._now(), packed=self._packed))

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
            NotConfirmed: They were added, but what ``confirm`` asks for was not reached in time.
        """
        with telemetry.adding(self._keys.queue, "") as trace:
            new = [traced(job, trace) for job in jobs] if trace else jobs
            return self._run(ops.add_many(self._keys, new, self._now(), packed=self._packed))

    def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: timedelta = WAIT,
    ) -> Json:
        """Add one job and wait until it has ended; returns its result.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded, before compression.
            options: As for ``add``, but without any that remove the job before it can be read.
            timeout: Longest time to wait, to the millisecond. The job continues after a time-out.

        Raises:
            JobFailed: It has failed for good, was revoked, or has expired; ``exc.reason`` states which.
            WaitTimeout: It has not ended in time; it may still end.
            JobNotFound: It was removed.
            InvalidJob: The options remove the job; and as for ``add``. Nothing was added.
        """
        new = NewJob(name, data, options)
        limit = milliseconds(timeout)
        adding = ops.add_awaited(self._keys, new, limit, self._clock, packed=self._packed)
        return self._run(ops.wait_for(self._keys, self._run(adding), self._clock))

    def get_job(self, job_id: str, *, lenient: bool = False) -> Job:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Return a job whose data or result is not valid JSON without them, as ``broken``.

        Raises:
            JobNotFound: There is none with this id.
            DecodeError: Its data or result is not valid JSON; not if ``lenient``.
        """
        return self._run(ops.get_job(self._keys, job_id, lenient=lenient))

    def wait_of(self, job_id: str) -> Wait | None:
        """Why a job does not run now, and until when, as ``Flow.waits``; None for one that runs or has ended.

        Also None for one that waits for jobs on which it depends.

        Raises:
            JobNotFound: There is none with this id.
        """
        return self._run(waits.wait_of(self._keys, job_id, self._now()))


class AsyncQueue(AsyncJobCalls, AsyncListingCalls, AsyncAdminCalls, AsyncUsageCalls):
    """``Queue`` with awaitable calls; same arguments, same errors."""

    async def add(self, name: str, data: JsonLike = None, *, options: JobOptions = DEFAULT_OPTIONS) -> JobId:
        """See ``Queue.add``."""
        with telemetry.adding(self._keys.queue, name) as trace:
            new = traced(NewJob(name, data, options), trace)
            return await self._run(ops.add_job(self._keys, new, await self._now(), packed=self._packed))

    async def add_many(self, jobs: Iterable[NewJob]) -> list[JobId | None]:
        """See ``Queue.add_many``."""
        with telemetry.adding(self._keys.queue, "") as trace:
            new = [traced(job, trace) for job in jobs] if trace else jobs
            return await self._run(ops.add_many(self._keys, new, await self._now(), packed=self._packed))

    async def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: timedelta = WAIT,  # noqa: ASYNC109  the server waits
    ) -> Json:
        """See ``Queue.add_and_wait``."""
        new = NewJob(name, data, options)
        limit = milliseconds(timeout)
        adding = ops.add_awaited(self._keys, new, limit, self._clock, packed=self._packed)
        return await self._run(ops.wait_for(self._keys, await self._run(adding), self._clock))

    async def get_job(self, job_id: str, *, lenient: bool = False) -> Job:
        """See ``Queue.get_job``."""
        return await self._run(ops.get_job(self._keys, job_id, lenient=lenient))

    async def wait_of(self, job_id: str) -> Wait | None:
        """See ``Queue.wait_of``."""
        return await self._run(waits.wait_of(self._keys, job_id, await self._now()))


class Queues(SyncFacade):
    """The queues of one server under one prefix.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.
    """

    def names(self) -> list[str]:
        """The queues that have keys, sorted. Scans all keys of the server, a page at a time."""
        return self._run(queue_names(self._prefix))


class AsyncQueues(AsyncFacade):
    """``Queues`` with awaitable calls; same arguments, same errors."""

    async def names(self) -> list[str]:
        """See ``Queues.names``."""
        return await self._run(queue_names(self._prefix))
