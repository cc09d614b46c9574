"""ChasquiQueue and AsyncChasquiQueue: the jobs of one queue of ChasquiMQ."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from glidemq_orchestrate.chasquimq.keys import ChasquiKeys, check_queue
from glidemq_orchestrate.chasquimq.operations import ChasquiOperations
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.twins import awaited, blocking, streamed, streamed_async
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, duration
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.confirmation import check_confirmation

__all__ = ["AsyncChasquiQueue", "ChasquiQueue"]

MAX_WAITING: Final = 1_000_000
MAX_DELAY: Final = timedelta(days=30)


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

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        name: str,
        url: Address = None,
        *,
        require_chasquimq: bool = False,
        max_waiting: int | None = MAX_WAITING,
        max_delay: Duration = MAX_DELAY,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, clock=clock)
        self._operations = ChasquiOperations(
            ChasquiKeys(check_queue(name)),
            self._clock,
            max_waiting=max_waiting,
            max_delay=duration("max_delay", max_delay),
            require_chasquimq=require_chasquimq,
        )

    def _checks(self) -> Op[None]:
        yield from self._operations.check_server()
        yield from check_confirmation(self._confirmation)

    serves_chasquimq = blocking(ChasquiOperations.serves_chasquimq)
    add = blocking(ChasquiOperations.add)
    add_many = blocking(ChasquiOperations.add_many)
    cancel = blocking(ChasquiOperations.cancel)
    result = blocking(ChasquiOperations.result)
    results = blocking(ChasquiOperations.results)
    counts = blocking(ChasquiOperations.counts)
    dead_letters = blocking(ChasquiOperations.dead_letters)
    replay_dead_letters = blocking(ChasquiOperations.replay_dead_letters)
    remove_dead_letter = blocking(ChasquiOperations.remove_dead_letter)
    upsert_schedule = blocking(ChasquiOperations.upsert_schedule)
    get_schedules = blocking(ChasquiOperations.get_schedules)
    remove_schedule = blocking(ChasquiOperations.remove_schedule)
    events = streamed(ChasquiOperations.events)


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

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        name: str,
        url: Address = None,
        *,
        require_chasquimq: bool = False,
        max_waiting: int | None = MAX_WAITING,
        max_delay: Duration = MAX_DELAY,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, clock=clock)
        self._operations = ChasquiOperations(
            ChasquiKeys(check_queue(name)),
            self._clock,
            max_waiting=max_waiting,
            max_delay=duration("max_delay", max_delay),
            require_chasquimq=require_chasquimq,
        )

    def _checks(self) -> Op[None]:
        yield from self._operations.check_server()
        yield from check_confirmation(self._confirmation)

    serves_chasquimq = awaited(ChasquiOperations.serves_chasquimq)
    add = awaited(ChasquiOperations.add)
    add_many = awaited(ChasquiOperations.add_many)
    cancel = awaited(ChasquiOperations.cancel)
    result = awaited(ChasquiOperations.result)
    results = awaited(ChasquiOperations.results)
    counts = awaited(ChasquiOperations.counts)
    dead_letters = awaited(ChasquiOperations.dead_letters)
    replay_dead_letters = awaited(ChasquiOperations.replay_dead_letters)
    remove_dead_letter = awaited(ChasquiOperations.remove_dead_letter)
    upsert_schedule = awaited(ChasquiOperations.upsert_schedule)
    get_schedules = awaited(ChasquiOperations.get_schedules)
    remove_schedule = awaited(ChasquiOperations.remove_schedule)
    events = streamed_async(ChasquiOperations.events)
