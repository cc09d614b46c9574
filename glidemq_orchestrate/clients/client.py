"""Client and AsyncClient: one shared set of connections for everything on one server."""

from __future__ import annotations

from functools import cached_property

from glidemq_orchestrate.clients.broadcast import AsyncBroadcast, Broadcast
from glidemq_orchestrate.clients.events import ALL, AsyncEventReader, EventReader
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.flows import AsyncFlowProducer, FlowProducer
from glidemq_orchestrate.clients.operations.queue import Compression
from glidemq_orchestrate.clients.queue import AsyncQueue, Queue
from glidemq_orchestrate.clients.schedules import AsyncSchedules, Schedules
from glidemq_orchestrate.events import EventFilter
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.queues.listing import queue_names
from glidemq_orchestrate.shards import whole_queues
from glidemq_orchestrate.wire.keys import QueueKeys

__all__ = ["AsyncClient", "Client"]


class Client(SyncFacade):
    """One server, with blocking calls: its queues, flows, events, schedules and broadcasts. Thread-safe.

    Queues, readers and the like share the connections of their client, which are opened on first use. Closing
    a queue or reader leaves them open. After the client is closed, every call on any of them is an error.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        clock: For tests.

    Raises:
        ConfigurationError: The URL or the prefix is not valid.

    Example:
        >>> with Client("valkey://127.0.0.1:6379") as client:  # doctest: +SKIP
        ...     client.queue("etl").add("clean", {"month": 1})
        ...     client.flows.get("nightly-2026-01-01").status()
    """

    def queue(self, name: str, *, compression: Compression = "none", shards: int | None = None) -> Queue:
        """One queue; see ``Queue``.

        Args:
            name: 1 to 256 characters, none of ``{ } :``.
            compression: ``gzip`` compresses the data of added jobs; every reader decompresses it.
            shards: How many shards the queue has; see ``Queue``. None: as many as the queue has.

        Raises:
            ConfigurationError: The name, the compression or the number of shards is not valid, or the client
                is closed.
        """
        queue = Queue(
            name,
            self._settings,
            prefix=self._prefix,
            compression=compression,
            shards=shards,
            clock=self._clock,
        )
        shared = self._share(queue)
        if shards is not None:  # also for flows of this client
            self._known_shards().state(QueueKeys(self._prefix, name), shards)
        return shared

    def queues(self) -> list[str]:
        """List the names of queues that have keys, sorted. Scans all keys of the server in pages."""
        return whole_queues(self._run(queue_names(self._prefix)))

    @cached_property
    def flows(self) -> FlowProducer:
        """Submits flows and finds them by id; see ``FlowProducer``."""
        return self._share(FlowProducer(self._settings, prefix=self._prefix, clock=self._clock))

    def events(
        self,
        queue: str,
        *,
        position: str | None = None,
        where: EventFilter = ALL,
        idle_timeout: Duration | None = None,
    ) -> EventReader:
        """A reader of the events of a queue; see ``EventReader``.

        Args:
            queue: The queue.
            position: Continue after this ``position`` of an earlier reader. None: only events from now on.
                ``0-0``: from the oldest event still stored.
            where: Which events to return; a gap is always returned.
            idle_timeout: Iteration ends after this long without a matching event. None: never.
        """
        reader = EventReader(
            queue,
            self._settings,
            position=position,
            where=where,
            idle_timeout=idle_timeout,
            prefix=self._prefix,
            clock=self._clock,
        )
        return self._share(reader)

    def schedules(self, queue: str) -> Schedules:
        """The schedules of a queue; see ``Schedules``."""
        return self._share(Schedules(queue, self._settings, prefix=self._prefix, clock=self._clock))

    def broadcast(self, name: str, *, max_messages: int | None = None) -> Broadcast:
        """A queue whose messages every subscription handles; see ``Broadcast``.

        Args:
            name: The queue.
            max_messages: Keep only the newest messages, at most this many; see ``Broadcast``.
        """
        made = Broadcast(
            name, self._settings, max_messages=max_messages, prefix=self._prefix, clock=self._clock
        )
        return self._share(made)

    def close(self) -> None:
        """Close the connections. Later calls on the client, its queues, readers and the like are errors."""
        super().close()
        self._connections.is_closed = True


class AsyncClient(AsyncFacade):
    """One server, with awaitable calls, for one event loop: its queues, flows, events, schedules, broadcasts.

    Queues, readers and the like share the connections of their client, which are opened on first use. Closing
    a queue or reader leaves them open. After the client is closed, every call on any of them is an error.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        clock: For tests.

    Raises:
        ConfigurationError: The URL or the prefix is not valid.
    """

    def queue(self, name: str, *, compression: Compression = "none", shards: int | None = None) -> AsyncQueue:
        """One queue; see ``AsyncQueue``.

        Args:
            name: 1 to 256 characters, none of ``{ } :``.
            compression: ``gzip`` compresses the data of added jobs; every reader decompresses it.
            shards: How many shards the queue has; see ``Queue``. None: as many as the queue has.

        Raises:
            ConfigurationError: The name, the compression or the number of shards is not valid, or the client
                is closed.
        """
        queue = AsyncQueue(
            name,
            self._settings,
            prefix=self._prefix,
            compression=compression,
            shards=shards,
            clock=self._clock,
        )
        shared = self._share(queue)
        if shards is not None:  # also for flows of this client
            self._known_shards().state(QueueKeys(self._prefix, name), shards)
        return shared

    async def queues(self) -> list[str]:
        """List the names of queues that have keys, sorted. Scans all keys of the server in pages."""
        return whole_queues(await self._run(queue_names(self._prefix)))

    @cached_property
    def flows(self) -> AsyncFlowProducer:
        """Submits flows and finds them by id; see ``AsyncFlowProducer``."""
        return self._share(AsyncFlowProducer(self._settings, prefix=self._prefix, clock=self._clock))

    def events(
        self,
        queue: str,
        *,
        position: str | None = None,
        where: EventFilter = ALL,
        idle_timeout: Duration | None = None,
    ) -> AsyncEventReader:
        """A reader of the events of a queue; see ``AsyncEventReader``.

        Args:
            queue: The queue.
            position: Continue after this ``position`` of an earlier reader. None: only events from now on.
                ``0-0``: from the oldest event still stored.
            where: Which events to return; a gap is always returned.
            idle_timeout: Iteration ends after this long without a matching event. None: never.
        """
        reader = AsyncEventReader(
            queue,
            self._settings,
            position=position,
            where=where,
            idle_timeout=idle_timeout,
            prefix=self._prefix,
            clock=self._clock,
        )
        return self._share(reader)

    def schedules(self, queue: str) -> AsyncSchedules:
        """The schedules of a queue; see ``AsyncSchedules``."""
        return self._share(AsyncSchedules(queue, self._settings, prefix=self._prefix, clock=self._clock))

    def broadcast(self, name: str, *, max_messages: int | None = None) -> AsyncBroadcast:
        """A queue whose messages every subscription handles; see ``AsyncBroadcast``.

        Args:
            name: The queue.
            max_messages: Keep only the newest messages, at most this many; see ``Broadcast``.
        """
        made = AsyncBroadcast(
            name, self._settings, max_messages=max_messages, prefix=self._prefix, clock=self._clock
        )
        return self._share(made)

    async def close(self) -> None:
        """Close the connections. Later calls on the client, its queues, readers and the like are errors."""
        await super().close()
        self._connections.is_closed = True
