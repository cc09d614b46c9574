"""Jobs of batch handlers: collected until a batch is full or has waited long enough."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.registered import Registered


class Batches:
    """The batches of a worker that have not started.

    Args:
        on_closed: Called when a batch can start.

    Attributes:
        closed: The batches that can start, in order. A batch is empty once all its jobs were withdrawn.
    """

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed, self._loop = on_closed, asyncio.get_running_loop()
        self._open: dict[tuple[str, str], list[Attempt]] = {}
        self.closed: deque[list[Attempt]] = deque()

    @property
    def all(self) -> list[list[Attempt]]:
        """Those that can start and those that still collect jobs."""
        return [*self._open.values(), *self.closed]

    def add(self, attempt: Attempt, registered: Registered) -> None:
        """Put a job into the batch of its queue and name; budgets and limits are those of a queue."""
        kind = attempt.queue, attempt.name
        batch = self._open.setdefault(kind, [])
        batch.append(attempt)
        if len(batch) >= registered.batch_size:
            self._close(kind, batch)
        elif len(batch) == 1:
            self._loop.call_later(registered.batch_wait, self._close, kind, batch)

    def _close(self, kind: tuple[str, str], batch: list[Attempt]) -> None:
        if self._open.get(kind) is batch:
            del self._open[kind]
            self.closed.append(batch)
            self._on_closed()
