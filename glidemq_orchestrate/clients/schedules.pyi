# Made by `make generated` from the operations. Do not edit.
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.twins import Awaiting, Blocking, O, P, T
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.schedules.schedule import CatchUp, JobTemplate, Schedule, ScheduleEntry
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys

__all__ = ["AsyncSchedules", "CatchUp", "JobTemplate", "Schedule", "ScheduleEntry", "Schedules"]
PLAIN: Final[JobTemplate]
TRIES: Final[int]
PAUSE_SECONDS: Final[float]

class ScheduleOperations:
    """The operations on the schedules of a queue, written once for both clients."""

    def __init__(self, keys: QueueKeys, clock: Clock) -> None: ...
    def upsert(self, name: str, schedule: Schedule, template: JobTemplate = PLAIN) -> Op[ScheduleEntry]:
        """Write a schedule and return it as stored. Safe to repeat.

        If pattern, interval, time zone, start and end are unchanged, so are its next run and its run count;
        otherwise both are reset. Limit and template are always replaced. A schedule that has reached its
        limit or end stays ``finished``, so a service may upsert its schedules at each start. A Node worker
        that fires the last run removes the entry, and the next upsert starts over. Only Python workers fire a
        schedule that Node workers cannot compute (see ``Schedule``).

        Raises:
            ConfigurationError, InvalidJob, EncodeError, PayloadTooLarge: The schedule or template is not
                valid, or no run falls between start and end. Nothing was written.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was written.
        """

    def remove(self, name: str) -> Op[bool]:
        """Remove a schedule; False if there was none. Its jobs remain. Safe to repeat.

        Raises:
            ScheduleBusy: A worker held the lock for ten seconds; nothing was removed.
        """

    def pause(self, name: str) -> Op[ScheduleEntry]:
        """Keep a schedule from firing until ``resume``; returns it as stored. Safe to repeat.

        Its jobs remain. ``upsert`` changes it and leaves it paused; ``remove`` removes it. No worker, in
        Python or Node, fires it, and Node clients do not list it. If a Node client upserts it, our workers
        pause it again within seconds; it may fire before. A finished schedule is left as it is.

        Raises:
            ScheduleNotFound: No schedule has this name.
            ConfigurationError: It is ``broken``: what is stored is not a schedule.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was changed.
        """

    def resume(self, name: str) -> Op[ScheduleEntry]:
        """Let a paused schedule fire again; returns it as stored. Safe to repeat.

        Slots that passed during the pause are omitted, whatever ``catch_up`` is. ``every`` keeps its rhythm,
        and ``repeat_after_complete`` fires at once if its pause is over.

        Raises:
            ScheduleNotFound: No schedule has this name.
            ConfigurationError: It is ``broken``: what is stored is not a schedule.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was changed.
        """

    def get(self, name: str) -> Op[ScheduleEntry]:
        """Read one schedule.

        Raises:
            ScheduleNotFound: No schedule has this name.
        """

    def list(self) -> Op[list[ScheduleEntry]]:
        """List all schedules of the queue by name, also finished and paused ones, and those of Node."""

def blocking_patiently(make: Callable[Concatenate[O, P], Op[T]]) -> Callable[Concatenate[Blocking[O], P], T]:
    """``blocking``, repeated while a worker holds the lock, for at most ten seconds."""

def awaited_patiently(
    make: Callable[Concatenate[O, P], Op[T]],
) -> Callable[Concatenate[Awaiting[O], P], Coroutine[Any, Any, T]]:
    """``blocking_patiently`` for the awaitable twin."""

