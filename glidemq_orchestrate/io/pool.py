"""Open connections between their calls.

Not redis-py's pool: that one keeps every connection it ever opened, a thousand of them after a thousand
calls at once, for as long as the process lives.
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
    """What an exchange has shown of its connection.

    ``SOUND``: it may be used again. ``BROKEN``: it may not, and nothing is known of the others. ``MISLED``:
    nor may the others, as it leads to a server that is stuck or no longer the primary. Where one address
    stands for several servers, only a new connection finds the present one.
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
        """The connection that was used last, or a new one that is not connected yet.

        One that was idle for a minute is not used: load balancers forget idle connections without
        a word, and a call on such a one would wait for its whole time limit.
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
        """Keep a connection for later calls, if it is good for them.

        Returns the connections to close: this one if it is not, those that nobody needed for a minute, and
        after ``MISLED`` all that are idle. Those in use then follow at the end of their calls.
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
            if used > since:  # all others were used later
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
