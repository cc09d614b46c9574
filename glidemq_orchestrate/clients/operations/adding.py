"""The operations of Queue and AsyncQueue that add jobs and await them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs import adding
from glidemq_orchestrate.jobs.adding import NewJob, traced
from glidemq_orchestrate.jobs.awaited import add_awaited, wait_for
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, AwaitedKeywords, JobOptions, OptionKeywords
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike


class AddingOperations(QueueOperationsBase):
    """Operations that add jobs."""

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
        return self._add(NewJob(name, data, options=options, **keywords))

    def _add(self, new: NewJob) -> Op[JobId]:
        with telemetry.adding(self._keys.queue, new.name) as trace:
            new = traced(new, trace)
            return (yield from adding.add_job(self._keys, new, self._clock.now_ms(), packed=self._packed))

    def add_many(self, jobs: Iterable[NewJob]) -> Op[list[JobId | None]]:
        """Add many jobs in order, in few round trips. All are checked before the first is sent.

        Not atomic: calls of up to 100 jobs follow one another, and workers may start with the first.

        Returns:
            The id of each job, in order; None for a job that was not added because its ``job_id`` is in use
            or it is a duplicate.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: A job cannot be sent; nothing was sent.
            ServerBusy: The server refused a part, for example when out of memory; the rest was added.
            OutcomeUnknown: The connection broke after sending. Safe to repeat only if all jobs have a
                ``job_id``.
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
