"""The supervisor: keeps the flows of queues moving whose workers are not ours, or are dead."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from glidemq_orchestrate._facade import AsyncFacade
from glidemq_orchestrate._ops import events
from glidemq_orchestrate._ops import supervise as ops
from glidemq_orchestrate._ops.supervise import Tick, Watch
from glidemq_orchestrate._worker_core import reconnect_delays
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, TransportError
from glidemq_orchestrate.job import milliseconds
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name
from glidemq_orchestrate.settings import Address

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

LEAST_REST: Final = 0.2


class Supervisor(AsyncFacade):
    """Looks after queues: flows with nodes that other workers ran, due jobs, and jobs of dead workers.

    Any number may look after a queue: one leads, and another takes over some seconds after it dies.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        queues: At least one queue name: home queues of flows, and queues that only Node workers serve.
        prefix: First part of every key.
        interval: Time between two looks when nothing happens; 100 ms to 5 s.
        lock_duration: After so long without a sign of life, the jobs of a worker are taken back; at least a
            second.
        max_lost: How often a job may lose its worker before it fails.
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
        lock_duration: timedelta = timedelta(seconds=30),
        max_lost: int = 3,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        if not queues or isinstance(queues, str):
            raise ConfigurationError("queues must be a list of at least one queue name")
        if not timedelta(milliseconds=100) <= interval <= timedelta(seconds=5):
            raise ConfigurationError(f"interval must be 100 ms to 5 s, got {interval}")
        if lock_duration < timedelta(seconds=1):
            raise ConfigurationError(f"lock_duration must be at least a second, got {lock_duration}")
        self.id = f"supervisor-{self._clock.now_ms()}-{secrets.token_hex(4)}"
        self.ready = threading.Event()
        self._interval_ms = milliseconds(interval)
        self._watches = [
            Watch(
                QueueKeys(self._prefix, check_queue_name(name)),
                self.id,
                milliseconds(lock_duration),
                max_lost,
            )
            for name in dict.fromkeys(queues)
        ]
        self._asked_to_stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def run(self) -> None:
        """Look after the queues until ``stop`` or, in the main thread, SIGTERM or SIGINT. Blocks."""
        asyncio.run(self.serve())

    def stop(self) -> None:
        """Ask the supervisor to end, from any thread or signal handler. A repeat changes nothing."""
        self._asked_to_stop.set()
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended in the meantime
                self._loop.call_soon_threadsafe(self._stop.set)

    async def tick(self) -> bool:
        """Do once what the queues need now. Answers whether this supervisor leads all of them. Repeatable.

        Raises:
            GlideMQError: A queue could not be looked after.
        """
        ticks = [await self._run(ops.tick(watch, self._clock)) for watch in self._watches]
        return all(tick.leading for tick in ticks)

    async def resign(self) -> None:
        """Let another supervisor lead at once; ``tick`` takes the lead again if nobody has it."""
        for watch in self._watches:
            await self._run(ops.resign(watch))

    async def serve(self) -> None:
        """Look after the queues until stopped; then another may lead, and the connections are closed.

        Raises:
            ConfigurationError, ServerTooOld, LibraryVersionMismatch: The server cannot be used.
            ConnectionFailed: It could not be reached at the start. Later on, the supervisor waits for it.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with self._signals(self._loop):
            try:
                await self.tick()
                queues = ", ".join(watch.queue.queue for watch in self._watches)
                logger.info(
                    "%s looks after queues %s", self.id, queues, extra={"action": "supervisor_started"}
                )
                self.ready.set()
                await self._watch_until_stopped(self._stop)
            finally:
                with contextlib.suppress(GlideMQError):  # the lock lapses by itself
                    await self.resign()
                await self.close()
        logger.info("%s has stopped", self.id, extra={"action": "supervisor_stopped"})

    async def _watch_until_stopped(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._look_after(watch)) for watch in self._watches]
            if not self._asked_to_stop.is_set():
                await stop.wait()
            for task in tasks:
                task.cancel()

    async def _look_after(self, watch: Watch) -> None:
        delays = reconnect_delays()
        while True:
            try:
                position = await self._run(events.tail(watch.queue))
                tick = await self._run(ops.tick(watch, self._clock))
                await asyncio.sleep(LEAST_REST)
                await self._rest(watch, tick, position)
            except TransportError as exc:
                await self._pause(watch, exc, next(delays))
            except GlideMQError as exc:  # a refusal that a repeat may not meet: a flow must not wait for ever
                await self._pause(watch, exc, self._interval_ms / 1000)
            else:
                delays = reconnect_delays()

    async def _rest(self, watch: Watch, tick: Tick, position: str) -> None:
        until = self._clock.now_ms() + self._interval_ms
        if tick.due_ms >= 0:
            until = min(until, tick.due_ms)
        if tick.leading and tick.foreign:
            await self._run(ops.rest(watch.queue, position, until, self._clock))
        else:
            await asyncio.sleep(max(until - self._clock.now_ms(), 0) / 1000)

    async def _pause(self, watch: Watch, exc: GlideMQError, seconds: float) -> None:
        logger.warning(
            "queue %s: trying again in %.1f s: %s",
            watch.queue.queue,
            seconds,
            exc,
            extra={"action": "supervise"},
        )
        await asyncio.sleep(seconds)

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT while serving in the main thread."""
        caught = (
            (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        )
        for number in caught:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
