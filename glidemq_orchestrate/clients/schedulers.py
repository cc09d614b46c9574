"""Schedulers and AsyncSchedulers: the repeating jobs of one queue."""

from __future__ import annotations

import time
from typing import Final

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.outage import sleep
from glidemq_orchestrate.errors import SchedulerBusy
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.schedules import ops
from glidemq_orchestrate.schedules.schedule import CatchUp, JobTemplate, Schedule, SchedulerEntry
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

__all__ = ["AsyncSchedulers", "CatchUp", "JobTemplate", "Schedule", "SchedulerEntry", "Schedulers"]

PLAIN: Final = JobTemplate()
TRIES: Final = 400
PAUSE_SECONDS: Final = 0.025


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

    def upsert(self, name: str, schedule: Schedule, template: JobTemplate = PLAIN) -> SchedulerEntry:
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
        for left in range(TRIES, 0, -1):
            try:
                return self._run(ops.upsert(self._keys, name, schedule, template, self._now()))
            except SchedulerBusy:
                if left == 1:
                    raise
                time.sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    def remove(self, name: str) -> bool:
        """Remove a scheduler; False if there was none. Jobs that it added remain. Safe to repeat.

        Raises:
            SchedulerBusy: A worker held the lock for ten seconds; nothing was removed.
        """
        for left in range(TRIES, 0, -1):
            try:
                return self._run(ops.remove(self._keys, name, self._now()))
            except SchedulerBusy:
                if left == 1:
                    raise
                time.sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    def get(self, name: str) -> SchedulerEntry:
        """Read one scheduler.

        Raises:
            SchedulerNotFound: There is none of this name.
        """
        return self._run(ops.get(self._keys, name))

    def list(self) -> list[SchedulerEntry]:
        """All schedulers of the queue by name, including those written by Node and finished ones."""
        return self._run(ops.find_all(self._keys))


class AsyncSchedulers(AsyncFacade):
    """``Schedulers`` with awaitable calls; same arguments, same errors."""

    def __init__(
        self, queue: str, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(queue))

    async def upsert(self, name: str, schedule: Schedule, template: JobTemplate = PLAIN) -> SchedulerEntry:
        """See ``Schedulers.upsert``."""
        for left in range(TRIES, 0, -1):
            try:
                return await self._run(ops.upsert(self._keys, name, schedule, template, await self._now()))
            except SchedulerBusy:
                if left == 1:
                    raise
                await sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    async def remove(self, name: str) -> bool:
        """See ``Schedulers.remove``."""
        for left in range(TRIES, 0, -1):
            try:
                return await self._run(ops.remove(self._keys, name, await self._now()))
            except SchedulerBusy:
                if left == 1:
                    raise
                await sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    async def get(self, name: str) -> SchedulerEntry:
        """See ``Schedulers.get``."""
        return await self._run(ops.get(self._keys, name))

    async def list(self) -> list[SchedulerEntry]:
        """See ``Schedulers.list``."""
        return await self._run(ops.find_all(self._keys))
