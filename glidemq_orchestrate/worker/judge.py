"""Runs the handler of an attempt, and judges what came of it: one outcome for each job, whatever happened."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate import telemetry
from glidemq_orchestrate._ops.queue import budget
from glidemq_orchestrate._ops.worker import workers as ops
from glidemq_orchestrate._protocol.worker.exchange import Kind, Outcome
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.keys import QueueKeys
from glidemq_orchestrate.worker.attempt import make_context, portable, refuse_unreadable
from glidemq_orchestrate.worker.calls import Ended, Threads, ThreadsGone, call_async
from glidemq_orchestrate.worker.context import Context
from glidemq_orchestrate.worker.core import judge_error, judge_result, refuse, unknown_handler
from glidemq_orchestrate.worker.handler import Handlers, Registered
from glidemq_orchestrate.worker.hooks import about
from glidemq_orchestrate.worker.messages import Run, Voice
from glidemq_orchestrate.worker.processes import Processes
from glidemq_orchestrate.worker.running_flow import RunningFlow
from glidemq_orchestrate.worker.signals import BatchError
from glidemq_orchestrate.worker.tokens import TokenGate

logger = logging.getLogger("glidemq_orchestrate.worker")

HAND_BACK_MS: Final = 50
LONGEST_HAND_BACK_MS: Final = 1_000
MOST_HANDED_BACK: Final = 10_000


class BudgetExceeded(Exception):
    """The budget of a job's flow is spent."""


