"""Reading the events of one queue for all triggers that watch flows there."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Collection, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

from airflow_provider_glidemq.triggers.looks import Looks, Subscription
from glidemq_orchestrate import AsyncEventReader, AsyncFlow, AsyncFlowProducer, Event
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.worker.supervisor import Supervisor

logger = logging.getLogger(__name__)

LINGER_SECONDS: Final = 5.0
BLOCK: Final = timedelta(seconds=2)
SUPERVISE_SECONDS: Final = 2.0
T = TypeVar("T")
_FLOW_EVENTS: Final = "flow."
_PROGRESS_EVENTS: Final = frozenset({"completed", "failed"})


class QueueEvents:
    """Reads the events of one queue, once, and has the flows looked at that they are about.

    Events only tell when to look. Where some were lost unread, all flows are looked at. Meanwhile it
    supervises the queue if no worker does: Node workers alone would leave flows unsettled.
    """

    def __init__(self, settings: ConnectionSettings, queue: str, producer: AsyncFlowProducer) -> None:
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._reader = AsyncEventReader(queue, settings)
        self._supervisor = Supervisor(settings, queues=[queue])
        self._looks = Looks(producer)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Whether nobody who subscribes now would be woken."""
        return any(task is not None and task.done() for task in (self._reading, self._looking))

    @property
    def flow_ids(self) -> Collection[str]:
        """The flows that are watched."""
        return self._looks.flow_ids

    async def subscribe(self, flow: AsyncFlow, *, often: float, seldom: float) -> Subscription:
        """Watch a flow. What happens to it from now on is seen; so is how it is now, in the first look.

        Raises:
            TransportError, or what else kept the reader from starting.
        """
        if self._reading is None:
            self._reading = start(self._run())
        subscription = Subscription(flow, often, seldom)
        self._looks.add(subscription)
        try:
            await asyncio.shield(self._started)
        except BaseException:
            self._looks.remove(subscription)
            raise
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        self._looks.remove(subscription)

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
            self._looks.stop()
            await self._reader.close()
            if supervision is not None:
                await supervision

    async def _read(self) -> None:
        """Read events until nobody has watched for a while, or nobody can look any more."""
        loop = asyncio.get_running_loop()
        used = loop.time()
        while loop.time() - used < LINGER_SECONDS and not self.is_over:
            for event in await self._reader.read(BLOCK):
                self._dispatch(event)
            if len(self._looks):
                used = loop.time()

    async def _look(self) -> None:
        try:
            await self._looks.run()
        except Exception as exc:  # noqa: BLE001  every error is passed to the watchers
            self._fail(exc)

    async def _supervise(self, ended: asyncio.Event) -> None:
        try:
            while not ended.is_set():
                try:
                    await self._supervisor.tick()
                except GlideMQError as exc:
                    logger.debug("the queue was not supervised: %s", exc)
                with suppress(TimeoutError):
                    async with asyncio.timeout(SUPERVISE_SECONDS):
                        await ended.wait()
        finally:
            with suppress(GlideMQError):  # the lead expires by itself
                await self._supervisor.resign()
            await self._supervisor.close()

    def _dispatch(self, event: Event) -> None:
        if event.is_gap:
            self._looks.all()
        elif event.kind in _PROGRESS_EVENTS:
            self._looks.be_active()
        elif event.kind.startswith(_FLOW_EVENTS):
            self._looks.name(event.flow_id)

    def _fail(self, exc: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(exc)
            self._started.exception()  # retrieved: no watcher may be left to await it
        self._looks.fail(exc)


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run shared work in an empty context, or its log would go to the task of the first trigger."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())
