"""The chores of a worker in a queue: registration, due jobs, schedules, lost workers, flows."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.attempts import client_supervision as tendings
from glidemq_orchestrate.attempts import upkeep, workers
from glidemq_orchestrate.attempts.client_supervision import Tending
from glidemq_orchestrate.attempts.workers import REGISTERED_MS
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import OURS
from glidemq_orchestrate.schedules import ops as schedulers
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.feed.feed import NEVER, Feed
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.leases.heartbeats import Heartbeats
from glidemq_orchestrate.worker.log import log_lost_workers

MIN_MS: Final = 20


async def tend(run: Run, tending: Tending) -> float:
    """Supervise a queue once; returns the seconds until the next time.

    Raises:
        GlideMQError: The queue could not be supervised. Lost workers that were found are logged.
    """
    try:
        await run(tendings.tend(tending))
    finally:
        log_lost_workers(tending.own.lost)
        tending.own.lost.clear()
    return tending.rest_ms / 1000


def seconds_until(due_ms: int, clock: Clock) -> float | None:
    """The seconds until a time, at least 20 ms; None for a negative one, which never comes."""
    return max(due_ms - clock.now_ms(), MIN_MS) / 1000 if due_ms >= 0 else None


@dataclass(frozen=True, slots=True)
class QueueChores:
    """What a worker does in a queue at intervals; each returns in how many seconds to repeat it.

    Attributes:
        run: Drives operations.
        worker_id: The worker.
        keys: The queue.
        handlers: What it can run.
        slots: The jobs that it holds.
        heartbeats: Its heartbeats.
        tending: What it supervises.
        clock: The current time.
    """

    run: Run
    worker_id: str
    keys: QueueKeys
    handlers: Handlers
    slots: JobSlots
    heartbeats: Heartbeats
    tending: Tending
    clock: Clock

    async def announce(self) -> None:
        """Register the worker, its place, and what it can run."""
        description = {
            "addr": socket.gethostname(),
            "pid": os.getpid(),
            "startedAt": int(self.worker_id.removeprefix(OURS).split("-")[0]),
            "activeJobs": len(self.slots.held),
            "handlers": self.handlers.names,
        }
        now_ms = self.clock.now_ms()
        await self.run(workers.announce([self.keys], self.worker_id, description, REGISTERED_MS, now_ms))

    async def maintain(self) -> float | None:
        """Promote due jobs and expire old ones."""
        return seconds_until(await self.run(upkeep.upkeep([self.keys], self.clock)), self.clock)

    async def fire(self, feed: Feed) -> float | None:
        """Add the jobs of due schedules."""
        due_ms = await self.run(schedulers.tick(self.keys, self.clock))
        feed.schedules_due_ms = due_ms if due_ms >= 0 else NEVER
        return seconds_until(due_ms, self.clock)

    async def reclaim(self) -> None:
        """Take back the jobs of lost workers."""
        await self.heartbeats.catch_up(self.keys.queue)
        own = self.tending.own
        lost = await self.run(
            upkeep.reclaim(
                [self.keys], self.worker_id,
                lock_ms=own.lock_ms, max_stalled=own.max_stalled, clock=self.clock,
            )
        )  # fmt: skip
        log_lost_workers(lost)

    async def supervise(self) -> float:
        """Move the flows of the queue on."""
        await self.heartbeats.catch_up(self.keys.queue)
        return await tend(self.run, self.tending)
