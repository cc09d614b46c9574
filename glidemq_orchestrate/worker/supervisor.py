"""The supervisor: keeps flows moving on queues whose workers are not ours, or are dead."""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from glidemq_orchestrate._ops import events
from glidemq_orchestrate._ops.worker import supervise as ops
from glidemq_orchestrate._ops.worker.supervise import Supervision, Tick
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import ConfigurationError, ProtocolError
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.jobs.options import DEFAULT_LOCK
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.worker.log import log_lost_workers
from glidemq_orchestrate.worker.service import Service

__all__ = ["Supervisor"]

LEAST_REST: Final = 0.2


class Supervisor(Service):
    """Maintains queues: flows with nodes that other workers ran, due jobs, and jobs of dead workers.

    Any number may supervise a queue: one leads, and another takes over some seconds after it dies.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        queues: At least one queue name: home queues of flows, and queues that only Node workers serve.
        prefix: First part of every key.
        interval: Time between two checks when nothing happens; 100 ms to 5 s.
        lock_duration: After this long without a heartbeat, the jobs of a worker are taken back; at least a
            second.
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
        interval: timedelta = timedelta(seconds=2),
        lock_duration: timedelta = DEFAULT_LOCK,
        max_stalled: int = 3,
        clock: Clock | None = None,
    ) -> None:
        name = f"supervisor-{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}"
        super().__init__(url, name=name, prefix=prefix, clock=clock)
        if not queues or isinstance(queues, str):
            raise ConfigurationError("queues must be a list of at least one queue name")
        if not timedelta(milliseconds=100) <= interval <= timedelta(seconds=5):
            raise ConfigurationError(f"interval must be 100 ms to 5 s, got {interval}")
        if lock_duration < timedelta(seconds=1):
            raise ConfigurationError(f"lock_duration must be at least a second, got {lock_duration}")
        self._interval_ms = milliseconds(interval)
        self._watches = [
            Supervision(
                QueueKeys(self._prefix, check_queue_name(name)),
                self.id,
                milliseconds(lock_duration),
                max_stalled,
            )
            for name in dict.fromkeys(queues)
        ]

    async def tick(self) -> bool:
        """Do once what the queues need now. Returns whether this supervisor leads all of them. Repeatable.

        Raises:
            GlideMQError: A queue could not be supervised.
        """
        ticks = [await self._run(ops.tick(watch, self._clock)) for watch in self._watches]
        return all(tick.leading for tick in ticks)

    async def resign(self) -> None:
        """Let another supervisor lead immediately; ``tick`` takes the lead again if it is free."""
        for watch in self._watches:
            await self._run(ops.resign(watch))

    _kind = "supervisor"

    def _introduction(self) -> str:
        return f"{self.id} supervises queues {', '.join(watch.queue.queue for watch in self._watches)}"

    async def _begin(self) -> None:
        for watch in self._watches:
            try:
                await self._run(ops.tick(watch, self._clock))
            except ProtocolError as exc:  # keys of one queue are broken: still supervise the others
                self._failures.report(f"supervising queue {watch.queue.queue}", exc)
            self._keep(f"supervising queue {watch.queue.queue}", functools.partial(self._supervise, watch))

    async def _finish(self) -> None:
        await self._end_tasks()
        if self._own() is not None:  # else the lock expires by itself
            await self._quietly("resigning", self.resign)

    async def _supervise(self, watch: Supervision) -> None:
        while True:
            position = await self._run(events.tail(watch.queue))
            try:
                tick = await self._run(ops.tick(watch, self._clock))
            finally:
                log_lost_workers(watch.lost)
                watch.lost.clear()
            self._failures.clear(f"supervising queue {watch.queue.queue}")
            await asyncio.sleep(LEAST_REST)
            await self._rest(watch, tick, position)

    async def _rest(self, watch: Supervision, tick: Tick, position: str) -> None:
        """Wait until something is due; a leader of foreign workers also wakes on events of the queue."""
        until = self._clock.monotonic_ms() + self._interval_ms
        if tick.due_ms >= 0:
            until = min(until, self._clock.monotonic_ms() + tick.due_ms - self._clock.now_ms())
        if tick.leading and tick.foreign:
            await self._run(ops.rest(watch.queue, position, until, self._clock))
        else:
            await asyncio.sleep(max(until - self._clock.monotonic_ms(), 0) / 1000)
