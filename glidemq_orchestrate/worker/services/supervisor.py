"""The supervisor: keeps flows moving in queues with foreign or dead workers.

``QueueChores`` has the periodic chores of a worker in a queue.
"""

from __future__ import annotations

import functools
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.attempts import client_supervision, upkeep, workers
from glidemq_orchestrate.attempts.client_supervision import Area
from glidemq_orchestrate.attempts.handler_code import registered_code
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.attempts.workers import REGISTERED_MS
from glidemq_orchestrate.errors import GlideMQError, ProtocolError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs.attempt import OURS
from glidemq_orchestrate.jobs.options import DEFAULT_LEASE
from glidemq_orchestrate.schedules import ops as schedules
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.shards import with_shard_counts
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys
from glidemq_orchestrate.worker.feed import NEVER, Feed
from glidemq_orchestrate.worker.handlers.code import Codes
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.log import log_lost_workers, log_other_code
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.renewing import Heartbeats
from glidemq_orchestrate.worker.services.registration import of_process
from glidemq_orchestrate.worker.services.service import Service
from glidemq_orchestrate.worker.silent_workers import SilentWorkers

__all__ = ["Supervisor"]

MAX_REST_SECONDS: Final = 5.0
SHARDS_SECONDS: Final = 10.0


class Supervisor(Service):
    """Maintains queues: flows with nodes that other workers ran, due jobs, and jobs of dead workers.

    Any number of supervisors may run for a queue: one leads, and another takes over some seconds after it
    dies. Queues that share flows with these are supervised too, if they have no other leader.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        queues: At least one queue name: home queues of flows, and queues that only Node workers serve. Their
            shards are supervised too.
        prefix: First part of every key.
        interval: The time between two checks while nothing happens; 100 ms to 5 s.
        lease: The jobs of a worker are reclaimed after this long without a heartbeat; at least a second.
        max_stalled: How often a job may stall before it fails.
        clock: For tests.

    Raises:
        ConfigurationError: A value is not usable.
    """

    def __init__(  # noqa: PLR0913  all but the first two have defaults
        self,
        url: Address = None,
        *,
        queues: Sequence[str],
        prefix: str = DEFAULT_PREFIX,
        interval: Duration = 2,
        lease: Duration = DEFAULT_LEASE,
        max_stalled: int = 3,
        clock: Clock | None = None,
    ) -> None:
        name = f"supervisor-{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}"
        super().__init__(url, name=name, prefix=prefix, clock=clock)
        every = duration("interval", interval, min_=timedelta(milliseconds=100), max_=timedelta(seconds=5))
        lock = duration("lease", lease, min_=timedelta(seconds=1))
        self._named, self._every_ms = self._keys_of(queues), milliseconds(every)
        self._lock_ms, self._max_stalled = milliseconds(lock), max_stalled
        self._supervised: dict[QueueKeys, Area] = {}
        self._shards_read_at = -math.inf

    async def _find_queues(self) -> list[Area]:
        """Find the queues and their shards, at intervals; returns the areas of those that are new."""
        if time.monotonic() - self._shards_read_at < SHARDS_SECONDS:
            return []
        every, self._shards_read_at = await self._with_shards(self._named), time.monotonic()
        new = [keys for keys in every if keys not in self._supervised]
        for keys in new:
            own = Supervision(keys, self.id, self._lock_ms, self._max_stalled)
            around = self._supervised.keys()
            self._supervised[keys] = Area(own, self._clock, self._every_ms, self._every_ms, around)
        return [self._supervised[keys] for keys in new]

    async def tick(self) -> bool:
        """Maintain all queues once. Returns whether this supervisor leads all of them. Repeatable.

        Raises:
            GlideMQError: A queue could not be supervised.
        """
        await self._find_queues()
        for area in self._supervised.values():
            await self._run(client_supervision.supervise(area))
        return all(area.leads for area in self._supervised.values())

    @property
    def rest(self) -> float:
        """The seconds until the next ``tick`` has something to do."""
        return min((area.rest_ms for area in self._supervised.values()), default=0) / 1000

    async def resign(self) -> None:
        """Release the lead immediately; ``tick`` takes it again if it is free."""
        for area in self._supervised.values():
            await self._run(client_supervision.resign(area))

    _kind = "supervisor"

    def _introduction(self) -> str:
        return f"{self.id} supervises queues {with_shard_counts(self._named, self._supervised)}"

    async def _begin(self) -> None:
        for area in await self._find_queues():
            try:
                await self._run(client_supervision.supervise(area))
            except ProtocolError as exc:  # keys of one queue are broken: still supervise the others
                self._failures.report(_what(area), exc)
            self._watch(area)
        self._every("shards", SHARDS_SECONDS, self._watch_new_queues, immediately=False)

    async def _watch_new_queues(self) -> None:
        for area in await self._find_queues():
            self._watch(area)

    def _watch(self, area: Area) -> None:
        self._every(_what(area), MAX_REST_SECONDS, functools.partial(supervise, self._run_chore, area))

    async def _finish(self) -> None:
        await self._end_tasks()
        if self._own() is not None:  # otherwise the lock expires
            await self._quietly("resigning", self.resign)


