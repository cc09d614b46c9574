"""What Queue and AsyncQueue do: add jobs, wait for one, read one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.clients.operations.queue_base import QueueOperationsBase
from glidemq_orchestrate.flows.status import Wait
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs import adding as ops
from glidemq_orchestrate.jobs import job
from glidemq_orchestrate.jobs.adding import NewJob, traced
from glidemq_orchestrate.jobs.awaited import add_awaited, wait_for
from glidemq_orchestrate.jobs.job import Job, JobId
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, AwaitedKeywords, JobOptions, OptionKeywords
from glidemq_orchestrate.queues import waits
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import Json, JsonLike


class AddingOperations(QueueOperationsBase):
    """Operations that add jobs, wait for one, and read one."""

    def add(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> Op[JobId]:
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
            NotConfirmed: The job was added, but what ``confirm`` asks for was not reached in time.
        """
        return self._add(NewJob(name, data, options=options, **keywords))

    def _add(self, new: NewJob) -> Op[JobId]:
        with telemetry.adding(self._keys.queue, new.name) as trace:
            new = traced(new, trace)
            return (yield from ops.add_job(self._keys, new, self._clock.now_ms(), packed=self._packed))

    def add_many(self, jobs: Iterable[NewJob]) -> Op[list[JobId | None]]:
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
            return (yield from ops.add_many(self._keys, new, self._clock.now_ms(), packed=self._packed))

    def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: Duration = 30,
        **keywords: Unpack[AwaitedKeywords],
    ) -> Op[Op[Json]]:
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
        return self._add_and_wait(
            NewJob(name, data, options=options, **keywords), milliseconds(duration("timeout", timeout))
        )

    def _add_and_wait(self, new: NewJob, limit: int) -> Op[Op[Json]]:
        adding = add_awaited(self._keys, new, limit, self._clock, packed=self._packed)
        return wait_for(self._keys, (yield from adding), self._clock)

    def get_job(self, job_id: str, *, lenient: bool = False) -> Op[Job]:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Return a job whose data or result is not valid JSON without them, as ``broken``.

        Raises:
            JobNotFound: There is none with this id.
            DecodeError: Its data or result is not valid JSON; not if ``lenient``.
        """
        return job.get_job(self._keys, job_id, lenient=lenient)

    def wait_of(self, job_id: str) -> Op[Wait | None]:
        """Why a job does not run now, and until when, as ``Flow.waits``; None for one that runs or has ended.

        Also None for one that waits for jobs on which it depends.

        Raises:
            JobNotFound: There is none with this id.
        """
        return (yield from waits.wait_of(self._keys, job_id, self._clock.now_ms()))
