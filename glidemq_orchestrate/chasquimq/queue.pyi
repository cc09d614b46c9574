# Made by `make generated` from the operations. Do not edit.
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from glidemq_orchestrate.chasquimq.adding import ChasquiJob
from glidemq_orchestrate.chasquimq.dead_letters import ChasquiDeadLetter
from glidemq_orchestrate.chasquimq.envelope import ChasquiBackoff
from glidemq_orchestrate.chasquimq.events import ChasquiEvent
from glidemq_orchestrate.chasquimq.keys import GROUP
from glidemq_orchestrate.chasquimq.msgpack import Packable
from glidemq_orchestrate.chasquimq.operations import ChasquiCounts, ChasquiOperations
from glidemq_orchestrate.chasquimq.schedules import ChasquiSchedule
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op

__all__ = ["AsyncChasquiQueue", "ChasquiQueue"]
MAX_WAITING: Final[int]
MAX_DELAY: Final[timedelta]

class ChasquiQueue(SyncFacade):
    """One queue of ChasquiMQ on one server, in the format of ChasquiMQ 1.3. Thread-safe.

    On Redis 8.6 or newer, producers and workers of ChasquiMQ may share the queue. On Valkey 7.2 and Redis 7.0
    or newer, only clients and workers of this package do.

    Args:
        name: 1 to 256 characters, none of ``{ }``.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        require_chasquimq: Refuse a server on which ChasquiMQ's own workers cannot run.
        max_waiting: As in ChasquiMQ, the oldest waiting jobs are lost beyond about this number. None: this
            client drops none; other producers and workers may.
        max_delay: Longer delays are refused.
        clock: For tests.

    Raises:
        ConfigurationError, InvalidJob: An argument is not valid. No connection was opened: the first call
            does that.

    Example:
        >>> with ChasquiQueue("images", "redis://127.0.0.1:6379") as queue:  # doctest: +SKIP
        ...     queue.add("resize", {"file": "a.png"}, job_id="a.png", attempts=3)
    """

    _operations: ChasquiOperations

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        require_chasquimq: bool = False,
        max_waiting: int | None = MAX_WAITING,
        max_delay: Duration = MAX_DELAY,
        clock: Clock | None = None,
    ) -> None: ...
    def _checks(self) -> Op[None]: ...
    def serves_chasquimq(self) -> bool:
        """Whether ChasquiMQ's own workers and producers can use this server: a Redis 8.6 or newer."""

    def add(
        self,
        name: str,
        data: Packable = None,
        *,
        job_id: str | None = None,
        delay: Duration = 0,
        attempts: int | None = None,
        backoff: ChasquiBackoff | None = None,
    ) -> str:
        """Add a job and return its id.

        An id is a guard against repeats, not against a second job. Without a delay, this client adds the same
        id once within 100 seconds (as long as at most 100 newer ids were added), another client adds it
        again. With a delay, no client adds it again until an hour after it is due; the first data and time
        remain. In both cases the id is returned.

        Args:
            name: Decides which code runs it; at most 256 bytes, may be empty.
            data: None, numbers, texts, bytes, lists, and maps whose keys are texts; as an envelope at most
                1 MiB.
            job_id: An id of your own, not blank. By default a new one. Only a delayed job with an id can be
                cancelled.
            delay: How long it waits before workers may run it.
            attempts: The max number of runs; by default what the worker uses.
            backoff: The pauses between runs; by default what the worker uses.

        Raises:
            InvalidJob: A value is not valid, or the delay is longer than ``max_delay``; nothing was sent.
            EncodeError, PayloadTooLarge: The data cannot be packed, or is too long; nothing was sent.
            ServerBusy: The server's memory is full; nothing was added.
            OutcomeUnknown: The connection broke. Repeat the call only with a ``job_id``.
        """

    def add_many(self, jobs: Iterable[ChasquiJob]) -> list[str]:
        """Add many jobs, in their order, up to 1,000 per round trip; returns their ids. See ``add``.

        Not all or nothing: if a call fails, some of the jobs may have been added. With ids, repeat it.

        Raises:
            InvalidJob, EncodeError, PayloadTooLarge: A job is not valid; nothing was sent.
            ServerBusy: The server's memory is full; some may have been added.
        """

    def cancel(self, job_id: str) -> bool:
        """Cancel a delayed job that was added with an id; its id is free again.

        Returns:
            True: it will not run. False: it is already in the queue, was added without an id, waits for
            another run, or is unknown.
        """

    def result(self, job_id: str) -> Any:
        """Read what the handler of a job returned.

        None: the job has not completed, or its worker stores no results, or the handler returned None, or
        the result has expired (by default after an hour).

        Raises:
            DecodeError: The stored result is not msgpack.
        """

    def results(self, job_ids: Sequence[str]) -> list[Any]:
        """Read the results of many jobs, in this order, 200 per round trip; see ``result``.

        Raises:
            DecodeError: A stored result is not msgpack.
        """

    def counts(self, *, group: str = GROUP) -> ChasquiCounts:
        """Count what is in the queue.

        Args:
            group: The consumer group of the workers.
        """

    def dead_letters(self, limit: int = 20) -> list[ChasquiDeadLetter]:
        """List the dead letters, oldest first."""

    def replay_dead_letters(self, limit: int = 100) -> int:
        """Add dead letters to the queue again, oldest first, and delete the letters; returns how many moved.

        Their runs are counted from zero. Letters without a readable envelope remain; they count towards the
        limit, and ``remove_dead_letter`` deletes them. Safe to repeat: no letter moves twice.

        Args:
            limit: How many of the oldest dead letters to examine.
        """

    def remove_dead_letter(self, letter_id: str) -> None:
        """Delete a dead letter.

        Raises:
            JobNotFound: The queue has no dead letter with this id.
        """

    def upsert_schedule(
        self,
        name: str,
        data: Packable = None,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: int = 0,
    ) -> str:
        """Write a repeating job and return its key, which name and times make. Safe to repeat.

        The next run is computed anew, from now on or from ``start``; the number of runs so far remains. Live
        workers add the jobs, each with a new id.

        Args:
            name: The name of its jobs.
            data: Their data.
            every: A fixed interval; the first job is added after one.
            cron: Minute, hour, day of month, month, day of week; with six fields, seconds come first. If
                neither day field is ``*``, one of them must match.
            time_zone: The zone of ``cron``: an IANA name, or an offset such as ``+02:00``. By default UTC.
            limit: The total number of jobs.
            start: No job before this time.
            end: No job after this time.
            catch_up: How many runs that were missed while no worker was alive are made up for; 0: none.

        Raises:
            ConfigurationError, InvalidJob, EncodeError: A value is not valid, or there is no run before the
                end. Nothing was written.
        """

    def get_schedules(self, limit: int = 100) -> list[ChasquiSchedule]:
        """List the repeating jobs by their next run; one that cannot be read has ``broken`` set."""

    def remove_schedule(self, key: str) -> bool:
        """Remove a repeating job by its key; False if there was none. Jobs that it has added remain."""

    def events(
        self, position: str | None = None, *, idle_timeout: Duration | None = None
    ) -> Iterator[ChasquiEvent]:
        """Yield the events of the queue, in order.

        An event is a sign that something happened. Workers write events after the fact, drop those that
        cannot be written, and keep about the newest 100,000.

        Args:
            position: Continue after the event with this ``id``. None: only events from now on. ``0-0``: from
                the oldest event still stored.
            idle_timeout: End after this long without an event. None: never.

        Raises:
            ConfigurationError: The position is not valid.
            TransportError: The server is unreachable. Continue after the last event.
        """

