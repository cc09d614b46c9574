"""Reading the events of one queue for all triggers that watch flows or jobs there, or the queue itself."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

from airflow_provider_glidemq.conditions import QueueState
from airflow_provider_glidemq.triggers.poller import JobSubject, Poller, Subscription
from glidemq_orchestrate import (
    AsyncEventReader,
    AsyncFlow,
    AsyncFlowProducer,
    AsyncQueue,
    ConnectionSettings,
    Event,
    FlowStatus,
)
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.states import ABSENT
from glidemq_orchestrate.worker.services.supervisor import Supervisor

logger = logging.getLogger(__name__)

LINGER_SECONDS: Final = 5.0
BLOCK: Final = timedelta(seconds=2)
SUPERVISE_SECONDS: Final = 2.0
MIN_REST: Final = 0.05
OFTEN_SECONDS: Final = 1.0
T = TypeVar("T")
_FLOW_EVENTS: Final = "flow."
_ENDS: Final = frozenset({"completed", "failed", "expired", "revoked"})


class QueueEvents:
    """Reads the events of one queue, once, and has the flows and jobs looked at that they are about.

    Events only tell when to look. Where some were lost unread, all are looked at. Meanwhile it
    supervises the queue if no worker does: Node workers alone would leave flows unsettled.
    """

    def __init__(self, settings: ConnectionSettings, queue: str, producer: AsyncFlowProducer) -> None:
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._reader = AsyncEventReader(queue, settings)
        self._supervisor = Supervisor(settings, queues=[queue])
        self._producer, self._queue = producer, AsyncQueue(queue, settings)
        self._flows = Poller[FlowStatus](self._flow_statuses)
        self._jobs = Poller[str](self._job_states)
        self._whole = Poller[QueueState](self._queue_states)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Whether nobody who subscribes now would be woken."""
        return any(task is not None and task.done() for task in (self._reading, self._looking))

    @property
    def _poller(self) -> Sequence[Poller[Any]]:
        return (self._flows, self._jobs, self._whole)

    @property
    def flow_ids(self) -> Collection[str]:
        """The flows that are watched."""
        return self._flows.ids

    async def subscribe(self, flow: AsyncFlow, *, often: float, seldom: float) -> Subscription[FlowStatus]:
        """Watch a flow. What happens to it from now on is seen; so is how it is now, in the first look.

        Raises:
            TransportError, or what else kept the reader from starting.
        """
        return await self._join(self._flows, Subscription(flow, often, seldom))

    async def subscribe_job(self, job_id: str, *, seldom: float) -> Subscription[str]:
        """Watch a job: the value of its state, or ``absent``. Raises as ``subscribe``."""
        return await self._join(self._jobs, Subscription(JobSubject(job_id), seldom, seldom))

    async def subscribe_queue(self, *, seldom: float) -> Subscription[QueueState]:
        """Watch the queue: each second while something happens there. Raises as ``subscribe``."""
        return await self._join(self._whole, Subscription(JobSubject(), min(OFTEN_SECONDS, seldom), seldom))

    async def _join(self, looks: Poller[T], subscription: Subscription[T]) -> Subscription[T]:
        if self._reading is None:
            self._reading = start(self._run())
        looks.add(subscription)
        try:
            await asyncio.shield(self._started)
        except BaseException:
            looks.remove(subscription)
            raise
        return subscription

    def unsubscribe(self, subscription: Subscription[Any]) -> None:
        """End a subscription."""
        for looks in self._poller:
            looks.remove(subscription)

    async def _flow_statuses(self, flows: list[AsyncFlow]) -> Sequence[FlowStatus | None]:
        return await self._producer.statuses(flows)

    async def _job_states(self, jobs: list[JobSubject]) -> Sequence[str]:
        found = await self._queue.states([job.id for job in jobs])
        return [ABSENT if state is None else state.value for state in found]

    async def _queue_states(self, asked: list[JobSubject]) -> Sequence[QueueState]:
        counts = await self._queue.counts(indexed_only=True)
        is_paused, workers = await self._queue.is_paused(), await self._queue.workers()
        return [QueueState.of(counts, is_paused, workers)] * len(asked)

    async def _run(self) -> None:
        ended, supervision = asyncio.Event(), None
        try:
            await self._reader.start()
            self._looking = start(self._look())
            supervision = start(self._supervise(ended))
            self._started.set_result(None)
            await self._read()
        except Exception as exc:  # noqa: BLE001  every error is passed to the watchers
            self._fail(exc)
        finally:
            ended.set()
            self._stop()
            await self._reader.close()
            await self._queue.close()
            if supervision is not None:
                await supervision

    async def _read(self) -> None:
        """Read events until nobody has watched for a while, or nobody can look any more."""
        loop = asyncio.get_running_loop()
        used = loop.time()
        while loop.time() - used < LINGER_SECONDS and not self.is_over:
            for event in await self._reader.read(BLOCK):
                self._dispatch(event)
            if any(map(len, self._poller)):
                used = loop.time()

    async def _look(self) -> None:
        try:
            await asyncio.gather(*(looks.run() for looks in self._poller))
        except Exception as exc:  # noqa: BLE001  every error is passed to the watchers
            self._fail(exc)
            self._stop()

    async def _supervise(self, ended: asyncio.Event) -> None:
        try:
            while not ended.is_set():
                try:
                    await self._supervisor.tick()
                except GlideMQError as exc:
                    logger.debug("the queue was not supervised: %s", exc)
                rest = min(max(self._supervisor.rest, MIN_REST), SUPERVISE_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await ended.wait()
        finally:
            with suppress(GlideMQError):  # the lead expires by itself
                await self._supervisor.resign()
            await self._supervisor.close()

    def _dispatch(self, event: Event) -> None:
        self._whole.be_active()
        if event.is_gap:
            for looks in self._poller:
                looks.all()
        elif event.kind in _ENDS:
            self._flows.be_active()
            self._jobs.name(event.job_id)
        elif event.kind.startswith(_FLOW_EVENTS):
            self._flows.name(event.flow_id)

    def _fail(self, exc: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(exc)
            self._started.exception()  # retrieved: no watcher may be left to await it
        for looks in self._poller:
            looks.fail(exc)

    def _stop(self) -> None:
        for looks in self._poller:
            looks.stop()


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run shared work in an empty context, or its log would go to the task of the first trigger."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())
