"""One client per connection, and one events reader per queue, for all triggers of a triggerer.

A triggerer runs a thousand triggers on one event loop; a connection for each would be a thousand blocked
connections. Here a watcher is added first, then reads the state of the flow, then waits to be woken. An
event between the last two steps is not lost, and the state includes all earlier events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_glidemq.hooks.glidemq import GlideMQHook, LookupFailed, looking_up
from airflow_provider_glidemq.triggers.shared.events import LINGER_SECONDS, QueueEvents, start
from airflow_provider_glidemq.triggers.shared.reconciler import Reconciler
from glidemq_orchestrate import AsyncFlow, AsyncFlowProducer, ConnectionSettings, FlowState, Owner
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, StateError
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.runs import adrive, cancel_owned, history_of

T = TypeVar("T")

CONCURRENT_CALLS: Final = 8


class SharedClient:
    """The client that the triggers of one event loop share for one connection id; see ``shared_client``."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.users = 0
        self.task: asyncio.Task[None] | None = None
        self._settings = settings
        self._producer = AsyncFlowProducer(settings)
        self._queues: dict[str, QueueEvents] = {}
        self._gate = asyncio.Semaphore(CONCURRENT_CALLS)
        self._first = asyncio.Lock()
        self._connected = False

    async def find(self, flow_id: str, owner: Owner | None = None) -> AsyncFlow | None:
        """The flow with this id, or None; ``owner``: the owner whose lease the flow renews."""
        async with (
            self._first if not self._connected else self._gate
        ):  # the first call connects, the others wait
            try:
                flow = await self._producer.get(flow_id, owner=owner)
            except FlowNotFound:
                flow = None
            self._connected = True
        return flow

    async def cancel(
        self, flow_id: str, reason: str, generation: int | None, *, owner: str | None = None
    ) -> FlowState:
        """Cancel a flow, if this generation is its current one. Returns the state before.

        Raises:
            NotOwned: The flow does not run for this owner alone.
        """
        async with self._gate:
            if owner is not None:
                made = cancel_owned(self._producer, flow_id, generation, reason, owner=owner)
                return (await adrive(made)).state
            flow = await self._producer.get(flow_id)
            return await flow.cancel(reason, generation=generation)

    async def history(self, flow: AsyncFlow) -> Sequence[FlowStatus]:
        """The status of each generation of the flow, oldest first."""
        async with self._gate:
            return await adrive(history_of(self._producer, flow.id))

    async def ask(self, call: Awaitable[T]) -> T:
        """Make any other call on a flow that this client has found."""
        async with self._gate:
            return await call

    def events(self, queue: str) -> QueueEvents:
        """The reader of a queue's events: the running reader, or a new one if it has ended or failed."""
        found = self._queues.get(queue)
        if found is None or found.is_over:
            self._queues = {name: one for name, one in self._queues.items() if not one.is_over}
            found = self._queues[queue] = QueueEvents(self._settings, queue, self._producer)
        return found

    async def keep(self) -> None:
        """Keep the connections open while there are users, and a little longer; then close them."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        reconciling = start(Reconciler(self._producer, self._watched).run(ended))
        try:
            used = loop.time()
            while loop.time() - used < LINGER_SECONDS:
                await asyncio.sleep(LINGER_SECONDS / 5)
                if self.users:
                    used = loop.time()
        finally:
            self.users = -1  # closed: the next caller makes a new client
            ended.set()
            try:
                await reconciling
            finally:
                await self._producer.close()

    def _watched(self) -> set[str]:
        """The ids of the flows that triggers watch."""
        return {flow_id for events in self._queues.values() for flow_id in events.flow_ids}


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedClient]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()
_failed: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, tuple[float, GlideMQError]]] = (
    WeakKeyDictionary()
)


@asynccontextmanager
async def shared_client(conn_id: str) -> AsyncIterator[SharedClient]:
    """The client of a connection id on this event loop; the first caller looks up the connection.

    After a failure other than an error reply, the next caller looks it up again: the server may have moved,
    or its password may have changed.

    Raises:
        LookupFailed: The connection was not found; also raised for all callers that waited for this lookup.
    """
    loop = asyncio.get_running_loop()
    clients = _clients.setdefault(loop, {})
    failed, began = _failed.setdefault(loop, {}), loop.time()
    async with _locks.setdefault(loop, {}).setdefault(conn_id, asyncio.Lock()):
        client = clients.get(conn_id)
        if client is None or client.users < 0:
            at, error = failed.get(conn_id, (0.0, None))
            if error is not None and at >= began:
                raise LookupFailed(str(error)) from error
            try:
                with looking_up(conn_id):
                    settings = await GlideMQHook(conn_id).aget_settings()
            except GlideMQError as exc:
                failed[conn_id] = loop.time(), exc
                raise
            failed.pop(conn_id, None)
            client = clients[conn_id] = SharedClient(settings)
            client.task = start(client.keep())
        client.users += 1
    try:
        yield client
    except GlideMQError as exc:
        if clients.get(conn_id) is client and not isinstance(exc, StateError):
            del clients[conn_id]  # current users keep this client until they finish
        raise
    finally:
        client.users -= 1
