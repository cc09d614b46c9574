"""The heartbeats of a worker: they renew the leases of the jobs that it holds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from glidemq_orchestrate.attempts import leases as ops
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.leases.renewer import Renewer

MAX_BEAT_SECONDS: Final = 1.0


class Heartbeats:
    """Renews leases queue by queue, and keeps the renewing process informed.

    Args:
        run: Drives operations.
        queues: The names of the queues that the worker serves.
        slots: The jobs that it holds.
        renewer: Its renewing process.
        lock_seconds: How long a lease lasts.
        clock: The current time.

    Attributes:
        seconds: The time between two heartbeats of a queue.
    """

    def __init__(  # noqa: PLR0913, PLR0917  what its worker has
        self,
        run: Run,
        queues: Iterable[str],
        slots: JobSlots,
        renewer: Renewer,
        lock_seconds: float,
        clock: Clock,
    ) -> None:
        self._run, self._queues, self._slots, self._renewer = run, list(queues), slots, renewer
        self._clock, self.seconds = clock, min(lock_seconds / 3, MAX_BEAT_SECONDS)
        self._known_lease = math.inf  # the shortest that the renewing process knows of
        self._renewed: dict[str, float] = {}
        self._woken: dict[str, float] = {}

    async def beat(
        self, keys: QueueKeys, ended: list[Attempt], cancel: Callable[[Attempt, bool], None]
    ) -> float | None:
        """Renew the leases of a queue; returns the seconds until the next heartbeat, if they are fewer.

        Args:
            keys: The queue.
            ended: Attempts whose outcome may not have reached the server. Without a lease they would run
                again, only because the server was unreachable when they ended.
            cancel: Called with each attempt that must stop, and whether it was revoked; else its lease is
                lost.
        """
        held = [attempt for attempt in self._slots.held.values() if attempt.queue == keys.queue]
        began = time.monotonic()
        if self.is_late(keys.queue):
            self._woken[keys.queue] = began
        if leased := [*held, *ended]:
            kept = await self._run(ops.heartbeat(keys, leased, self._clock.now_ms()))
            for attempt, beat in zip(held, kept, strict=False):
                if beat < 1:
                    cancel(attempt, beat == 0)
        self._renewed[keys.queue] = began
        await self._inform_renewer(began)
        shortest = self._shortest_lease()
        return None if math.isinf(shortest) else shortest / 3

    def is_late(self, queue: str) -> bool:
        """Whether the leases of a queue were not renewed for two intervals."""
        now = time.monotonic()
        return now - self._renewed.get(queue, now) > 2 * self.seconds

    async def catch_up(self, queue: str) -> None:
        """Let a process that was stopped renew and report first; else its own jobs count as lost."""
        now, late = time.monotonic(), 2 * self.seconds
        if self.is_late(queue) or now - self._woken.get(queue, -late) < late:
            await asyncio.sleep(self.seconds)

    def note_lease(self, seconds: float) -> None:
        """Inform the renewing process of a shorter lease at once: the next handler may block the loop."""
        if seconds < self._known_lease:
            self._known_lease = seconds
            self._renewer.renewed(seconds)

    def _shortest_lease(self) -> float:
        """The shortest lease in seconds of a held job that has its own; infinite for none."""
        own = (attempt.options.lock_duration for attempt in self._slots.held.values())
        return min((lease.total_seconds() for lease in own if lease is not None), default=math.inf)

    async def _inform_renewer(self, now: float) -> None:
        """Spare the renewing process a renewal, if the leases of every queue were renewed."""
        if now - min(self._renewed.get(name, 0.0) for name in self._queues) > 2 * self.seconds:
            return
        self._known_lease = self._shortest_lease()
        if not self._renewer.renewed(self._known_lease):
            await asyncio.to_thread(self._renewer.start)
