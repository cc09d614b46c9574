"""Calls of user code. Exceptions are returned as values: ``sys.exit()`` in a handler does not end the worker.

Plain functions run in our own threads: a free one is always available, so no job waits for a handler that
exceeds its time limit, and no thread keeps the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

logger = logging.getLogger("glidemq_orchestrate.worker")

MAX_OVERSTAYED: Final = 256
IDLE_SECONDS: Final = 60.0


class ThreadsUnavailable(Exception):
    """The interpreter is shutting down and starts no more threads: the job must be given back."""


class CallResult(NamedTuple):
    """The result of a call: a value, or the exception that it raised."""

    value: Any = None
    error: BaseException | None = None


async def call_async(function: Callable[..., Awaitable[Any]], *arguments: Any) -> CallResult:
    """Await a coroutine function of user code.

    Raises:
        asyncio.CancelledError: This call was cancelled, or something that the function awaited was.
    """
    try:
        return CallResult(await function(*arguments))
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:  # noqa: BLE001  it affects its own job only
        return CallResult(error=exc)


class Threads:
    """Threads for plain user functions: started when none is idle, ended after a minute without work.

    When a call is cancelled, its function overstays: it keeps its thread until it returns.

    Args:
        name: The name of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = self._count = 0
        self._is_closed = False
        self.overstayed = 0
        self.when_one_returns: Callable[[], None] = lambda: None

    async def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        stop: Callable[[], object] = lambda: None,
        grace: float = 0.0,
    ) -> CallResult:
        """Run a function in a thread, with the context variables of the caller.

        Args:
            function: The function.
            arguments: Its arguments.
            stop: Signals the function to return, when this call is cancelled and there is a grace.
            grace: Seconds that the function then has to return before the call ends.

        Raises:
            ThreadsUnavailable: No thread can be started: the interpreter is shutting down.
            asyncio.CancelledError: The call was cancelled; the function continues.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[CallResult] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                ended = CallResult(context.run(function, *arguments))
            except BaseException as exc:  # noqa: BLE001  it affects its own job only
                ended = CallResult(error=exc)
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the function still runs
                loop.call_soon_threadsafe(self._resolve, future, ended)

        self._assign(work)
        try:
            return await (asyncio.shield(future) if grace else future)
        except asyncio.CancelledError:
            if grace:
                stop()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({future}, timeout=grace)
                if future.done():
                    raise
                future.cancel()
            self.overstayed += 1
            if self.overstayed % 32 == 0:
                text = (
                    "%d handlers still run although they timed out or were cancelled; each keeps a thread. "
                    "Fix: check ctx.cancelled in them, or use process=True"
                )
                # Without the cancellation, which explains nothing.
                logger.error(text, self.overstayed, extra={"action": "overstayed"})  # noqa: TRY400
            raise

    @property
    def is_crowded(self) -> bool:
        """Whether so many functions overstay that no job should start."""
        return self.overstayed >= MAX_OVERSTAYED

    def close(self) -> None:
        """Let idle threads end; the others end when their functions return, or with the process."""
        with self._lock:
            free, self._free, self._is_closed = self._free, 0, True
        for _ in range(free):
            self._work.put(None)

    def _resolve(self, future: asyncio.Future[CallResult], ended: CallResult) -> None:
        if future.done():
            self.overstayed -= 1
            self.when_one_returns()
        else:
            future.set_result(ended)

    def _assign(self, work: Callable[[], None]) -> None:
        """Assign work to an idle thread, or to a new one if there is none."""
        with self._lock:
            is_free = self._free > 0
            if is_free:
                self._free -= 1
            else:
                self._count += 1
        if not is_free:
            try:
                threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
            except RuntimeError as exc:
                raise ThreadsUnavailable from exc
        self._work.put(work)

    def _serve(self) -> None:
        """Do pieces of work in sequence, until closed or idle for too long."""
        while True:
            try:
                work = self._work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if not self._free:  # work was assigned in this moment
                        continue
                    self._free -= 1
                return
            if work is None:
                return
            work()
            del work  # it refers to the job's data
            with self._lock:
                if self._is_closed:
                    return
                self._free += 1
