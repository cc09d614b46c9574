"""The base of services that run handlers: their threads, and what guards their leases."""

from __future__ import annotations

import asyncio
from abc import ABC
from collections.abc import Callable, Sequence
from datetime import timedelta

from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds, seconds
from glidemq_orchestrate.jobs.attempt import Attempt, worker_id
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.keys import GROUP
from glidemq_orchestrate.worker.execution.threads import Threads
from glidemq_orchestrate.worker.leases.renewer import Renewer
from glidemq_orchestrate.worker.leases.watchdog import RunningHandler, Watchdog
from glidemq_orchestrate.worker.services.service import Service


class HandlerService(Service, ABC):
    """A service that runs handlers.

    Args:
        url: As ``Service``.
        kind: The beginning of its id: what kind of worker it is.
        unique: The part of its id that no other has.
        queues: The queues that it serves.
        group: The consumer group of the workers, or a subscription.
        lock_duration: How long its leases last.
        shutdown_timeout: How long a stop waits for running handlers.
        prefix: As ``Service``.
        clock: As ``Service``.
    """

    def __init__(  # noqa: PLR0913  as Service, and what its leases need
        self,
        url: Address,
        *,
        kind: str,
        unique: str,
        queues: Sequence[str],
        group: str = GROUP,
        lock_duration: Duration,
        shutdown_timeout: Duration,
        prefix: str,
        clock: Clock | None,
    ) -> None:
        lock = duration("lock_duration", lock_duration, min_=timedelta(seconds=1))
        self._lock_ms, self._lock_seconds = milliseconds(lock), seconds(lock)
        self._shutdown_seconds = seconds(duration("shutdown_timeout", shutdown_timeout))
        super().__init__(url, name=worker_id(kind, unique, self._lock_ms), prefix=prefix, clock=clock)
        self._queues = {keys.queue: keys for keys in self._keys_of(queues)}
        self._threads = Threads("glidemq")
        self._renewer = Renewer(self.id, list(self._queues), self._settings, self._lock_seconds, group=group)
        self._watchdog: Watchdog | None = None

    async def _start_guards(
        self, running: Callable[[], Sequence[RunningHandler]], note: Callable[[Attempt, str], None]
    ) -> None:
        """Start the renewing process and the watchdog; see ``Watchdog`` for the arguments."""
        await asyncio.to_thread(self._renewer.start)
        self._watchdog = Watchdog(asyncio.get_running_loop(), running, note)
        self._watchdog.start()

    async def _stop_guards(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        await self._quietly("ending the renewer", lambda: asyncio.to_thread(self._renewer.close))