def _what(area: Area) -> str:
    return f"supervising queue {area.own.queue.queue}"


MIN_MS: Final = 20


async def supervise(run: Run, area: Area) -> float:
    """Supervise a queue once; returns the seconds until the next time.

    Raises:
        GlideMQError: The queue could not be supervised; the next call tries again, whenever it comes. Lost
            workers that were found are logged.
    """
    try:
        await run(client_supervision.supervise(area))
    except GlideMQError:
        area.check_ms = 0
        raise
    finally:
        log_lost_workers(area.own.lost)
        area.own.lost.clear()
    return area.rest_ms / 1000


def seconds_until(due_ms: int, clock: Clock) -> float | None:
    """The seconds until a time, at least 20 ms; None for a negative time, which means never."""
    return max(due_ms - clock.now_ms(), MIN_MS) / 1000 if due_ms >= 0 else None


@dataclass(frozen=True, slots=True)
class QueueChores:
    """The periodic chores of a worker in a queue; each returns the seconds until its next run.

    Attributes:
        run: Drives operations.
        worker_id: The worker.
        keys: The queue.
        handlers: The handlers of the worker.
        slots: The jobs that it holds.
        heartbeats: Its heartbeats.
        silent: The silent workers of the queue.
        area: The queue and the queues around it.
        clock: The current time.
        codes: The code of its handlers.
    """

    run: Run
    worker_id: str
    keys: QueueKeys
    handlers: Handlers
    slots: JobSlots
    heartbeats: Heartbeats
    silent: SilentWorkers
    area: Area
    clock: Clock
    codes: Codes

    async def announce(self) -> None:
        """Register the worker: its host and process, what it uses, and its handlers with their code."""
        started_ms = int(self.worker_id.removeprefix(OURS).split("-")[0])
        description = {
            **of_process(started_ms, self.slots, len(self.slots.held)),
            "handlers": None if self.handlers.takes_all else self.handlers.names,
            **registered_code(self.codes.find()),
        }
        now_ms = self.clock.now_ms()
        await self.run(workers.announce([self.keys], self.worker_id, description, REGISTERED_MS, now_ms))

    async def compare_code(self) -> None:
        """Warn if other workers of the queue have other code for handlers of the same names."""
        code = self.codes.find()
        calls = workers.other_code(self.keys, self.worker_id, code, self.clock.now_ms())
        log_other_code(self.keys, code, await self.run(calls))

    async def maintain(self) -> float | None:
        """Do the upkeep of the queue: due work, unsettled flows and cleanup."""
        return seconds_until(await self.run(upkeep.upkeep([self.keys], self.clock)), self.clock)

    async def fire(self, feed: Feed) -> float | None:
        """Add the jobs of due schedules."""
        due_ms = await self.run(schedules.tick(self.keys, self.clock))
        feed.schedules_due_ms = due_ms if due_ms >= 0 else NEVER
        return seconds_until(due_ms, self.clock)

    async def reclaim(self) -> None:
        """Reclaim the jobs of lost workers."""
        await self.heartbeats.catch_up(self.keys.queue)
        own = self.area.own
        found = await self.run(
            upkeep.reclaim(
                self.keys, self.worker_id, lock_ms=own.lock_ms, max_stalled=own.max_stalled,
                clock=self.clock, silent_ms=self.silent.wanted_ms(),
            )
        )  # fmt: skip
        log_lost_workers((self.keys, one) for one in found.lost)
        self.silent.note(found.silent, self.clock.now_ms())

    async def supervise(self) -> float:
        """Advance the flows of the queue."""
        await self.heartbeats.catch_up(self.keys.queue)
        return await supervise(self.run, self.area)
