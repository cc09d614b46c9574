"""Queue and AsyncQueue: add and read single jobs."""

from __future__ import annotations

from glidemq_orchestrate._facade import AsyncFacade, SyncFacade
from glidemq_orchestrate._ops import queue as ops
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.codec import JsonLike
from glidemq_orchestrate.job import DEFAULT_OPTIONS, Job, JobId, JobOptions
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

__all__ = ["AsyncQueue", "Queue"]


class Queue(SyncFacade):
    """One queue on one server.

    Args:
        name: 1 to 256 characters, none of ``{ } :``.
        url: The server; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.

    Raises:
        ConfigurationError: The name, the URL or the prefix is not usable. Nothing is opened before the first
            call.
    """

    def __init__(
        self, name: str, url: str | None = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(prefix, check_queue_name(name))

    def add(self, name: str, data: JsonLike = None, *, options: JobOptions = DEFAULT_OPTIONS) -> JobId:
        """Add one job; it is durable and visible to workers when this returns.

        Args:
            name: The handler that runs it.
            data: JSON, at most 1 MiB encoded.
            options: Attempts, backoff, timeout, delay, own id.

        Raises:
            EncodeError, PayloadTooLarge: The data does not fit; nothing was sent.
            InvalidJob: The name is empty, or the id in the options is taken; nothing was added.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
        """
        return self._run(ops.add_job(self._keys, name, data, options, self._clock.now_ms()))

    def get_job(self, job_id: str) -> Job:
        """Read one job as it is now.

        Raises:
            JobNotFound: There is none with this id.
        """
        return self._run(ops.get_job(self._keys, job_id))


class AsyncQueue(AsyncFacade):
    """``Queue`` with awaitable calls; same arguments, same errors."""

    def __init__(
        self, name: str, url: str | None = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(prefix, check_queue_name(name))

    async def add(self, name: str, data: JsonLike = None, *, options: JobOptions = DEFAULT_OPTIONS) -> JobId:
        """See ``Queue.add``."""
        return await self._run(ops.add_job(self._keys, name, data, options, self._clock.now_ms()))

    async def get_job(self, job_id: str) -> Job:
        """See ``Queue.get_job``."""
        return await self._run(ops.get_job(self._keys, job_id))