class Schedules(SyncFacade):
    """The schedules of one queue. Live workers fire them.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        clock: For tests.
    """

    _keys: QueueKeys
    _operations: ScheduleOperations

    def __init__(
        self, queue: str, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None: ...
    def upsert(self, name: str, schedule: Schedule, template: JobTemplate = PLAIN) -> ScheduleEntry:
        """Write a schedule and return it as stored. Safe to repeat.

        If pattern, interval, time zone, start and end are unchanged, so are its next run and its run count;
        otherwise both are reset. Limit and template are always replaced. A schedule that has reached its
        limit or end stays ``finished``, so a service may upsert its schedules at each start. A Node worker
        that fires the last run removes the entry, and the next upsert starts over. Only Python workers fire a
        schedule that Node workers cannot compute (see ``Schedule``).

        Raises:
            ConfigurationError, InvalidJob, EncodeError, PayloadTooLarge: The schedule or template is not
                valid, or no run falls between start and end. Nothing was written.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was written.
        """

    def remove(self, name: str) -> bool:
        """Remove a schedule; False if there was none. Its jobs remain. Safe to repeat.

        Raises:
            ScheduleBusy: A worker held the lock for ten seconds; nothing was removed.
        """

    def pause(self, name: str) -> ScheduleEntry:
        """Keep a schedule from firing until ``resume``; returns it as stored. Safe to repeat.

        Its jobs remain. ``upsert`` changes it and leaves it paused; ``remove`` removes it. No worker, in
        Python or Node, fires it, and Node clients do not list it. If a Node client upserts it, our workers
        pause it again within seconds; it may fire before. A finished schedule is left as it is.

        Raises:
            ScheduleNotFound: No schedule has this name.
            ConfigurationError: It is ``broken``: what is stored is not a schedule.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was changed.
        """

    def resume(self, name: str) -> ScheduleEntry:
        """Let a paused schedule fire again; returns it as stored. Safe to repeat.

        Slots that passed during the pause are omitted, whatever ``catch_up`` is. ``every`` keeps its rhythm,
        and ``repeat_after_complete`` fires at once if its pause is over.

        Raises:
            ScheduleNotFound: No schedule has this name.
            ConfigurationError: It is ``broken``: what is stored is not a schedule.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was changed.
        """

    def get(self, name: str) -> ScheduleEntry:
        """Read one schedule.

        Raises:
            ScheduleNotFound: No schedule has this name.
        """

    def list(self) -> list[ScheduleEntry]:
        """List all schedules of the queue by name, also finished and paused ones, and those of Node."""

class AsyncSchedules(AsyncFacade):
    """The schedules of one queue, with awaitable calls.

    Live workers fire them.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        clock: For tests.
    """

    _keys: QueueKeys
    _operations: ScheduleOperations

    def __init__(
        self, queue: str, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None: ...
    async def upsert(self, name: str, schedule: Schedule, template: JobTemplate = PLAIN) -> ScheduleEntry:
        """Write a schedule and return it as stored. Safe to repeat.

        If pattern, interval, time zone, start and end are unchanged, so are its next run and its run count;
        otherwise both are reset. Limit and template are always replaced. A schedule that has reached its
        limit or end stays ``finished``, so a service may upsert its schedules at each start. A Node worker
        that fires the last run removes the entry, and the next upsert starts over. Only Python workers fire a
        schedule that Node workers cannot compute (see ``Schedule``).

        Raises:
            ConfigurationError, InvalidJob, EncodeError, PayloadTooLarge: The schedule or template is not
                valid, or no run falls between start and end. Nothing was written.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was written.
        """

    async def remove(self, name: str) -> bool:
        """Remove a schedule; False if there was none. Its jobs remain. Safe to repeat.

        Raises:
            ScheduleBusy: A worker held the lock for ten seconds; nothing was removed.
        """

    async def pause(self, name: str) -> ScheduleEntry:
        """Keep a schedule from firing until ``resume``; returns it as stored. Safe to repeat.

        Its jobs remain. ``upsert`` changes it and leaves it paused; ``remove`` removes it. No worker, in
        Python or Node, fires it, and Node clients do not list it. If a Node client upserts it, our workers
        pause it again within seconds; it may fire before. A finished schedule is left as it is.

        Raises:
            ScheduleNotFound: No schedule has this name.
            ConfigurationError: It is ``broken``: what is stored is not a schedule.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was changed.
        """

    async def resume(self, name: str) -> ScheduleEntry:
        """Let a paused schedule fire again; returns it as stored. Safe to repeat.

        Slots that passed during the pause are omitted, whatever ``catch_up`` is. ``every`` keeps its rhythm,
        and ``repeat_after_complete`` fires at once if its pause is over.

        Raises:
            ScheduleNotFound: No schedule has this name.
            ConfigurationError: It is ``broken``: what is stored is not a schedule.
            ScheduleBusy: A worker held the lock for ten seconds; nothing was changed.
        """

    async def get(self, name: str) -> ScheduleEntry:
        """Read one schedule.

        Raises:
            ScheduleNotFound: No schedule has this name.
        """

    async def list(self) -> list[ScheduleEntry]:
        """List all schedules of the queue by name, also finished and paused ones, and those of Node."""
