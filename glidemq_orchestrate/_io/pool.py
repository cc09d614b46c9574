"""Open connections between their calls.

Not redis-py's pool: that one keeps every connection it ever opened, a thousand of them after a thousand
calls at once, for as long as the process lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Generic, TypeVar

C = TypeVar("C")

IDLE_SECONDS: Final = 60.0


class Pool(Generic[C]):
    """The connections to one server. Thread-safe: each step is one call of a deque or a set."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._idle: deque[tuple[float, C]] = deque()
        self._in_use: set[C] = set()

    def take(self) -> C:
        """The connection that was used last, or a new one that is not connected yet."""
        try:
            _, connection = self._idle.pop()
        except IndexError:
            connection = self._make()
        self._in_use.add(connection)
        return connection

    def put(self, connection: C, *, is_sound: bool) -> list[C]:
        """Keep a connection for later calls, unless its last call went wrong.

        Returns the connections to close: one that is not sound, and those that nobody needed for a minute.
        """
        self._in_use.discard(connection)
        if not is_sound:
            return [connection]
        now = monotonic()
        self._idle.append((now, connection))
        return self._unneeded(now - IDLE_SECONDS)

    def every(self) -> list[C]:
        """All connections, idle and in use."""
        return [connection for _, connection in list(self._idle)] + list(self._in_use)

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
