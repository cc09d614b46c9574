"""A pool of open connections.

redis-py's own pool keeps every connection that it ever opened until the process ends: after a thousand
concurrent calls, a thousand connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import Final, Generic, TypeVar

C = TypeVar("C")
T = TypeVar("T")

IDLE_SECONDS: Final = 60.0


class Link(Enum):
    """The state of a connection after an exchange.

    ``SOUND``: it may be used again. ``BROKEN``: it may not; the others may. ``MISLED``: neither it nor the
    others may, since it leads to a server that hangs or is no longer the primary. If one address serves
    several servers, only a new connection reaches the current one.
    """

    SOUND = "sound"
    BROKEN = "broken"
    MISLED = "misled"


class Pool(Generic[C]):
    """The connections to one server. Thread-safe: each step is one call of a deque or a set."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._idle: deque[tuple[float, C]] = deque()
        self._in_use: set[C] = set()
        self._condemned: set[C] = set()
        self._old: deque[C] = deque()

    def take(self) -> C:
        """The most recently used connection, or a new one that is not connected yet.

        Connections that were idle for a minute are not used. Load balancers silently drop idle connections,
        and a call on a dropped one would wait for its whole time limit.
        """
        try:
            used, connection = self._idle.pop()
        except IndexError:
            connection = self._make()
        else:
            if used <= monotonic() - IDLE_SECONDS:
                self._old.append(connection)
                connection = self._make()
        self._in_use.add(connection)
        return connection

    def put(self, connection: C, link: Link) -> list[C]:
        """Return a connection to the pool if it can be used again.

        Returns the connections to close: this one if it cannot, those that were idle for a minute, and after
        ``MISLED`` all idle ones. Those in use then follow at the end of their calls.
        """
        return [*self._kept(connection, link), *_emptied(self._old)]

    def _kept(self, connection: C, link: Link) -> list[C]:
        self._in_use.discard(connection)
        if link is Link.MISLED:
            self._condemned.update(list(self._in_use))
        is_condemned = connection in self._condemned
        self._condemned.discard(connection)
        if link is Link.MISLED:
            return [connection, *(idle for _, idle in _emptied(self._idle))]
        if link is Link.BROKEN or is_condemned:
            return [connection]
        now = monotonic()
        self._idle.append((now, connection))
        return self._unneeded(now - IDLE_SECONDS)

    def every(self) -> list[C]:
        """All connections, idle and in use."""
        return [connection for _, connection in list(self._idle)] + list(self._in_use) + list(self._old)

    def _unneeded(self, since: float) -> list[C]:
        found: list[C] = []
        while True:
            try:
                used, connection = self._idle.popleft()
            except IndexError:
                return found
            if used > since:  # the others were used more recently
                self._idle.appendleft((used, connection))
                return found
            found.append(connection)


def _emptied(queue: deque[T]) -> list[T]:
    found: list[T] = []
    while True:
        try:
            found.append(queue.pop())
        except IndexError:
            return found