class AsyncChasquiQueue(AsyncFacade):
    """One queue of ChasquiMQ on one server, with awaitable calls, for one event loop.

    It has the format of ChasquiMQ 1.3. On Redis 8.6 or newer, producers and workers of ChasquiMQ may share
    the queue. On Valkey 7.2 and Redis 7.0 or newer, only clients and workers of this package do.

    Args:
        name: 1 to 256 characters, none of ``{ }``.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        require_chasquimq: Refuse a server on which ChasquiMQ's own workers cannot run.
        max_waiting: As in ChasquiMQ, the oldest waiting jobs are lost beyond about this number. None: this
            client drops none; other producers and workers may.
        max_delay: Longer delays are refused.
        clock: For tests.

    Raises:
        ConfigurationError, InvalidJob: An argument is not valid. No connection was opened: the first call
            does that.
    """

    _operations: ChasquiOperations

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        require_chasquimq: bool = False,
        max_waiting: int | None = MAX_WAITING,
        max_delay: Duration = MAX_DELAY,
        clock: Clock | None = None,
    ) -> None: ...
    def _checks(self) -> Op[None]: ...
    async def serves_chasquimq(self) -> bool:
        """Whether ChasquiMQ's own workers and producers can use this server: a Redis 8.6 or newer."""

    async def add(
        self,
        name: str,
        data: Packable = None,
        *,
        job_id: str | None = None,
        delay: Duration = 0,
        attempts: int | None = None,
        backoff: ChasquiBackoff | None = None,
    ) -> str:
        """Add a job and return its id.

        An id is a guard against repeats, not against a second job. Without a delay, this client adds the same
        id once within 100 seconds (as long as at most 100 newer ids were added), another client adds it
        again. With a delay, no client adds it again until an hour after it is due; the first data and time
        remain. In both cases the id is returned.

        Args:
            name: Decides which code runs it; at most 256 bytes, may be empty.
            data: None, numbers, texts, bytes, lists, and maps whose keys are texts; as an envelope at most
                1 MiB.
            job_id: An id of your own, not blank. By default a new one. Only a delayed job with an id can be
                cancelled.
            delay: How long it waits before workers may run it.
            attempts: The max number of runs; by default what the worker uses.
            backoff: The pauses between runs; by default what the worker uses.

        Raises:
            InvalidJob: A value is not valid, or the delay is longer than ``max_delay``; nothing was sent.
            EncodeError, PayloadTooLarge: The data cannot be packed, or is too long; nothing was sent.
            ServerBusy: The server's memory is full; nothing was added.
            OutcomeUnknown: The connection broke. Repeat the call only with a ``job_id``.
        """

    async def add_many(self, jobs: Iterable[ChasquiJob]) -> list[str]:
        """Add many jobs, in their order, up to 1,000 per round trip; returns their ids. See ``add``.

        Not all or nothing: if a call fails, some of the jobs may have been added. With ids, repeat it.

        Raises:
            InvalidJob, EncodeError, PayloadTooLarge: A job is not valid; nothing was sent.
            ServerBusy: The server's memory is full; some may have been added.
        """

    async def cancel(self, job_id: str) -> bool:
        """Cancel a delayed job that was added with an id; its id is free again.

        Returns:
            True: it will not run. False: it is already in the queue, was added without an id, waits for
            another run, or is unknown.
        """

    async def result(self, job_id: str) -> Any:
        """Read what the handler of a job returned.

        None: the job has not completed, or its worker stores no results, or the handler returned None, or
        the result has expired (by default after an hour).

        Raises:
            DecodeError: The stored result is not msgpack.
        """

    async def results(self, job_ids: Sequence[str]) -> list[Any]:
        """Read the results of many jobs, in this order, 200 per round trip; see ``result``.

        Raises:
            DecodeError: A stored result is not msgpack.
        """

    async def counts(self, *, group: str = GROUP) -> ChasquiCounts:
        """Count what is in the queue.

        Args:
            group: The consumer group of the workers.
        """

    async def dead_letters(self, limit: int = 20) -> list[ChasquiDeadLetter]:
        """List the dead letters, oldest first."""

    async def replay_dead_letters(self, limit: int = 100) -> int:
        """Add dead letters to the queue again, oldest first, and delete the letters; returns how many moved.

        Their runs are counted from zero. Letters without a readable envelope remain; they count towards the
        limit, and ``remove_dead_letter`` deletes them. Safe to repeat: no letter moves twice.

        Args:
            limit: How many of the oldest dead letters to examine.
        """

    async def remove_dead_letter(self, letter_id: str) -> None:
        """Delete a dead letter.

        Raises:
            JobNotFound: The queue has no dead letter with this id.
        """

    async def upsert_schedule(
        self,
        name: str,
        data: Packable = None,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: int = 0,
    ) -> str:
        """Write a repeating job and return its key, which name and times make. Safe to repeat.

        The next run is computed anew, from now on or from ``start``; the number of runs so far remains. Live
        workers add the jobs, each with a new id.

        Args:
            name: The name of its jobs.
            data: Their data.
            every: A fixed interval; the first job is added after one.
            cron: Minute, hour, day of month, month, day of week; with six fields, seconds come first. If
                neither day field is ``*``, one of them must match.
            time_zone: The zone of ``cron``: an IANA name, or an offset such as ``+02:00``. By default UTC.
            limit: The total number of jobs.
            start: No job before this time.
            end: No job after this time.
            catch_up: How many runs that were missed while no worker was alive are made up for; 0: none.

        Raises:
            ConfigurationError, InvalidJob, EncodeError: A value is not valid, or there is no run before the
                end. Nothing was written.
        """

    async def get_schedules(self, limit: int = 100) -> list[ChasquiSchedule]:
        """List the repeating jobs by their next run; one that cannot be read has ``broken`` set."""

    async def remove_schedule(self, key: str) -> bool:
        """Remove a repeating job by its key; False if there was none. Jobs that it has added remain."""

    def events(
        self, position: str | None = None, *, idle_timeout: Duration | None = None
    ) -> AsyncIterator[ChasquiEvent]:
        """Yield the events of the queue, in order.

        An event is a sign that something happened. Workers write events after the fact, drop those that
        cannot be written, and keep about the newest 100,000.

        Args:
            position: Continue after the event with this ``id``. None: only events from now on. ``0-0``: from
                the oldest event still stored.
            idle_timeout: End after this long without an event. None: never.

        Raises:
            ConfigurationError: The position is not valid.
            TransportError: The server is unreachable. Continue after the last event.
        """
