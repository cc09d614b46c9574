"""The worker: an asyncio shell around ``_worker_core``. It fetches jobs and keeps the queue going.

What a kill -9 leaves behind: jobs in state ``active`` whose lease ends after ``lock_duration``; any other
worker of the queue then takes them back. A connection that breaks is made again; what was delivered meanwhile
is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Final

from glidemq_orchestrate._facade import AsyncFacade
from glidemq_orchestrate._ops import attempt as ops
from glidemq_orchestrate._ops.attempt import Delivery
from glidemq_orchestrate._ops.workers import OURS
from glidemq_orchestrate._worker_core import Chore, ChoreList, Slots, reconnect_delays
from glidemq_orchestrate._worker_jobs import JobRunner, ThreadsGone
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, LeaseLost, TransportError
from glidemq_orchestrate.handler import H, Handlers
from glidemq_orchestrate.job import Attempt, milliseconds
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

BLOCK_MS: Final = 1_000
ANNOUNCE_MS: Final = 10_000
UPKEEP_MS: Final = 2_000
BEAT_MS: Final = 3_000


class Worker(AsyncFacade):
    """Runs the jobs of queues with the registered handlers until it is stopped.

    Args:
        url: The server; from ``GLIDEMQ_URL`` when left out.
        queues: At least one queue name.
        concurrency: Jobs at the same time, at least 1; handlers that are plain functions run in so many
            threads.
        handlers: Handlers made elsewhere; ``worker.handler`` adds to them.
        prefix: First part of every key.
        lock_duration: After so long without a sign of life, another worker may take the jobs over; at least a
            second.
        max_lost: How often a job may lose its worker before it fails.
        shutdown_timeout: How long a stop waits for running handlers before it gives their jobs back.
        clock: For tests.

    Raises:
        ConfigurationError: A value is not usable.
    """

    def __init__(  # noqa: PLR0913  all but the first two have defaults
        self,
        url: str | None = None,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        handlers: Handlers | None = None,
        prefix: str = DEFAULT_PREFIX,
        lock_duration: timedelta = timedelta(seconds=30),
        max_lost: int = 3,
        shutdown_timeout: timedelta = timedelta(seconds=10),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        if not queues or isinstance(queues, str):
            raise ConfigurationError("queues must be a list of at least one queue name")
        if concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, got {concurrency}")
        if lock_duration < timedelta(seconds=1):
            raise ConfigurationError(f"lock_duration must be at least a second, got {lock_duration}")
        self.handlers = handlers or Handlers()
        self.id = f"{OURS}{self._clock.now_ms()}-{secrets.token_hex(4)}"
        self.ready = threading.Event()
        self._queues = {name: QueueKeys(prefix, check_queue_name(name)) for name in queues}
        self._lock_ms, self._max_lost = milliseconds(lock_duration), max_lost
        self._shutdown_seconds = shutdown_timeout.total_seconds()
        self._slots = Slots(concurrency)
        self._chores = ChoreList(
            {
                Chore.BEAT: min(self._lock_ms // 3, BEAT_MS),
                Chore.ANNOUNCE: ANNOUNCE_MS,
                Chore.UPKEEP: UPKEEP_MS,
                Chore.RECLAIM: max(self._lock_ms // 2, 500),
            }
        )
        self._backlog: list[Delivery] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_to_stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def handler(self, name: str) -> Callable[[H], H]:
        """Register a function for a job name: ``async def`` runs on the loop, ``def`` in a thread."""
        return self.handlers.handler(name)

    def run(self) -> None:
        """Serve until ``stop`` or, in the main thread, SIGTERM or SIGINT. Blocks. Errors as ``serve``."""
        asyncio.run(self.serve())

    def stop(self) -> None:
        """Ask the worker to end, from any thread or signal handler. A repeat changes nothing."""
        self._asked_to_stop.set()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended in the meantime
                self._loop.call_soon_threadsafe(self._wake)

    async def serve(self) -> None:
        """Serve until stopped: afterwards no job is active in this worker, and its connections are closed.

        Raises:
            ConfigurationError, ServerTooOld, LibraryVersionMismatch: The server cannot be used.
            ConnectionFailed: It could not be reached at the start. Later on, the worker waits for it.
        """
        self._loop = asyncio.get_running_loop()
        self._stop, self._freed = asyncio.Event(), asyncio.Event()
        threads = ThreadPoolExecutor(max_workers=self._slots.concurrency, thread_name_prefix="glidemq")
        jobs = JobRunner(self._run, self._queues, self.handlers, threads, self._clock, self._expect_retry)
        with self._signals(self._loop):
            try:
                await self._start()
                await self._serve_until_stopped(jobs)
            finally:
                await self._end(jobs)
                threads.shutdown(wait=False, cancel_futures=True)

    async def _start(self) -> None:
        await self._run(ops.open_queues(list(self._queues.values())))
        for hook in self.handlers.start_hooks:
            await asyncio.to_thread(hook)
        await self._announce()
        logger.info(
            "worker %s serves queues %s, handlers %s",
            self.id,
            ", ".join(self._queues),
            ", ".join(self.handlers.names) or "none",
            extra={"action": "worker_started", "worker": self.id},
        )
        self.ready.set()

    async def _serve_until_stopped(self, jobs: JobRunner) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fetch_for_ever(jobs))
            chores = group.create_task(self._chores_for_ever(jobs))
            if not self._asked_to_stop.is_set():
                await self._stop.wait()
            self._slots.stopping = True
            self._freed.set()
            if self._tasks:
                await asyncio.wait(set(self._tasks), timeout=self._shutdown_seconds)
            chores.cancel()

    async def _end(self, jobs: JobRunner) -> None:
        jobs.abandon()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await jobs.all_said()
        if self._driver is not None:
            try:
                await self._run(
                    ops.leave(self._queues, list(self._slots.held.values()), self._backlog, self._clock)
                )
                await self._run(ops.withdraw(list(self._queues.values()), self.id))
            except GlideMQError as exc:
                logger.warning(
                    "jobs were not given back: %s", exc, extra={"action": "give_back", "worker": self.id}
                )
        for hook in self.handlers.stop_hooks:
            await asyncio.to_thread(hook)
        await self.close()
        logger.info("worker %s has stopped", self.id, extra={"action": "worker_stopped", "worker": self.id})

    def _wake(self) -> None:
        self._stop.set()
        self._freed.set()

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

    async def _fetch_for_ever(self, jobs: JobRunner) -> None:
        """Take jobs whenever there is room; after an error, first what was delivered here unseen."""
        delays, again = reconnect_delays(), False
        while not self._slots.stopping and not self._asked_to_stop.is_set():
            room = self._slots.room(len(self._backlog))
            try:
                if room:
                    await self._fetch(room, again=again)
                await self._begin(jobs)
                if not self._slots.room(0) and not self._slots.stopping:
                    await self._freed.wait()
                    self._freed.clear()
            except TransportError as exc:
                await self._pause(exc, next(delays))
                again = True
            else:
                again, delays = False, reconnect_delays()

    async def _fetch(self, room: int, *, again: bool) -> None:
        queues = list(self._queues.values())
        # Again: the oldest come first, and those are likely to be the ones at work.
        count = 2 * self._slots.concurrency if again else max(room // len(queues), 1)
        found = await self._run(ops.fetch(queues, self.id, count, BLOCK_MS, again=again))
        # Entries of two queues often have one id: the time of a call that wrote to both.
        known = {(attempt.queue, attempt.entry_id) for attempt in self._slots.held.values()}
        known |= {(delivery.queue.queue, delivery.entry_id) for delivery in self._backlog}
        self._backlog.extend(
            Delivery(queue, job_id, entry_id, secrets.token_hex(8))
            for queue, job_id, entry_id in found
            if (queue.queue, entry_id) not in known
        )

    async def _begin(self, jobs: JobRunner) -> None:
        deliveries = self._backlog[: self._slots.room(0)]
        begun = await self._run(ops.activate(deliveries, self._clock.now_ms()))
        del self._backlog[: len(deliveries)]
        for attempt, inputs in begun:
            self._slots.take(attempt)
            task = asyncio.create_task(self._work(jobs, attempt, inputs))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, jobs: JobRunner, attempt: Attempt, inputs: dict[str, str]) -> None:
        try:
            await jobs.work(attempt, inputs)
        except ThreadsGone:
            self.stop()
            return
        self._slots.free(attempt)  # not when cancelled or not run: then the job is still held, and given back
        self._freed.set()

    async def _chores_for_ever(self, jobs: JobRunner) -> None:
        delays = reconnect_delays()
        while not self._slots.stopping or self._tasks:  # jobs that still run at a stop keep their leases
            await asyncio.sleep(max(self._chores.wait_ms(self._clock.now_ms()), 10) / 1000)
            try:
                for chore in self._chores.take(self._clock.now_ms()):
                    await self._do(chore, jobs)
            except TransportError as exc:
                await self._pause(exc, next(delays))
            else:
                delays = reconnect_delays()

    async def _do(self, chore: Chore, jobs: JobRunner) -> None:
        queues = list(self._queues.values())
        match chore:
            case Chore.BEAT:
                await self._beat(jobs)
            case Chore.ANNOUNCE:
                await self._announce()
            case Chore.UPKEEP:
                due = await self._run(ops.upkeep(queues, self._clock))
                if due >= 0:
                    self._chores.bring_forward(Chore.UPKEEP, max(due, self._clock.now_ms() + 20))
            case Chore.RECLAIM:
                await self._run(
                    ops.reclaim(
                        queues, self.id, lock_ms=self._lock_ms, max_lost=self._max_lost, clock=self._clock
                    )
                )

    async def _announce(self) -> None:
        description = {
            "addr": socket.gethostname(),
            "pid": os.getpid(),
            "startedAt": int(self.id.removeprefix(OURS).split("-")[0]),
            "activeJobs": len(self._slots.held),
            "handlers": self.handlers.names,
        }
        queues = list(self._queues.values())
        await self._run(ops.announce(queues, self.id, description, ANNOUNCE_MS * 3, self._clock.now_ms()))

    async def _beat(self, jobs: JobRunner) -> None:
        held = [(self._queues[attempt.queue], attempt) for attempt in self._slots.held.values()]
        replies = await self._run(ops.heartbeat(held, self._clock.now_ms()))
        for (_, attempt), reply in zip(held, replies, strict=True):
            if reply == 0 or isinstance(reply, LeaseLost):
                jobs.cancel(attempt)

    def _expect_retry(self, delay_ms: int) -> None:
        self._chores.bring_forward(Chore.UPKEEP, self._clock.now_ms() + delay_ms)

    async def _pause(self, exc: GlideMQError, seconds: float) -> None:
        logger.warning(
            "trying again in %.1f s: %s", seconds, exc, extra={"action": "reconnect", "worker": self.id}
        )
        await asyncio.sleep(seconds)
