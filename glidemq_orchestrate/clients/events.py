"""EventReader and AsyncEventReader: the events of a queue, from a position that can be stored."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from glidemq_orchestrate import events as ops
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.spread import OnMembers
from glidemq_orchestrate.clients.outage import Outage
from glidemq_orchestrate.clients.twins import awaited, blocking
from glidemq_orchestrate.errors import ConfigurationError, TransportError
from glidemq_orchestrate.events import Event, EventFilter, EventKind
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds, optional_duration
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.shards import KnownShards
from glidemq_orchestrate.wire.call import Op, side_by_side
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

__all__ = ["AsyncEventReader", "Event", "EventFilter", "EventKind", "EventReader"]

ALL: Final = EventFilter()
STEP: Final = timedelta(seconds=1)
POLL_MS: Final = 100
"""The time between two reads of the shards: the events of several servers cannot be awaited at once."""
_BETWEEN: Final = ";"


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
    ) -> None:
        super().__init__(keys, clock, known)
        self.position, self.where = position, where

    def start(self) -> Op[str]:
        """Set the position to now unless it is set, and return it. Reading starts after it."""
        if self.position is None:
            members = yield from self._member_keys()
            tails = yield from side_by_side([ops.tail(keys) for keys in members])
            newest = max(tails, key=ops.entry_order)
            self.position = newest if len(tails) == 1 else _BETWEEN.join([f"{newest}@", *tails])
        return self.position

    def read(self, timeout: Duration = 0) -> Op[list[Event]]:
        """Read up to 100 new events and return those that match; waits at most ``timeout`` for the first.

        Of a queue with shards, up to 100 of each.
        """
        return self._read(duration("timeout", timeout))

    def _read(self, timeout: timedelta) -> Op[list[Event]]:
        events = yield from self.read_all(timeout)
        if events:
            self.position = events[-1].id
        return [event for event in events if self.where.takes(event)]

    def read_all(self, timeout: timedelta) -> Op[list[Event]]:
        """Read the next events, matching or not, without moving the position."""
        position, members = (yield from self.start()), (yield from self._member_keys())
        wait_ms = milliseconds(timeout)
        if len(members) == 1:
            return (yield from ops.read_with_gap(self._keys, position, wait_ms or None))
        positions = _positions(position, len(members))
        while True:
            reading = zip(members, positions, strict=True)
            every = yield from side_by_side([ops.read_with_gap(keys, at, None) for keys, at in reading])
            if wait_ms <= 0 or any(every):
                return _in_order(every, positions)
            yield from ops.read(members[0], positions[0], min(wait_ms, POLL_MS))
            wait_ms -= POLL_MS


def _positions(position: str, members: int) -> list[str]:
    """The positions in the members of a queue; a shard that was added since begins with its oldest event.

    A position begins with the id of the event, and the number of its member, so no two events have the same.

    Raises:
        ConfigurationError: It is not a position of a reader.
    """
    first, *found = position.split(_BETWEEN)
    if not found:
        found = [first]
    elif len(found) > members:
        raise ConfigurationError(f"{position!r:.60} is not a position of a reader of this queue")
    for one in (first.partition("@")[0], *found):
        ops.check_position(one)
    return found + ["0-0"] * (members - len(found))


def _in_order(every: Sequence[Sequence[Event]], positions: Sequence[str]) -> list[Event]:
    """The events of all members by time; the id of each is the position after it."""
    found = [(number, event) for number, events in enumerate(every) for event in events]
    found.sort(key=lambda one: ops.entry_order(one[1].id))
    after, ordered = list(positions), []
    for number, event in found:
        after[number] = event.id
        ordered.append(replace(event, id=_BETWEEN.join([f"{event.id}@{number}", *after])))
    return ordered


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

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        queue: str,
        url: Address = None,
        *,
        position: str | None = None,
        where: EventFilter = ALL,
        idle_timeout: Duration | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(queue))
        self._operations = EventOperations(self._keys, position, where, self._clock, self._known_shards)
        self._idle_timeout = optional_duration("idle_timeout", idle_timeout)

    @property
    def position(self) -> str | None:
        """The position after the last event that was read, to continue from; None until ``start``."""
        return self._operations.position

    @position.setter
    def position(self, position: str | None) -> None:
        self._operations.position = position

    start = blocking(EventOperations.start)
    read = blocking(EventOperations.read)

    def __iter__(self) -> Iterator[Event]:
        """Yield matching events until none has arrived for ``idle_timeout``.

        Raises:
            TransportError: The server is unreachable at the first read, or when ``idle_timeout`` has passed.
        """
        last = time.monotonic()
        outage = Outage(f"events of queue {self._keys.queue}").end_with(self._closings)
        while not _is_over(last, self._idle_timeout):
            try:
                events = self._run(self._operations.read_all(_step(self._idle_timeout)))
            except TransportError as exc:
                if _is_over(last, self._idle_timeout):
                    raise
                outage.wait(exc)
                continue
            outage.over()
            for event in events:
                self.position = event.id
                if self._operations.where.takes(event):
                    yield event
                    last = time.monotonic()


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

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        queue: str,
        url: Address = None,
        *,
        position: str | None = None,
        where: EventFilter = ALL,
        idle_timeout: Duration | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(queue))
        self._operations = EventOperations(self._keys, position, where, self._clock, self._known_shards)
        self._idle_timeout = optional_duration("idle_timeout", idle_timeout)

    @property
    def position(self) -> str | None:
        """The position after the last event that was read, to continue from; None until ``start``."""
        return self._operations.position

    @position.setter
    def position(self, position: str | None) -> None:
        self._operations.position = position

    start = awaited(EventOperations.start)
    read = awaited(EventOperations.read)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield matching events until none has arrived for ``idle_timeout``.

        Raises:
            TransportError: The server is unreachable at the first read, or when ``idle_timeout`` has passed.
        """
        last = time.monotonic()
        outage = Outage(f"events of queue {self._keys.queue}").end_with(self._closings)
        while not _is_over(last, self._idle_timeout):
            try:
                events = await self._run(self._operations.read_all(_step(self._idle_timeout)))
            except TransportError as exc:
                if _is_over(last, self._idle_timeout):
                    raise
                await outage.wait_async(exc)
                continue
            outage.over()
            for event in events:
                self.position = event.id
                if self._operations.where.takes(event):
                    yield event
                    last = time.monotonic()


def _step(idle_timeout: timedelta | None) -> timedelta:
    return STEP if idle_timeout is None else min(STEP, idle_timeout)


def _is_over(last: float, idle_timeout: timedelta | None) -> bool:
    return idle_timeout is not None and time.monotonic() - last >= idle_timeout.total_seconds()