class Exited(Exception):
    """A handler raised what no coroutine may raise."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__()


@dataclass(slots=True, eq=False)
class Running:
    """A handler at work on one job or, for a batch, on several.

    Attributes:
        told: The attempts that shall stop, by job: whether the job was revoked; else their lease is gone.
        has_ended: Its place is free.
        is_over: What came of all its attempts is said.
    """

    attempts: Sequence[Attempt]
    started: float
    contexts: Sequence[Context] = ()
    told: dict[str, bool] | None = None
    task: asyncio.Task[None] | None = None
    has_ended: bool = False
    is_over: bool = False


@dataclass(slots=True)
class Judge:
    """Runs handlers.

    Attributes:
        run: Drives operations.
        queues: Keys by queue name.
        handlers: User code by job name.
        threads: Where plain functions run.
        processes: Where handlers with ``process=True`` run.
        clock: The present.
        voice: Sends what handlers say.
        tokens: Holds runs back while too many tokens are spent.
        worker_id: Whose handlers these are.
        allow_import: From which packages handlers import what a job names.
        is_abandoned: The worker ends: handlers are cancelled, and their jobs given back.
    """

    run: Run
    queues: Mapping[str, QueueKeys]
    handlers: Handlers
    threads: Threads
    processes: Processes | None
    clock: Clock
    voice: Voice
    tokens: TokenGate | None
    worker_id: str
    allow_import: tuple[str, ...] = ()
    is_abandoned: bool = False
    handed_back: dict[tuple[str, str], int] = field(default_factory=dict)
    traced: tuple[float, bool] = (-1.0, False)

    async def judge(self, running: Running) -> Sequence[Outcome | None]:  # noqa: PLR0911  ways to end
        """One outcome per attempt; None where the lease is gone and there is nothing to hand in.

        Raises:
            asyncio.CancelledError: The worker ends, and gives the jobs back.
            ThreadsGone: The interpreter goes down.
        """
        attempts = running.attempts
        registered = self.handlers.get(attempts[0].name)
        try:
            refuse_unreadable(attempts)
            if registered is None:
                return [await self._without_handler(attempt) for attempt in attempts]
            running.contexts = [self._context(attempt) for attempt in attempts]
        except GlideMQError as exc:
            return await self._judge_readable(running, exc)
        try:
            if self.tokens:
                await self.tokens.wait(self.queues[attempts[0].queue])
            if attempts[0].budget_key and (refused := await self._check_budget(attempts[0])):
                return [refused]
            call = self._traced if self._is_traced(running.started) else self._limited
            value = await call(registered, running)
        except (ThreadsGone, GeneratorExit):
            raise
        except asyncio.CancelledError as exc:
            return self._judge_cancelled(running, exc)
        except BaseException as exc:  # noqa: BLE001  the one place where code of users is caught
            return self._judge_raised(attempts, exc.error if isinstance(exc, Exited) else exc)
        if registered.batch_size:
            return self._judge_batch(attempts, value)
        return (self._judge_result(attempts[0], value),)

    def judge_cancelled(self, running: Running, attempt: Attempt) -> Outcome | None:
        """What to say about an attempt whose task was cancelled, maybe before its first step."""
        is_revoked = running.told.get(attempt.job_id) if running.told else None
        if is_revoked is None:  # its handler has cancelled itself, or waited for such a one
            return self.judge_error(attempt, asyncio.CancelledError())
        return refuse(attempt, "revoked") if is_revoked else None

    def judge_error(self, attempt: Attempt, exc: BaseException) -> Outcome:
        """What to say about an attempt that raised."""
        chance = random.random()  # noqa: S311  jitter
        return judge_error(attempt, exc, chance, now_ms=self.clock.now_ms(), backoffs=self.handlers.backoffs)

    def is_charged(self, attempt: Attempt, outcome: Outcome) -> bool:
        """Whether what the job took is to be counted."""
        return outcome.kind is Kind.DONE and bool(attempt.budget_key or self.tokens)

    async def charge(self, attempt: Attempt) -> None:
        """Count what a completed job took; it is too late to refuse it."""
        queue = self.queues[attempt.queue]
        with contextlib.suppress(GlideMQError):
            if attempt.budget_key:
                await self.run(budget.charge(queue, attempt.job_id, attempt.budget_key))
            if self.tokens:
                await self.tokens.charge(queue, attempt.job_id)

    def _is_traced(self, now: float) -> bool:
        """Whether spans go anywhere. Asked once a second: without a provider the answer is dear."""
        at, is_on = self.traced
        if at < 0 or now - at > 1:
            is_on = telemetry.is_on()
            self.traced = now, is_on
        return is_on

    async def _without_handler(self, attempt: Attempt) -> Outcome:
        """Give a job back that another live worker of the queue can run; without one it fails.

        It comes back after a pause that doubles: whoever takes it next may be us again.
        """
        queue, key = self.queues[attempt.queue], (attempt.queue, attempt.job_id)
        failure = unknown_handler(attempt, self.handlers.names)
        try:
            may = await self.run(ops.may_be_handled(queue, attempt, self.worker_id, failure.text, self.clock))
        except GlideMQError:
            may = True  # nobody knows, and that is no reason to fail a job
        pause = self.handed_back.pop(key, HAND_BACK_MS)
        if not may:
            return failure
        self.handed_back[key] = min(pause * 2, LONGEST_HAND_BACK_MS)
        if len(self.handed_back) > MOST_HANDED_BACK:
            del self.handed_back[next(iter(self.handed_back))]
        logger.info(
            "job %s: no handler for %r here, but another worker may have one: handed back",
            attempt.job_id,
            attempt.name,
            extra=about("handed_back", attempt),
        )
        return Outcome(attempt, Kind.LATER, first=self.clock.now_ms() + pause)

    async def _check_budget(self, attempt: Attempt) -> Outcome | None:
        """What to say about a job whose budget is spent; None: it may run."""
        verdict = "go"
        with contextlib.suppress(GlideMQError):  # no reason to fail a job
            verdict = await self.run(budget.check(attempt.budget_key))
        if verdict == "go":
            return None
        if verdict == "pause":
            return Outcome(attempt, Kind.LATER, first=self.clock.now_ms() + budget.PAUSE_MS)
        return self.judge_error(attempt, BudgetExceeded("Budget exceeded"))

    async def _traced(self, registered: Registered, running: Running) -> Any:
        with telemetry.running(running.attempts[0]):
            return await self._limited(registered, running)

    def _limited(self, registered: Registered, running: Running) -> Awaitable[Any]:
        """The call of the handler, ended when the time of its jobs is over."""
        limits = [attempt.options.timeout for attempt in running.attempts if attempt.options.timeout]
        if limits:
            return self._timed(registered, running, max(limits))
        return self._call(registered, running)

    async def _timed(self, registered: Registered, running: Running, limit: timedelta) -> Any:
        try:
            async with asyncio.timeout(limit.total_seconds()) as timer:
                return await self._call(registered, running)
        except TimeoutError:
            if not timer.expired():
                raise  # the handler's own
            for context in running.contexts:
                context.cancelled.set()
            raise TimeoutError(f"still running after {limit}") from None

    def _call(self, registered: Registered, running: Running) -> Awaitable[Any]:
        """The call of the handler, to be awaited."""
        given: Any = running.contexts if registered.batch_size else running.contexts[0]
        if registered.is_async:
            awaited: Awaitable[Any] = registered.function(given)
            return awaited
        if registered.in_process and self.processes is not None:
            token = process_token(running.attempts[0])
            job = portable(running.contexts[0])
            return _value(call_async(self.processes.run, registered.function, token, job))
        return _value(self.threads.run(registered.function, given))

    def _judge_raised(self, attempts: Sequence[Attempt], exc: BaseException) -> Sequence[Outcome]:
        if isinstance(exc, BatchError):
            return self._judge_batch(attempts, exc.results)
        logger.info(
            "job %s: attempt %d raised",
            attempts[0].job_id,
            attempts[0].attempts_made + 1,
            exc_info=exc,
            extra=about("attempt_failed", attempts[0]),
        )
        return [self.judge_error(attempt, exc) for attempt in attempts]

    def _judge_cancelled(self, running: Running, exc: asyncio.CancelledError) -> Sequence[Outcome | None]:
        if self.is_abandoned:
            raise exc
        return [self.judge_cancelled(running, attempt) for attempt in running.attempts]

    async def _judge_readable(self, running: Running, exc: GlideMQError) -> Sequence[Outcome | None]:
        """A job whose payload is broken fails for good; the others of its batch run without it."""
        if len(running.attempts) == 1:
            return [refuse(running.attempts[0], f"{type(exc).__name__}: {exc}")]
        outcomes: list[Outcome | None] = []
        for attempt in running.attempts:
            outcomes += await self.judge(Running([attempt], running.started, task=running.task))
        return outcomes

    def _judge_batch(self, attempts: Sequence[Attempt], results: Any) -> Sequence[Outcome]:
        if not isinstance(results, list | tuple) or len(results) != len(attempts):
            exc = TypeError(
                f"a batch handler must return a list with a result for each of its {len(attempts)} jobs"
            )
            return [self.judge_error(attempt, exc) for attempt in attempts]
        return [
            self._judge_result(attempt, result) for attempt, result in zip(attempts, results, strict=True)
        ]

    def _judge_result(self, attempt: Attempt, result: Any) -> Outcome:
        if isinstance(result, BaseException):
            return self.judge_error(attempt, result)
        try:
            return judge_result(attempt, result, random.random())  # noqa: S311  jitter
        except BaseException as exc:  # noqa: BLE001  a result whose own code raises while it is encoded
            return self.judge_error(attempt, exc)

    def _context(self, attempt: Attempt) -> Context:
        return make_context(attempt, self.voice, self._flow_of(attempt), self.allow_import)

    def _flow_of(self, attempt: Attempt) -> RunningFlow | None:
        if attempt.flow_id is None or attempt.options.portable:
            return None
        prefix = self.queues[attempt.queue].prefix
        return RunningFlow(self.run, asyncio.get_running_loop(), prefix, attempt, self.clock)


def process_token(attempt: Attempt) -> str:
    """By what a handler in a process says whose words they are."""
    return f"{attempt.token}:{attempt.job_id}"


async def _value(call: Awaitable[Ended]) -> Any:
    """The value, or raise what was raised, in a form that passes through coroutines."""
    ended = await call
    if ended.error is None:
        return ended.value
    if isinstance(ended.error, StopIteration):
        raise Exited(ended.error) from ended.error
    raise ended.error
