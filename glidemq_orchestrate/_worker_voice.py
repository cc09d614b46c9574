"""What handlers say while they run: progress and log lines, sent in order and apart from the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeVar

from glidemq_orchestrate._protocol import glidemq, orchestrate
from glidemq_orchestrate._protocol.call import Call, Op, ask_each
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import TransportError
from glidemq_orchestrate.job import Attempt
from glidemq_orchestrate.keys import QueueKeys

T = TypeVar("T")

SAID_AT_ONCE: Final = 100


class Run(Protocol):
    """Drives an operation."""

    async def __call__(self, op: Op[T]) -> T:
        """Run it to its end."""


class Voice:
    """Sends what handlers say, one pipeline at a time. Made on the loop; ``tell`` may be called anywhere."""

    def __init__(self, run: Run, queues: Mapping[str, QueueKeys], clock: Clock) -> None:
        self._run, self._queues, self._clock = run, queues, clock
        self._sayings: list[Call[Any]] = []
        self._sayer: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_busy(self) -> bool:
        """Whether something is on its way."""
        return self._sayer is not None

    def tell(self, kind: str, attempt: Attempt, text: str) -> None:
        """Send ``progress`` (JSON) or a ``log`` line, from any thread."""
        queue = self._queues[attempt.queue]
        call: Call[Any] = (
            glidemq.add_log(queue, attempt.job_id, text)
            if kind == "log"
            else orchestrate.progress(attempt, queue, text, self._clock.now_ms())
        )
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._add(call)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended: a handler that outlived its worker
                self._loop.call_soon_threadsafe(self._add, call)

    async def all_said(self) -> None:
        """Wait until everything said is on the server."""
        await asyncio.sleep(0)  # lets what other threads have just said come in
        while self._sayer is not None:
            await asyncio.wait({self._sayer})

    def _add(self, call: Call[Any]) -> None:
        self._sayings.append(call)
        if self._sayer is None:
            self._sayer = self._loop.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._sayings:
                calls, self._sayings = self._sayings[:SAID_AT_ONCE], self._sayings[SAID_AT_ONCE:]
                with contextlib.suppress(TransportError):  # what is lost so is only told, not counted on
                    await self._run(ask_each(calls))
        finally:
            self._sayer = None
