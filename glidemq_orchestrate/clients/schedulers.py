"""Schedulers and AsyncSchedulers: the repeating jobs of one queue."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.outage import sleep
from glidemq_orchestrate.clients.twins import Awaiting, Blocking, O, P, T, awaited, blocking
from glidemq_orchestrate.errors import SchedulerBusy
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.schedules import ops
from glidemq_orchestrate.schedules.schedule import CatchUp, JobTemplate, Schedule, SchedulerEntry
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

__all__ = ["AsyncSchedulers", "CatchUp", "JobTemplate", "Schedule", "SchedulerEntry", "Schedulers"]

PLAIN: Final = JobTemplate()
TRIES: Final = 400
PAUSE_SECONDS: Final = 0.025


class SchedulerOperations:
    """What can be done with the schedulers of a queue, each written once for both clients."""

    def __init__(self, keys: QueueKeys, clock: Clock) -> None:
        self._keys, self._clock = keys, clock

    def upsert(self, name: str, schedule: Schedule, template: JobTemplate = PLAIN) -> Op[SchedulerEntry]:
        """Write a scheduler and return it as stored. Safe to repeat.

        With the same pattern, interval, time zone, start and end it keeps its next run and its count of runs;
        otherwise both start again. Limit and template are always replaced. One that has reached its limit or
        its end stays ``finished``: a service may upsert its schedules at each start. If a Node worker fires
        the last run, it removes the entry, and the next upsert starts anew. A schedule that Node workers
        cannot compute (see ``Schedule``) is fired by Python workers only.

        Raises:
            ConfigurationError, InvalidJob, EncodeError, PayloadTooLarge: It is not valid, or has no slot
                between its start and end; nothing was written.
            SchedulerBusy: A worker held the lock for ten seconds; nothing was written.
        """
        return (yield from ops.upsert(self._keys, name, schedule, template, self._clock.now_ms()))

    def remove(self, name: str) -> Op[bool]:
        """Remove a scheduler; False if there was none. Jobs that it added remain. Safe to repeat.

        Raises:
            SchedulerBusy: A worker held the lock for ten seconds; nothing was removed.
        """
        return (yield from ops.remove(self._keys, name, self._clock.now_ms()))

    def get(self, name: str) -> Op[SchedulerEntry]:
        """Read one scheduler.

        Raises:
            SchedulerNotFound: There is none of this name.
        """
        return ops.get(self._keys, name)

    def list(self) -> Op[list[SchedulerEntry]]:
        """All schedulers of the queue by name, including those written by Node and finished ones."""
        return ops.find_all(self._keys)


def blocking_patiently(
    make: Callable[Concatenate[O, P], Op[T]],
) -> Callable[Concatenate[Blocking[O], P], T]:
    """``blocking``, repeated while a worker holds the lock, for at most ten seconds."""
    once = blocking(make)

    @functools.wraps(once)
    def call(self: Blocking[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        for left in range(TRIES, 0, -1):
            try:
                return once(self, *args, **kwargs)
            except SchedulerBusy:
                if left == 1:
                    raise
                time.sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    return call


def awaited_patiently(
    make: Callable[Concatenate[O, P], Op[T]],
) -> Callable[Concatenate[Awaiting[O], P], Coroutine[Any, Any, T]]:
    """``blocking_patiently`` for the awaitable twin."""
    once = awaited(make)

    @functools.wraps(once)
    async def call(self: Awaiting[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        for left in range(TRIES, 0, -1):
            try:
                return await once(self, *args, **kwargs)
            except SchedulerBusy:
                if left == 1:
                    raise
                await sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    return call


class Schedulers(SyncFacade):
    """The schedulers of one queue. Workers fire them; without a live worker nothing runs.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.
    """

    def __init__(
        self, queue: str, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(queue))
        self._operations = SchedulerOperations(self._keys, self._clock)

    upsert = blocking_patiently(SchedulerOperations.upsert)
    remove = blocking_patiently(SchedulerOperations.remove)
    get = blocking(SchedulerOperations.get)
    list = blocking(SchedulerOperations.list)


class AsyncSchedulers(AsyncFacade):
    """The schedulers of one queue, with awaitable calls.

    Workers fire them; without a live worker nothing runs.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.
    """

    def __init__(
        self, queue: str, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(queue))
        self._operations = SchedulerOperations(self._keys, self._clock)

    upsert = awaited_patiently(SchedulerOperations.upsert)
    remove = awaited_patiently(SchedulerOperations.remove)
    get = awaited(SchedulerOperations.get)
    list = awaited(SchedulerOperations.list)
