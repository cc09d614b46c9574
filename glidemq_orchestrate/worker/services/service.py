"""The base of worker, supervisor and broadcast worker: run, stop, signals, and tasks that restart on failure.

Once started, a service ends only by a signal or by ``stop()``. It has a separate task for each chore of each
queue. A failed task is logged, and restarts after a pause; the others are not affected. A repeated failure is
logged once, then every minute with its count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from glidemq_orchestrate.clients.facade import AsyncFacade
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, TransportError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds, seconds
from glidemq_orchestrate.jobs.attempt import Attempt, worker_id
from glidemq_orchestrate.server.calls import learn_time
from glidemq_orchestrate.server.libraries import repeat_lost
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.shards import read_shards
from glidemq_orchestrate.wire.call import Op, ask_each
from glidemq_orchestrate.wire.confirmation import unconfirmed
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys, check_queue_name
from glidemq_orchestrate.worker.handlers.log import FailureLog, OneLine
from glidemq_orchestrate.worker.renewing import Renewer
from glidemq_orchestrate.worker.tasks import OwnTask, reconnect_delays
from glidemq_orchestrate.worker.threads import Threads
from glidemq_orchestrate.worker.watchdog import RunningHandler, Watchdog

if TYPE_CHECKING:
    from glidemq_orchestrate.io.gathering import GatheringDriver

logger = logging.getLogger("glidemq_orchestrate.worker")  # used by the whole package
logger.addFilter(OneLine())

T = TypeVar("T")

TIME_MS: Final = 1_000
HEALTHY_SECONDS: Final = 10.0


class Service(AsyncFacade, ABC):
    """Runs until it is stopped.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        name: Its name on the server and in the log.
        prefix: First part of every key.
        clock: For tests.
    """

    _is_patient = False

    def __init__(self, url: Address, *, name: str, prefix: str, clock: Clock | None) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self.id = name
        self.ready = threading.Event()
        self._stop_requested = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._tasks: list[OwnTask] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._failures = FailureLog(name)
        self._owns_signals = False
        self._chores_driver: GatheringDriver | None = None

    def run(self) -> None:
        """Serve until ``stop`` or, in the main thread, SIGTERM or SIGINT. Blocks. Raises as ``serve``."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = OwnTask(self.serve(), loop=loop)
            while True:
                try:
                    loop.run_until_complete(task)
                except (SystemExit, KeyboardInterrupt, RuntimeError) as exc:
                    # The first two leave the loop even from a task that a handler started. The last is raised
                    # after user code has stopped the loop. Ctrl-C is no exception: we handle its signal.
                    if task.done() or not (self._owns_signals or self.ready.is_set()):
                        raise
                    self._failures.report("a task of user code", exc)
                else:
                    return

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Its event loop; None before it has started."""
        return self._loop

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Serve in a thread while the block runs; then, even after an error, stop and wait for the end.

        Raises:
            GlideMQError: As ``serve``, at the beginning of the block.
            RuntimeError: It is already running, or was stopped: create another one.
        """
        if self._loop is not None or self._stop_requested.is_set():
            raise RuntimeError(f"{self.id} is already running or has been stopped; create another one")
        failure: list[BaseException] = []

        def serve() -> None:
            try:
                self.run()
            except BaseException as exc:  # noqa: BLE001  raised again in the caller's thread
                failure.append(exc)

        thread = threading.Thread(target=serve, name=self.id, daemon=True)
        thread.start()
        try:
            while not self.ready.wait(0.02):
                if not thread.is_alive():
                    break
            else:
                yield self
        finally:
            self.stop()
            thread.join()
        if failure:
            raise failure[0]

    def stop(self) -> None:
        """Stop the service, from any thread or signal handler, even before its start. Repeatable."""
        self._stop_requested.set()
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, *, signals: bool = True) -> None:
        """Serve until stopped; then remove its entries from the server and close its connections.

        Outside the main thread it also ends when the main thread has ended.

        Args:
            signals: In the main thread, stop on SIGTERM and SIGINT, and reconnect on SIGHUP. False: handle no
                signals.

        Raises:
            ConfigurationError, ServerTooOld, LibraryVersionMismatch: The server cannot be used.
            ConnectionFailed: The server could not be reached at the start. A started service waits for it.
        """
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._stop_requested.is_set():
            self._stopping.set()
        with self._signals(self._loop) if signals else contextlib.nullcontext():
            try:
                await self._begin()
                self._every("the clock", TIME_MS / 1000, self._update_time)
                if threading.current_thread() is not threading.main_thread():
                    self._every("the main thread", 1.0, self._stop_with_main_thread)
                started = {"action": f"{self._kind}_started", "worker": self.id}
                logger.info("%s", self._introduction(), extra=started)
                self.ready.set()
                await self._stopping.wait()
                await self._drain()
            finally:
                await self._finish()
                await self._end_tasks()
                await self._quietly("closing the connections", self.close)
                stopped = {"action": f"{self._kind}_stopped", "worker": self.id}
                logger.info("%s %s has stopped", self._kind, self.id, extra=stopped)

    def _guarded(self, op: Op[T]) -> Op[T]:
        """The operation without confirmation: chores are repeated, and ``Receipts`` confirm results."""
        return unconfirmed(op) if self._confirmation else op

    async def _run_chore(self, op: Op[T]) -> T:
        """Run an operation of a chore; those of many queues share connections and trips."""
        if self._chores_driver is None:
            await self._connected()
            from glidemq_orchestrate.io.gathering import GatheringDriver  # noqa: PLC0415  as in ``_connected``

            self._chores_driver = GatheringDriver(self._settings, repeat_lost, self._moving_seconds)
        try:
            return await self._chores_driver.run(self._guarded(op))
        except TransportError:
            self._forget_sync()
            raise

    async def close(self) -> None:
        """Close the connections of this process. Repeatable. A later call opens new ones."""
        if (driver := self._chores_driver) is not None:
            self._chores_driver = None
            await driver.aclose()
        await super().close()

    async def _run_confirmed(self, op: Op[T]) -> T:
        """Run an operation with confirmation, as a client does: a handler or caller relies on it."""
        driver = self._own() or await self._connected()
        return await driver.run(super()._guarded(op))

    def _keys_of(self, queues: Sequence[str]) -> list[QueueKeys]:
        """The keys of queues that a user named.

        Raises:
            ConfigurationError: It is not a list, the list is empty, or a name is invalid.
        """
        if not queues or isinstance(queues, str):
            raise ConfigurationError("queues must be a list of at least one queue name")
        names = dict.fromkeys([check_queue_name(name) for name in queues])
        return [QueueKeys(self._prefix, name) for name in names]

    async def _with_shards(self, named: Sequence[QueueKeys]) -> list[QueueKeys]:
        """The queues and their shards; of a queue that cannot be read, only the queue itself."""
        every = await self._run(ask_each([read_shards(keys) for keys in named]))
        members: list[QueueKeys] = []
        for keys, shards in zip(named, every, strict=True):
            members += [keys] if isinstance(shards, GlideMQError) else shards.members()
        return members

    # --- implemented by each service ---

    _kind = "service"

    def _introduction(self) -> str:
        """The line to log after the start."""
        return f"{self._kind} {self.id} has started"

    @abstractmethod
    async def _begin(self) -> None:
        """Check the preconditions and start the tasks; an exception here ends the service."""

    async def _drain(self) -> None:
        """After a stop: wait for running work, within its time limit. Tasks still run."""

    async def _finish(self) -> None:
        """Clean up, also after a failed start. Run each step with ``_quietly``."""

    # --- tasks ---

    def _keep(self, what: str, work: Callable[[], Awaitable[None]]) -> OwnTask:
        """Start a task; after a failure it restarts with a pause. It ends when ``work`` returns."""
        task = OwnTask(self._kept(what, work), loop=asyncio.get_running_loop(), name=what)
        self._tasks.append(task)
        return task

    def _every(
        self,
        what: str,
        seconds: float,
        work: Callable[[], Awaitable[float | None]],
        *,
        immediately: bool = True,
        woken: asyncio.Event | None = None,
    ) -> OwnTask:
        """Repeat a chore at intervals, or sooner if it returns fewer seconds or ``woken`` is set."""

        async def again() -> None:
            if not immediately:
                await asyncio.sleep(seconds)
            while True:
                soon = await work()
                self._failures.clear(what)
                pause = seconds if soon is None else min(max(soon, 0.01), seconds)
                if woken is None:
                    await asyncio.sleep(pause)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await woken.wait()
                woken.clear()

        return self._keep(what, again)

    async def _kept(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Restart the work after each failure, with growing pauses, until it returns."""
        pauses = reconnect_delays()
        while True:
            began = time.monotonic()
            try:
                await work()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._failures.report(what, RuntimeError("a task that it awaited was cancelled"))
            except GeneratorExit:
                raise
            except BaseException as exc:  # noqa: BLE001  only a stop ends a service
                self._failures.report(what, exc)
            else:
                return
            if time.monotonic() - began > HEALTHY_SECONDS:
                pauses = reconnect_delays()
            await asyncio.sleep(next(pauses))

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.end()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _quietly(self, what: str, work: Callable[[], Awaitable[Any]]) -> None:
        """Run a step of the shutdown; log its failure, so that the other steps still run."""
        try:
            await work()
        except GlideMQError as exc:
            logger.warning("%s: %s failed: %s", self.id, what, exc, extra={"action": "stop"})
        except Exception:
            logger.exception("%s: %s failed", self.id, what, extra={"action": "stop"})
        except (SystemExit, KeyboardInterrupt) as exc:
            logger.error("%s: %s raised %r", self.id, what, exc, extra={"action": "stop"})  # noqa: TRY400

    async def _update_time(self) -> None:
        await self._run(learn_time(self._clock, every_ms=TIME_MS))

    async def _stop_with_main_thread(self) -> None:
        if not threading.main_thread().is_alive():
            self.stop()

    # --- signals ---

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, reconnect on SIGHUP, while serving in the main thread."""
        caught = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: self._reconnect}
        if threading.current_thread() is not threading.main_thread():
            caught = {}
        for number, react in caught.items():
            loop.add_signal_handler(number, react)
        self._owns_signals = bool(caught)
        try:
            yield
        finally:
            self._owns_signals = False
            for number in caught:
                loop.remove_signal_handler(number)

    def _reconnect(self) -> None:
        """Reopen every connection; calls under way are repeated, so that no job is lost."""
        logger.info("SIGHUP: reconnecting", extra={"action": "reconnect", "worker": self.id})
        if (driver := self._own()) is not None:
            self._aside(driver.aclose())

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class HandlerService(Service, ABC):
    """A service that runs handlers.

    Args:
        url: As ``Service``.
        kind: The kind of worker, with which its id begins.
        unique: The part of its id that no other service has.
        queues: The queues that it serves.
        group: The consumer group of the workers, or a subscription.
        lease: How long its leases last.
        shutdown_timeout: How long a stop waits for running handlers.
        prefix: As ``Service``.
        clock: As ``Service``.
    """

    def __init__(  # noqa: PLR0913  the arguments of Service, and of its leases
        self,
        url: Address,
        *,
        kind: str,
        unique: str,
        queues: Sequence[str],
        group: str = GROUP,
        lease: Duration,
        shutdown_timeout: Duration,
        prefix: str,
        clock: Clock | None,
    ) -> None:
        lock = duration("lease", lease, min_=timedelta(seconds=1))
        self._lock_ms, self._lock_seconds = milliseconds(lock), seconds(lock)
        self._shutdown_seconds = seconds(duration("shutdown_timeout", shutdown_timeout))
        super().__init__(url, name=worker_id(kind, unique, self._lock_ms), prefix=prefix, clock=clock)
        self._queues = {keys.queue: keys for keys in self._keys_of(queues)}
        self._threads = Threads("glidemq")
        self._renewer = Renewer(self.id, self._queues.keys(), self._settings, self._lock_seconds, group=group)
        self._watchdog: Watchdog | None = None

    @property
    def shutdown_seconds(self) -> float:
        """How long a stop waits for running handlers."""
        return self._shutdown_seconds

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
