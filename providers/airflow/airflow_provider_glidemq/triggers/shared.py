"""One client per connection, and one events reader per queue, for all triggers of a triggerer.

A triggerer runs a thousand triggers on one event loop; a connection for each of them would be a thousand
blocked connections. Here a watcher subscribes first, then reads the flow's state, then waits to be
woken: an event between the last two steps is not lost, and an earlier one is in the state.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

from airflow_provider_glidemq.hooks.glidemq import GlideMQHook
from glidemq_orchestrate import AsyncEventReader, AsyncFlow, AsyncFlowProducer, FlowStatus, Owner
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, TransportError
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.worker.supervisor import Supervisor

logger = logging.getLogger(__name__)

LINGER_SECONDS: Final = 5.0
BLOCK: Final = timedelta(seconds=2)
CONCURRENT_READS: Final = 8
SUPERVISE_SECONDS: Final = 2.0
_FLOW_EVENTS: Final = "flow."
_PROGRESS_EVENTS: Final = frozenset({"completed", "failed"})


@dataclass(eq=False, slots=True)
class Subscription:
    """One watcher of one flow: woken by each event of the flow, and by the end of the reader."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    async def wait(self, seconds: float) -> bool:
        """Wait for an event of the flow; False after ``seconds`` without one.

        Raises:
            TransportError, or what else ended the reader: subscribe again.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            return False
        if self.error is not None:
            raise self.error
        return True


class QueueEvents:
    """Reads the events of one queue, once, and wakes the watchers of their flows.

    ``activity`` grows whenever jobs of the queue have ended, so that a watcher knows when to read the state.
    Meanwhile it supervises the queue if no worker does: Node workers alone would leave flows unsettled.
    """

    def __init__(self, settings: ConnectionSettings, queue: str) -> None:
        self.activity = 0
        self.task: asyncio.Task[None] | None = None
        self._reader = AsyncEventReader(queue, settings)
        self._supervisor = Supervisor(settings, queues=[queue])
        self._subscriptions: dict[str, set[Subscription]] = defaultdict(set)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def subscribe(self, flow_id: str) -> Subscription:
        """Watch a flow: wake the subscription on each later event.

        Raises:
            TransportError, or what else kept the reader from starting.
        """
        subscription = Subscription()
        self._subscriptions[flow_id].add(subscription)
        if self.task is None:
            self.task = _start(self._read())
        try:
            await asyncio.shield(self._started)
        except BaseException:
            self.unsubscribe(flow_id, subscription)
            raise
        return subscription

    def unsubscribe(self, flow_id: str, subscription: Subscription) -> None:
        """End a subscription. Not awaitable: a triggerer at shutdown cancels its triggers in any order."""
        self._subscriptions[flow_id].discard(subscription)
        if not self._subscriptions[flow_id]:
            del self._subscriptions[flow_id]

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        ended, supervision = asyncio.Event(), None
        try:
            await self._reader.start()
            self._started.set_result(None)
            supervision = _start(self._supervise(ended))
            used = loop.time()
            while loop.time() - used < LINGER_SECONDS:
                for event in await self._reader.read(BLOCK):
                    self._dispatch(event.kind, event.flow_id)
                if self._subscriptions:
                    used = loop.time()
        except Exception as exc:  # noqa: BLE001  every error is passed to the watchers
            self._fail(exc)
        finally:
            ended.set()
            await self._reader.close()
            if supervision is not None:
                await supervision

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

    def _dispatch(self, kind: str, flow_id: str) -> None:
        if kind in _PROGRESS_EVENTS:
            self.activity += 1
        elif kind.startswith(_FLOW_EVENTS):
            for subscription in self._subscriptions.get(flow_id, ()):
                subscription.woken.set()

    def _fail(self, exc: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(exc)
            self._started.exception()  # retrieved: no watcher may be left to await it
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.error = exc
                subscription.woken.set()


class SharedClient:
    """The client that the triggers of one event loop share for one connection id; see ``shared_client``."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.users = 0
        self.task: asyncio.Task[None] | None = None
        self._settings = settings
        self._producer = AsyncFlowProducer(settings)
        self._queues: dict[str, QueueEvents] = {}
        self._gate = asyncio.Semaphore(CONCURRENT_READS)
        self._first = asyncio.Lock()
        self._connected = False

    async def find(self, flow_id: str, owner: Owner | None = None) -> AsyncFlow | None:
        """The flow of that id, or None; ``owner``: for whom it is to be renewed."""
        async with self._first if not self._connected else self._gate:  # one connects, the others wait
            try:
                flow = await self._producer.get(flow_id, owner=owner)
            except FlowNotFound:
                flow = None
            self._connected = True
        return flow

    async def status(self, flow: AsyncFlow) -> FlowStatus:
        """The flow's state; a thousand triggers take turns on a few connections."""
        async with self._gate:
            return await flow.status()

    async def renew(self, flow: AsyncFlow) -> None:
        """Renew the lease of the owner with which the flow was found."""
        async with self._gate:
            await flow.renew()

    async def history(self, flow: AsyncFlow) -> Sequence[FlowStatus]:
        """The status of each generation of the flow, oldest first."""
        async with self._gate:
            try:
                return await flow.history()
            except FlowNotFound:  # the record of an old one was removed at this moment
                return [await flow.status()]

    def events(self, queue: str) -> QueueEvents:
        """The reader of a queue's events: the running one, or a new one if that has ended or failed."""
        found = self._queues.get(queue)
        if found is None or (found.task is not None and found.task.done()):
            found = self._queues[queue] = QueueEvents(self._settings, queue)
        return found

    async def keep(self) -> None:
        """Keep the connections while there are users, and a little longer; then close them."""
        loop = asyncio.get_running_loop()
        try:
            used = loop.time()
            while loop.time() - used < LINGER_SECONDS:
                await asyncio.sleep(LINGER_SECONDS / 5)
                if self.users:
                    used = loop.time()
        finally:
            self.users = -1  # closed: the next caller makes a new client
            await self._producer.close()


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedClient]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


@asynccontextmanager
async def shared_client(conn_id: str) -> AsyncIterator[SharedClient]:
    """The client of a connection id on this event loop; the first caller looks up the connection.

    After a failure to reach the server, the next caller looks it up again.
    """
    loop = asyncio.get_running_loop()
    clients = _clients.setdefault(loop, {})
    async with _locks.setdefault(loop, asyncio.Lock()):
        client = clients.get(conn_id)
        if client is None or client.users < 0:
            client = clients[conn_id] = SharedClient(await GlideMQHook(conn_id).aget_settings())
            client.task = _start(client.keep())
        client.users += 1
    try:
        yield client
    except TransportError:
        if clients.get(conn_id) is client:
            del clients[conn_id]  # the server may have moved; current users of this client finish with it
        raise
    finally:
        client.users -= 1


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run shared work in an empty context, or its log would go to the task of the first trigger."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())
