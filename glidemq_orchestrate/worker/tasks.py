"""Tasks that survive a handler that cancels every task in ``asyncio.all_tasks()``.

Time-outs and the shutdown of a loop cancel from callbacks, outside any task: these always take effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class OwnTask(asyncio.Task[None]):
    """A task of a worker: cancelled by itself, by callbacks of the loop, and by ``end``."""

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, unless the request comes from a task that may not."""
        return self._may_be_cancelled_by(asyncio.current_task(self.get_loop())) and super().cancel(msg)

    def end(self) -> None:
        """Cancel it."""
        super().cancel()

    def _may_be_cancelled_by(self, task: asyncio.Task[Any] | None) -> bool:
        return task is None or task is self


class JobTask(OwnTask):
    """The task of a job, in which its handler runs: also cancelled by tasks that handlers have started."""

    __slots__ = ()

    def _may_be_cancelled_by(self, task: asyncio.Task[Any] | None) -> bool:
        return task is self or not isinstance(task, OwnTask)


class KeyedTasks:
    """At most one task per key, on the loop that created this object; any thread may start one."""

    def __init__(self) -> None:
        self.loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._tasks: dict[tuple[str, str], OwnTask] = {}

    @property
    def is_here(self) -> bool:
        """Whether this is the thread of the loop."""
        return threading.get_ident() == self._thread

    def get(self, key: tuple[str, str]) -> OwnTask | None:
        """The running task of a key."""
        return self._tasks.get(key)

    def start(self, key: tuple[str, str], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task, unless one runs; nothing happens once the loop has ended."""
        if self.is_here:
            self._begin(key, work)
        else:
            with contextlib.suppress(RuntimeError):  # the handler still runs after its worker has ended
                self.loop.call_soon_threadsafe(self._begin, key, work)

    def _begin(self, key: tuple[str, str], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if key not in self._tasks:
            self._tasks[key] = OwnTask(self._run(key, work), loop=self.loop)

    async def _run(self, key: tuple[str, str], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        finally:
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]


def reconnect_delays() -> Iterator[float]:
    """Seconds to wait before each attempt to reach the server again: 0.1, doubled up to 2."""
    delay = 0.1
    while True:
        yield delay
        delay = min(delay * 2, 2.0)
