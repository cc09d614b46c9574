"""One worker of the core per queue, shared by all message triggers of a triggerer.

The worker keeps a job active until Airflow has stored the event with its message, and then completes it. If
the triggerer dies first, its leases expire and the jobs are delivered again: at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from airflow_provider_glidemq.hooks.glidemq import GlideMQHook
from airflow_provider_glidemq.triggers.inbox import Delivery, Inbox
from airflow_provider_glidemq.triggers.shared.events import start
from glidemq_orchestrate import AsyncQueue, ConnectionSettings, Context, Handlers, RetryLater, Worker
from glidemq_orchestrate.errors import ConfigurationError, JobNotFound
from glidemq_orchestrate.worker.handlers.registered import Registered

logger = logging.getLogger(__name__)

MAX_HELD: Final = 500
MAX_STALLED: Final = 20  # a triggerer that is killed repeatedly loses no message
MAX_SUSPECTS: Final = 64  # one at a time, each would be held until its own event is stored
LEASE: Final = timedelta(seconds=30)
POLL_SECONDS: Final = 60.0
LAST_CALLS: Final = timedelta(seconds=2)


class Source(NamedTuple):
    """The source of messages."""

    conn_id: str
    queue: str


class Terms(NamedTuple):
    """The arguments of an ``Inbox``."""

    size: int
    interval: float
    until_run: float | None = None


class _Subscribed(Handlers):
    """The job names that watchers currently want, all with one handler."""

    def __init__(self, consumer: QueueConsumer) -> None:
        super().__init__()
        self._consumer = consumer
        self._registered = Registered(consumer.take, is_async=True)

    def get(self, name: str) -> Registered | None:
        return self._registered if self._consumer.inbox_of(name) else None

    @property
    def names(self) -> list[str]:
        return self._consumer.jobs


class QueueConsumer:
    """Takes the jobs that watchers want from one queue. Jobs with other names are returned to it."""

    def __init__(self, settings: ConnectionSettings, source: Source) -> None:
        queue = source.queue
        self._queue, self._settings, self._conn_id = queue, settings, source.conn_id
        self._has_moved = False
        self._jobs = AsyncQueue(queue, settings)
        self._inboxes: dict[Inbox, Sequence[str]] = {}
        self._worker = Worker(
            settings,
            queues=[queue],
            handlers=_Subscribed(self),
            concurrency=MAX_HELD,
            prefetch=0,
            lease=LEASE,
            max_stalled=MAX_STALLED,
            max_suspects=MAX_SUSPECTS,
            shutdown_timeout=LAST_CALLS,
            only_known=True,
        )
        self._serving = start(self._serve())
        self._following = start(self._follow())

    @property
    def is_over(self) -> bool:
        """Whether it takes no more jobs."""
        return self._serving.done() or self._has_moved or not self._inboxes

    @property
    def jobs(self) -> list[str]:
        """The wanted job names, sorted."""
        return sorted({name for jobs in self._inboxes.values() for name in jobs})

    def inbox_of(self, name: str) -> Inbox | None:
        """The first inbox that takes jobs of this name."""
        return next((inbox for inbox, jobs in self._inboxes.items() if name in jobs), None)

    def open(self, jobs: Sequence[str], terms: Terms) -> Inbox:
        """Open an inbox for the jobs of these names."""
        if both := sorted(set(jobs) & set(self.jobs)):
            logger.warning(
                "queue %s: watchers with different arguments take the same jobs: %s. Each message goes to "
                "one of them only; give them equal arguments, and all of them get it",
                self._queue, ", ".join(both),
            )  # fmt: skip
        inbox = Inbox(self._queue, *terms, added_at=self._added_at)
        self._inboxes[inbox] = jobs
        return inbox

    async def close(self, inbox: Inbox) -> None:
        """Return the jobs of the inbox to the queue; with the last inbox, the worker ends."""
        del self._inboxes[inbox]
        inbox.close()
        if not self._inboxes:
            self._following.cancel()
            self._worker.stop()
            with contextlib.suppress(Exception):
                await asyncio.shield(self._serving)
            with contextlib.suppress(Exception):
                await self._jobs.close()

    async def take(self, ctx: Context) -> None:
        """Hold the job until its message is stored: the handler of all jobs."""
        inbox = self.inbox_of(ctx.name)
        if inbox is None:
            raise RetryLater(timedelta(seconds=1), "its watcher has stopped", counts=False)
        delivery = Delivery.of(ctx)
        inbox.put(delivery)
        await delivery.outcome

    async def _added_at(self, job_ids: Sequence[str]) -> Sequence[str | None]:
        async def read(job_id: str) -> str | None:
            with contextlib.suppress(JobNotFound):  # removed in between
                if (at := (await self._jobs.get_job(job_id)).created_at) is not None:
                    return at.isoformat()
            return None

        return await asyncio.gather(*map(read, job_ids))

    async def _serve(self) -> None:
        try:
            await self._worker.serve(signals=False)
        except Exception as exc:  # noqa: BLE001  every error is passed to the watchers
            for inbox in self._inboxes:
                inbox.fail(exc)

    async def _follow(self) -> None:
        """End all inboxes if Airflow's connection has changed: a worker keeps its own settings."""
        while not self._has_moved:
            await asyncio.sleep(POLL_SECONDS)
            with contextlib.suppress(Exception):  # the next check reads it again
                self._has_moved = await GlideMQHook(self._conn_id).aget_settings() != self._settings
        for inbox in self._inboxes:
            inbox.fail(ConfigurationError(f"the connection {self._conn_id} has changed"))


_consumers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Source, QueueConsumer]] = WeakKeyDictionary()


@asynccontextmanager
async def consuming(source: Source, jobs: Sequence[str], terms: Terms) -> AsyncIterator[Inbox]:
    """An inbox for the jobs of these names, while the block runs.

    All inboxes of a source share one worker on this event loop; the first one looks up the connection.
    """
    consumers = _consumers.setdefault(asyncio.get_running_loop(), {})
    found = consumers.get(source)
    if found is None or found.is_over:
        settings = await GlideMQHook(source.conn_id).aget_settings()
        found = consumers.get(source)  # another task may have been faster
        if found is None or found.is_over:
            found = consumers[source] = QueueConsumer(settings, source)
    inbox = found.open(jobs, terms)
    try:
        yield inbox
    finally:
        await found.close(inbox)
        if consumers.get(source) is found and found.is_over:
            del consumers[source]
