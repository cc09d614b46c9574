"""Client and AsyncClient: one pool of connections for all that is done on one server."""

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

__all__ = ["AsyncClient", "Client"]


class Client(SyncFacade):
    """One server, with blocking calls: its queues, flows, events, schedules and broadcasts. Thread-safe.

    All that it hands out shares its connections, which are opened on first use. Closing a queue or reader
    leaves them open; when the client has been closed, each call of what it handed out is an error.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.

    Raises:
        ConfigurationError: The URL or the prefix is not usable.

    Example:
        >>> with Client("valkey://127.0.0.1:6379") as client:  # doctest: +SKIP
        ...     client.queue("etl").add("clean", {"month": 1})
        ...     client.flows.get("nightly-2026-01-01").status()
    """

    def queue(self, name: str, *, compression: Compression = "none") -> Queue:
        """One queue; see ``Queue``.

        Args:
            name: 1 to 256 characters, none of ``{ } :``.
            compression: ``gzip`` packs the data of the jobs that are added; every reader unpacks it.

        Raises:
            ConfigurationError: The name or the compression is not usable, or the client is closed.
        """
        queue = Queue(name, self._settings, prefix=self._prefix, compression=compression, clock=self._clock)
        return self._share(queue)

    def queues(self) -> list[str]:
        """The names of the queues that have keys, sorted. Scans all keys of the server, a page at a time."""
        return self._run(queue_names(self._prefix))

    @cached_property
    def flows(self) -> FlowProducer:
        """Submits flows and finds them again; see ``FlowProducer``."""
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
            position: Where to continue: ``position`` of an earlier reader. Left out: only events from now on.
                ``0-0``: from the oldest that is left.
            where: Which events to return; a gap always is.
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
        """The repeating jobs of a queue; see ``Schedules``."""
        return self._share(Schedules(queue, self._settings, prefix=self._prefix, clock=self._clock))

    def broadcast(self, name: str, *, max_messages: int | None = None) -> Broadcast:
        """A queue whose messages every subscription handles; see ``Broadcast``.

        Args:
            name: The queue.
            max_messages: Keep only this many of the newest; None: see ``Broadcast``.
        """
        made = Broadcast(
            name, self._settings, max_messages=max_messages, prefix=self._prefix, clock=self._clock
        )
        return self._share(made)

    def close(self) -> None:
        """Close the connections; afterwards each call of the client and of what it handed out is an error."""
        super().close()
        self._connections.is_closed = True


class AsyncClient(AsyncFacade):
    """One server, with awaitable calls, for one event loop: its queues, flows, events, schedules, broadcasts.

    All that it hands out shares its connections, which are opened on first use. Closing a queue or reader
    leaves them open; when the client has been closed, each call of what it handed out is an error.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.

    Raises:
        ConfigurationError: The URL or the prefix is not usable.
    """

    def queue(self, name: str, *, compression: Compression = "none") -> AsyncQueue:
        """One queue; see ``AsyncQueue``.

        Args:
            name: 1 to 256 characters, none of ``{ } :``.
            compression: ``gzip`` packs the data of the jobs that are added; every reader unpacks it.

        Raises:
            ConfigurationError: The name or the compression is not usable, or the client is closed.
        """
        queue = AsyncQueue(
            name, self._settings, prefix=self._prefix, compression=compression, clock=self._clock
        )
        return self._share(queue)

    async def queues(self) -> list[str]:
        """The names of the queues that have keys, sorted. Scans all keys of the server, a page at a time."""
        return await self._run(queue_names(self._prefix))

    @cached_property
    def flows(self) -> AsyncFlowProducer:
        """Submits flows and finds them again; see ``AsyncFlowProducer``."""
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
            position: Where to continue: ``position`` of an earlier reader. Left out: only events from now on.
                ``0-0``: from the oldest that is left.
            where: Which events to return; a gap always is.
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
        """The repeating jobs of a queue; see ``AsyncSchedules``."""
        return self._share(AsyncSchedules(queue, self._settings, prefix=self._prefix, clock=self._clock))

    def broadcast(self, name: str, *, max_messages: int | None = None) -> AsyncBroadcast:
        """A queue whose messages every subscription handles; see ``AsyncBroadcast``.

        Args:
            name: The queue.
            max_messages: Keep only this many of the newest; None: see ``Broadcast``.
        """
        made = AsyncBroadcast(
            name, self._settings, max_messages=max_messages, prefix=self._prefix, clock=self._clock
        )
        return self._share(made)

    async def close(self) -> None:
        """Close the connections; afterwards each call of the client and of what it handed out is an error."""
        await super().close()
        self._connections.is_closed = True
