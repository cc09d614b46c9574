# Made by `make generated` from the operations. Do not edit.
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.events import Event, EventFilter, EventKind
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys

__all__ = ["AsyncEventReader", "Event", "EventFilter", "EventKind", "EventReader"]
ALL: Final[EventFilter]
STEP: Final[timedelta]

class EventOperations:
    """What can be done with the events of a queue, each written once for both readers.

    Attributes:
        position: The id of the last event that was read; None until ``start``.
        where: Which events to return.
    """

    def __init__(self, keys: QueueKeys, position: str | None, where: EventFilter) -> None: ...
    def start(self) -> Op[str]:
        """Set the position to now, if it is not set yet, and return it. Later events will be read."""

    def read(self, timeout: Duration = 0) -> Op[list[Event]]:
        """Return the matching ones of up to 100 new events; waits at most ``timeout`` for the first."""

    def _read(self, timeout: timedelta) -> Op[list[Event]]: ...
    def read_all(self, timeout: timedelta) -> Op[list[Event]]:
        """The next events, also those that do not match; leaves the position where it is."""

class EventReader(SyncFacade):
    """Reads the events of one queue in order.

    The server keeps about the newest 1,000 events, and 16 MiB of those of more than 8 KiB: an event shows
    that something changed; read jobs and flows for their state. Events that were trimmed before they were
    read are replaced by one with ``is_gap``.
    The position moves past events that the filter leaves out.

    Iteration yields one event after the other, and moves ``position`` to each before yielding it. Once it has
    begun it continues after an outage of the server, for example during a failover; that is logged.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        position: Where to continue: ``position`` of an earlier reader. Left out: only events from now on.
            ``0-0``: from the oldest that is left.
        where: Which events to return; a gap always is.
        idle_timeout: Iteration ends after this long without a matching event; with an error, if the server is
            away then. None: never.
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
        """Where to continue: the id of the last event that was read; None until ``start``."""

    @position.setter
    def position(self, position: str | None) -> None: ...
    def start(self) -> str:
        """Set the position to now, if it is not set yet, and return it. Later events will be read."""

    def read(self, timeout: Duration = 0) -> list[Event]:
        """Return the matching ones of up to 100 new events; waits at most ``timeout`` for the first."""

    def __iter__(self) -> Iterator[Event]:
        """Yield matching events one by one, until none came for ``idle_timeout``.

        Raises:
            TransportError: The server is away at the beginning, or when ``idle_timeout`` has passed.
        """

class AsyncEventReader(AsyncFacade):
    """Reads the events of one queue in order, with awaitable calls and ``async for``.

    The server keeps about the newest 1,000 events, and 16 MiB of those of more than 8 KiB: an event shows
    that something changed; read jobs and flows for their state. Events that were trimmed before they were
    read are replaced by one with ``is_gap``.
    The position moves past events that the filter leaves out.

    Iteration yields one event after the other, and moves ``position`` to each before yielding it. Once it has
    begun it continues after an outage of the server, for example during a failover; that is logged.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        position: Where to continue: ``position`` of an earlier reader. Left out: only events from now on.
            ``0-0``: from the oldest that is left.
        where: Which events to return; a gap always is.
        idle_timeout: Iteration ends after this long without a matching event; with an error, if the server is
            away then. None: never.
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
        """Where to continue: the id of the last event that was read; None until ``start``."""

    @position.setter
    def position(self, position: str | None) -> None: ...
    async def start(self) -> str:
        """Set the position to now, if it is not set yet, and return it. Later events will be read."""

    async def read(self, timeout: Duration = 0) -> list[Event]:
        """Return the matching ones of up to 100 new events; waits at most ``timeout`` for the first."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Yield matching events one by one, until none came for ``idle_timeout``.

        Raises:
            TransportError: The server is away at the beginning, or when ``idle_timeout`` has passed.
        """
