"""The operations of Queue and AsyncQueue that add jobs and await them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Unpack

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.clients.operations.once import Once
from glidemq_orchestrate.clients.operations.placing import places_of
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.outage import Outage
from glidemq_orchestrate.errors import ConnectionFailed, GlideMQError, OutcomeUnknown
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs import adding
from glidemq_orchestrate.jobs.adding import NewJob, traced
from glidemq_orchestrate.jobs.awaited import Awaited, add_awaited, wait_for
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, AwaitedKeywords, JobOptions, OptionKeywords
from glidemq_orchestrate.shards import Shards
from glidemq_orchestrate.wire.call import Op, each_of
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import QueueKeys

AWAITED_SECONDS: Final = 30  # the default of add_and_wait


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
            keys, new = yield from self._place(new)
            return (yield from adding.add_job(keys, new, self._clock.now_ms(), packed=self._packed))

    def _place(self, new: NewJob) -> Op[tuple[QueueKeys, NewJob]]:
        """Where to add a job, and the job as it is there."""
        shards = yield from self._shards()
        if shards is None:
            return self._keys, new
        (place,) = yield from places_of([new], shards, self._turns(), self._clock.now_ms())
        return place

    def _turns(self) -> int:
        return 0 if self.known is None else self.known.next_turn()

    def add_many(self, jobs: Iterable[NewJob]) -> Op[list[JobId | None]]:
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
        with telemetry.adding(self._keys.queue, "") as trace:
            new = [traced(job, trace) for job in jobs] if trace else jobs
            shards = yield from self._shards()
            if shards is not None:
                encoded = adding.encoded_jobs(new, packed=self._packed)
                return (yield from self._add_spread(shards, encoded))
            return (yield from adding.add_many(self._keys, new, self._clock.now_ms(), packed=self._packed))

    def _add_spread(self, shards: Shards, encoded: Sequence[tuple[NewJob, str]]) -> Op[list[JobId | None]]:
        now_ms = self._clock.now_ms()
        placed = yield from places_of([job for job, _ in encoded], shards, self._turns(), now_ms)
        numbers: dict[QueueKeys, list[int]] = {}
        for number, (keys, _) in enumerate(placed):
            numbers.setdefault(keys, []).append(number)
        parts = [
            adding.add_encoded(keys, [(placed[at][1], encoded[at][1]) for at in some], now_ms)
            for keys, some in numbers.items()
        ]
        ids: list[JobId | None] = [None] * len(encoded)
        failed: GlideMQError | None = None
        added = 0
        try:
            results = yield from each_of(parts)
        except ConnectionFailed as exc:
            if len(parts) == 1:
                raise
            raise OutcomeUnknown(f"some of {len(encoded)} jobs may have been added: {exc}") from exc
        for some, found in zip(numbers.values(), results, strict=True):
            if isinstance(found, GlideMQError):
                failed = failed or found
                continue
            added += len(some)
            for number, job_id in zip(some, found, strict=True):
                ids[number] = job_id
        if failed is not None and added:
            raise OutcomeUnknown(f"{added} of {len(encoded)} jobs were added: {failed}") from failed
        if failed is not None:
            raise failed
        return ids

    def add_and_wait(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        timeout: Duration = 30,
        **keywords: Unpack[AwaitedKeywords],
    ) -> Once[Any]:
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
        new = NewJob(name, data, options=options, **keywords)
        limit = milliseconds(duration("timeout", timeout))
        added: list[tuple[QueueKeys, Awaited]] = []

        def add() -> Op[None]:
            keys, placed = yield from self._place(new)
            awaited = yield from add_awaited(keys, placed, limit, self._clock, packed=self._packed)
            added.append((keys, awaited))

        return Once(lambda: wait_for(*added[0], self._clock), begin=add())

    def awaited_outage(self, timeout: Duration | None) -> Outage:
        """What waits during an outage of the server while ``add_and_wait`` reads."""
        limit = AWAITED_SECONDS if timeout is None else timeout
        return Outage(f"a job of queue {self._keys.queue}", timeout=limit)
