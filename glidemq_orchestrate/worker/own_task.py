"""Tasks that keep working when a handler cancels every task that it finds by ``asyncio.all_tasks()``.

Time-outs and the shutdown of a loop cancel from callbacks, outside of every task: those always arrive.
"""

from __future__ import annotations

import asyncio
from typing import Any


class OwnTask(asyncio.Task[None]):
    """A task of a worker: cancelled by itself, by callbacks of the loop, and by ``end``."""

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, unless another task asks for it that may not."""
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
