"""EventReader and AsyncEventReader: what happens in a queue, from a position that can be kept."""

from __future__ import annotations

from datetime import timedelta

from glidemq_orchestrate._facade import AsyncFacade, SyncFacade
from glidemq_orchestrate._ops import events as ops
from glidemq_orchestrate._ops.events import Event
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.job import milliseconds
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

__all__ = ["AsyncEventReader", "Event", "EventReader"]


class EventReader(SyncFacade):
    """Reads the events of one queue in order.

    The server keeps about the newest 1,000 events: events say that something changed, the jobs and flows say
    what.

    Args:
        queue: The queue.
        url: The server; from ``GLIDEMQ_URL`` when left out.
        position: Where to go on: ``position`` of an earlier reader. Left out: only events from now on.
        prefix: First part of every key.
        clock: For tests.
    """

    def __init__(
        self,
        queue: str,
        url: str | None = None,
        *,
        position: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(prefix, check_queue_name(queue))
        self.position = position

    def start(self) -> str:
        """Fix the position now, if it is not fixed yet, and return it. Later events will be read."""
        if self.position is None:
            self.position = self._run(ops.tail(self._keys))
        return self.position

    def read(self, timeout: timedelta = timedelta(0)) -> list[Event]:
        """Return up to 100 new events; waits at most ``timeout`` for the first, to the millisecond."""
        events = self._run(ops.read(self._keys, self.start(), milliseconds(timeout) or None))
        if events:
            self.position = events[-1].id
        return events


class AsyncEventReader(AsyncFacade):
    """``EventReader`` with awaitable calls; same arguments, same errors."""

    def __init__(
        self,
        queue: str,
        url: str | None = None,
        *,
        position: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(prefix, check_queue_name(queue))
        self.position = position

    async def start(self) -> str:
        """See ``EventReader.start``."""
        if self.position is None:
            self.position = await self._run(ops.tail(self._keys))
        return self.position

    async def read(self, timeout: timedelta = timedelta(0)) -> list[Event]:  # noqa: ASYNC109  the server waits
        """See ``EventReader.read``."""
        events = await self._run(ops.read(self._keys, await self.start(), milliseconds(timeout) or None))
        if events:
            self.position = events[-1].id
        return events
