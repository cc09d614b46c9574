"""What handlers say while they run: progress and log lines, sent in order and apart from the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from glidemq_orchestrate._ops import jobs, usage
from glidemq_orchestrate._protocol import glidemq, orchestrate
from glidemq_orchestrate._protocol.call import Call, Op, ask_each
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.job import Attempt
from glidemq_orchestrate.keys import QueueKeys
from glidemq_orchestrate.usage import Usage

T = TypeVar("T")

SAID_AT_ONCE: Final = 100
logger = logging.getLogger("glidemq_orchestrate.worker")
Saying: TypeAlias = "Call[Any] | Op[Any]"


class Run(Protocol):
    """Drives an operation."""

    async def __call__(self, op: Op[T]) -> T:
        """Run it to its end."""


class Voice:
    """Sends what handlers say, one pipeline at a time. Made on the loop; ``tell`` may be called anywhere."""

    def __init__(self, run: Run, queues: Mapping[str, QueueKeys], clock: Clock) -> None:
        self._run, self._queues, self._clock = run, queues, clock
        self._sayings: list[Saying] = []
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
        self._post(call)

    def output(self, attempt: Attempt, fields: Mapping[str, str]) -> None:
        """Append to the output of a job, from any thread."""
        self._post(jobs.add_output(self._queues[attempt.queue], attempt.job_id, fields))

    def usage(self, attempt: Attempt, used: Usage) -> None:
        """Report what a job used, from any thread."""
        self._post(usage.report(self._queues[attempt.queue], attempt.job_id, used, self._clock))

    def _post(self, saying: Saying) -> None:
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._add(saying)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended: a handler that outlived its worker
                self._loop.call_soon_threadsafe(self._add, saying)

    async def all_said(self) -> None:
        """Wait until everything said is on the server."""
        await asyncio.sleep(0)  # lets what other threads have just said come in
        while self._sayer is not None:
            await asyncio.wait({self._sayer})

    def _add(self, saying: Saying) -> None:
        self._sayings.append(saying)
        if self._sayer is None:
            self._sayer = self._loop.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._sayings:
                try:
                    await self._run(self._next())
                except TransportError:
                    pass  # what is lost so is only told, not counted on
                except GlideMQError as exc:
                    logger.warning("a job's words were refused: %s", exc, extra={"action": "words_refused"})
        finally:
            self._sayer = None

    def _next(self) -> Op[Any]:
        """The operation that stands first, or as many plain calls as do."""
        if not isinstance(self._sayings[0], Call):
            op: Op[Any] = self._sayings.pop(0)  # type: ignore[assignment]  # it is no call
            return op
        calls = list(
            itertools.takewhile(lambda saying: isinstance(saying, Call), self._sayings[:SAID_AT_ONCE])
        )
        del self._sayings[: len(calls)]
        return ask_each(calls)  # type: ignore[arg-type]  # all of them are calls
