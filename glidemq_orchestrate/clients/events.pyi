# Made by `make generated` from the operations. Do not edit.
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.spread import OnMembers
from glidemq_orchestrate.events import Event, EventFilter, EventKind
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.shards import KnownShards
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys

__all__ = ["AsyncEventReader", "Event", "EventFilter", "EventKind", "EventReader"]
ALL: Final[EventFilter]
STEP: Final[timedelta]
POLL_MS: Final[int]
_BETWEEN: Final[str]

class EventOperations(OnMembers):
    """The operations on the events of a queue, written once for both readers.

    The position in a queue with shards consists of those in the queue itself and in each shard.

    Attributes:
        position: The position after the last event that was read; None until ``start``.
        where: Which events to return.
    """

    def __init__(
        self,
        keys: QueueKeys,
        position: str | None,
        where: EventFilter,
        clock: Clock,
        known: Callable[[], KnownShards],
    ) -> None: ...
    def start(self) -> Op[str]:
        """Set the position to now unless it is set, and return it. Reading starts after it."""

    def read(self, timeout: Duration = 0) -> Op[list[Event]]:
        """Read up to 100 new events and return those that match; waits at most ``timeout`` for the first.

        Of a queue with shards, up to 100 of each.
        """

    def _read(self, timeout: timedelta) -> Op[list[Event]]: ...
    def read_all(self, timeout: timedelta) -> Op[list[Event]]:
        """Read the next events, matching or not, without moving the position."""

class EventReader(SyncFacade):
    """Reads the events of one queue in order.

    The server keeps about the newest 1,000 events, and 16 MiB of those above 8 KiB. An event is a sign that
    something changed; read jobs and flows for their state. One event with ``is_gap`` replaces events that
    were trimmed unread. The position moves past events that the filter excludes. The events of a queue with
    shards are read from all of them, within a tenth of a second.

    Iteration moves ``position`` to each event before yielding it. After the first successful read it survives
    outages of the server, such as a failover, and logs them.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        position: Continue after this ``position`` of an earlier reader. None: only events from now on.
            ``0-0``: from the oldest event still stored.
        where: Which events to return; a gap is always returned.
        idle_timeout: Iteration ends after this long without a matching event, with an error if the server is
            unreachable at that moment. None: never.
        prefix: First part of every key.
        clock: For tests.
    """

    _keys: QueueKeys
    _operations: EventOperations

    def __init__(
        self,
        queue: str,
        url: Address = None,
        *,
        position: str | None = None,
        where: EventFilter = ALL,
        idle_timeout: Duration | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None: ...
    @property
    def position(self) -> str | None:
        """The position after the last event that was read, to continue from; None until ``start``."""

    @position.setter
    def position(self, position: str | None) -> None: ...
    def start(self) -> str:
        """Set the position to now unless it is set, and return it. Reading starts after it."""

    def read(self, timeout: Duration = 0) -> list[Event]:
        """Read up to 100 new events and return those that match; waits at most ``timeout`` for the first.

        Of a queue with shards, up to 100 of each.
        """

    def __iter__(self) -> Iterator[Event]:
        """Yield matching events until none has arrived for ``idle_timeout``.

        Raises:
            TransportError: The server is unreachable at the first read, or when ``idle_timeout`` has passed.
        """

class AsyncEventReader(AsyncFacade):
    """Reads the events of one queue in order, with awaitable calls and ``async for``.

    The server keeps about the newest 1,000 events, and 16 MiB of those above 8 KiB. An event is a sign that
    something changed; read jobs and flows for their state. One event with ``is_gap`` replaces events that
    were trimmed unread. The position moves past events that the filter excludes. The events of a queue with
    shards are read from all of them, within a tenth of a second.

    Iteration moves ``position`` to each event before yielding it. After the first successful read it survives
    outages of the server, such as a failover, and logs them.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        position: Continue after this ``position`` of an earlier reader. None: only events from now on.
            ``0-0``: from the oldest event still stored.
        where: Which events to return; a gap is always returned.
        idle_timeout: Iteration ends after this long without a matching event, with an error if the server is
            unreachable at that moment. None: never.
        prefix: First part of every key.
        clock: For tests.
    """

    _keys: QueueKeys
    _operations: EventOperations

    def __init__(
        self,
        queue: str,
        url: Address = None,
        *,
        position: str | None = None,
        where: EventFilter = ALL,
        idle_timeout: Duration | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None: ...
    @property
    def position(self) -> str | None:
        """The position after the last event that was read, to continue from; None until ``start``."""

    @position.setter
    def position(self, position: str | None) -> None: ...
    async def start(self) -> str:
        """Set the position to now unless it is set, and return it. Reading starts after it."""

    async def read(self, timeout: Duration = 0) -> list[Event]:
        """Read up to 100 new events and return those that match; waits at most ``timeout`` for the first.

        Of a queue with shards, up to 100 of each.
        """

    def __aiter__(self) -> AsyncIterator[Event]:
        """Yield matching events until none has arrived for ``idle_timeout``.

        Raises:
            TransportError: The server is unreachable at the first read, or when ``idle_timeout`` has passed.
        """
