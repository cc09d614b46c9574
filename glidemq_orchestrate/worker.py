"""The worker: an asyncio shell around ``_worker_core``.

A ``Feed`` per queue takes jobs and hands in outcomes, a ``JobRunner`` runs the handlers, and chores keep the
leases and the queues going.

What a kill -9 leaves behind: jobs in state ``active`` whose lease ends after ``lock_duration``; any other
worker of the queue then takes them back. A connection that breaks is made again; what a lost reply announced
is asked for again.
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
from glidemq_orchestrate._ops import scheduler, supervise
from glidemq_orchestrate._ops.supervise import Watch
from glidemq_orchestrate._ops.workers import OURS
from glidemq_orchestrate._protocol.exchange import Kind, Outcome
from glidemq_orchestrate._worker_core import Chore, ChoreList, Slots, reconnect_delays
from glidemq_orchestrate._worker_feed import Feed
from glidemq_orchestrate._worker_jobs import JobRunner
from glidemq_orchestrate._worker_tokens import TokenGate, TokenLimit
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, TransportError
from glidemq_orchestrate.handler import H, Handlers
from glidemq_orchestrate.job import milliseconds
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name
from glidemq_orchestrate.settings import Address

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

ANNOUNCE_MS: Final = 10_000
UPKEEP_MS: Final = 2_000
BEAT_MS: Final = 1_000
SPARE_THREADS: Final = 32
GIVE_UP_SECONDS: Final = 5.0


class Worker(AsyncFacade):
    """Runs the jobs of queues with the registered handlers until it is stopped.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        queues: At least one queue name.
        concurrency: Jobs at the same time, at least 1; handlers that are plain functions run in so many
            threads.
        prefetch: Jobs to hold beyond those at work, so that the next one starts without a round trip. By
            default as many as start within 20 ms, judging by how long jobs take: at most 128, none of long
                jobs.
        rate_limit: At most so many starts per time, together with all workers of a queue; a limit of the
            queue itself goes before.
        token_limit: Runs wait while more tokens were spent than that, as the jobs themselves report.
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
        url: Address = None,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        prefetch: int | None = None,
        rate_limit: tuple[int, timedelta] | None = None,
        token_limit: TokenLimit | None = None,
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
        if prefetch is not None and prefetch < 0:
            raise ConfigurationError(f"prefetch must not be negative, got {prefetch}")
        if rate_limit is not None and (rate_limit[0] < 1 or rate_limit[1] < timedelta(milliseconds=1)):
            raise ConfigurationError(
                f"rate_limit must be a count and a time, both above zero, got {rate_limit}"
            )
        if lock_duration < timedelta(seconds=1):
            raise ConfigurationError(f"lock_duration must be at least a second, got {lock_duration}")
        self.handlers = handlers or Handlers()
        self.id = f"{OURS}{self._clock.now_ms()}-{secrets.token_hex(4)}"
        self.ready = threading.Event()
        self._queues = {name: QueueKeys(self._prefix, check_queue_name(name)) for name in queues}
        self._lock_ms, self._max_lost = milliseconds(lock_duration), max_lost
        self._shutdown_seconds = shutdown_timeout.total_seconds()
        self._slots = Slots(concurrency, prefetch)
        self._token_limit = token_limit
        self._limit = (rate_limit[0], milliseconds(rate_limit[1])) if rate_limit else (0, 0)
        self._chores = ChoreList(
            {
                Chore.BEAT: min(self._lock_ms // 3, BEAT_MS),
                Chore.ANNOUNCE: ANNOUNCE_MS,
                Chore.UPKEEP: UPKEEP_MS,
                Chore.RECLAIM: max(self._lock_ms // 2, 500),
                Chore.SUPERVISE: UPKEEP_MS,
            }
        )
        self._closing: set[asyncio.Task[None]] = set()
        self._asked_to_stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def handler(self, name: str, *, process: bool = False) -> Callable[[H], H]:
        """Register a function for a job name: ``async def`` runs on the loop, ``def`` in a thread.

        With ``process=True`` it runs in a process that a timeout or a cancel kills. See ``Handlers.handler``.
        """
        return self.handlers.handler(name, process=process)

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
        self._stop = asyncio.Event()
        self._slots.batch_room = self._slots.concurrency * max(self.handlers.largest_batch - 1, 0)
        # More threads than places: a handler that overstayed its timeout keeps its thread until it returns.
        threads = ThreadPoolExecutor(self._slots.concurrency + SPARE_THREADS, thread_name_prefix="glidemq")
        jobs = JobRunner(
            self._run,
            self._queues,
            self.handlers,
            self._slots,
            threads,
            self._clock,
            self._say,
            self._nudge,
            self.stop,
            TokenGate(self._run, self._token_limit, self._clock) if self._token_limit else None,
        )
        self._feeds = {
            name: Feed(self, self.id, keys, self._slots, jobs, self._clock, self._limit, len(self._queues))
            for name, keys in self._queues.items()
        }
        with self._signals(self._loop):
            tasks: list[asyncio.Task[None]] = []
            try:
                await self._start()
                tasks += [self._loop.create_task(feed.serve()) for feed in self._feeds.values()]
                tasks.append(self._loop.create_task(self._chores_for_ever(jobs)))
                await self._until_stopped(tasks)
                self._slots.stopping = True
                await jobs.drain(self._shutdown_seconds)
            finally:
                await self._end(jobs, tasks)
                threads.shutdown(wait=False, cancel_futures=True)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _until_stopped(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the wish to stop, or for a task that cannot go on."""
        stop = asyncio.create_task(self._stop.wait())
        if not self._asked_to_stop.is_set():
            await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    def _say(self, outcome: Outcome) -> None:
        self._feeds[outcome.attempt.queue].say(outcome)
        self._nudge()

    def _nudge(self) -> None:
        for feed in self._feeds.values():
            feed.nudge()

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

    async def _end(self, jobs: JobRunner, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._slots.stopping = True
        await jobs.abandon()
        jobs.close()
        for attempt in list(self._slots.held.values()):
            self._feeds[attempt.queue].say(Outcome(attempt, Kind.BACK))
        for feed in self._feeds.values():
            feed.close()
        if tasks:
            *feeds, _ = tasks
            # A server that cannot be reached is not waited for: the leases end by themselves.
            await asyncio.wait(feeds, timeout=GIVE_UP_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._driver is not None:
            try:
                for watch in self._watches():
                    await self._run(supervise.resign(watch))
                await self._run(ops.withdraw(list(self._queues.values()), self.id))
            except GlideMQError as exc:
                logger.warning(
                    "the worker is not signed off: %s", exc, extra={"action": "sign_off", "worker": self.id}
                )
        for hook in self.handlers.stop_hooks:
            await asyncio.to_thread(hook)
        await self.close()
        logger.info("worker %s has stopped", self.id, extra={"action": "worker_stopped", "worker": self.id})

    def _wake(self) -> None:
        self._stop.set()

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT while serving in the main thread."""
        caught = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: self._reconnect}
        if threading.current_thread() is not threading.main_thread():
            caught = {}
        for number, react in caught.items():
            loop.add_signal_handler(number, react)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _reconnect(self) -> None:
        """Open every connection anew; what was under way is asked for again, and no job is lost by it."""
        logger.info("SIGHUP: connecting anew", extra={"action": "reconnect", "worker": self.id})
        if self._driver is not None:
            task = asyncio.get_running_loop().create_task(self._driver.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _chores_for_ever(self, jobs: JobRunner) -> None:
        delays = reconnect_delays()
        while True:  # also while stopping: jobs that still run keep their leases
            await asyncio.sleep(max(self._chores.wait_ms(self._clock.now_ms()), 10) / 1000)
            try:
                for chore in self._chores.take(self._clock.now_ms()):
                    await self._do(chore, jobs)
            except TransportError as exc:
                await self._pause(exc, next(delays))
            except GlideMQError:  # the upkeep of a queue must not end the jobs of a worker
                logger.exception("upkeep refused", extra={"action": "error", "worker": self.id})
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
                due = [await self._run(ops.upkeep(queues, self._clock))]
                due += [await self._run(scheduler.tick(queue, self._clock)) for queue in queues]
                if soon := [at for at in due if at >= 0]:
                    self._chores.bring_forward(Chore.UPKEEP, max(min(soon), self._clock.now_ms() + 20))
            case Chore.RECLAIM:
                await self._run(
                    ops.reclaim(
                        queues, self.id, lock_ms=self._lock_ms, max_lost=self._max_lost, clock=self._clock
                    )
                )

            case Chore.SUPERVISE:
                for watch in self._watches():
                    await self._run(supervise.tick(watch, self._clock))

    def _watches(self) -> list[Watch]:
        queues = self._queues.values()
        return [Watch(queue, self.id, self._lock_ms, self._max_lost) for queue in queues]

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
        for name, keys in self._queues.items():
            held = [attempt for attempt in self._slots.held.values() if attempt.queue == name]
            if held:
                kept = await self._run(ops.heartbeat(keys, held, self._clock.now_ms()))
                for attempt, beat in zip(held, kept, strict=True):
                    if beat < 1:
                        jobs.cancel(attempt, revoked=beat == 0)

    async def _pause(self, exc: GlideMQError, seconds: float) -> None:
        logger.warning(
            "trying again in %.1f s: %s", seconds, exc, extra={"action": "reconnect", "worker": self.id}
        )
        await asyncio.sleep(seconds)
