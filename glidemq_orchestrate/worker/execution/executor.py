"""Runs the handler of an attempt, and makes an outcome for each of its jobs in every case."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import NOT_PASSED, Attempt, has_passed
from glidemq_orchestrate.worker.execution.caller import Caller, Exited
from glidemq_orchestrate.worker.execution.contexts import Contexts, refuse_unreadable
from glidemq_orchestrate.worker.execution.outcomes import outcome_of_error, outcome_of_value, refuse
from glidemq_orchestrate.worker.execution.threads import ThreadsUnavailable
from glidemq_orchestrate.worker.execution.unhandled import Unhandled
from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.middleware import Middleware, inside_out, wrap
from glidemq_orchestrate.worker.handlers.signals import BatchError
from glidemq_orchestrate.worker.handlers.tracebacks import traceback_text
from glidemq_orchestrate.worker.log import about

logger = logging.getLogger("glidemq_orchestrate.worker")
LOST: Final = "the worker that ran it was lost, and it must not run again"
PAUSE_MS: Final = 1_000
_jitter: Final = random.Random()  # noqa: S311  its own: handlers may seed the shared one


@dataclass(slots=True)
class Executor:
    """Runs handlers and returns their outcomes.

    Attributes:
        handlers: User code by job name.
        contexts: Builds their arguments.
        caller: Calls them.
        middleware: Wraps the calls, the outermost first.
        unhandled: Decides what happens to jobs without a handler.
        clock: The current time.
        is_abandoned: The worker is ending: handlers are cancelled, and their jobs given back.
        around: The middleware with an ``around`` of its own, the innermost first.
    """

    handlers: Handlers
    contexts: Contexts
    caller: Caller
    middleware: Sequence[Middleware]
    unhandled: Unhandled
    clock: Clock
    is_abandoned: bool = False
    around: Sequence[Middleware] = field(init=False)

    def __post_init__(self) -> None:
        """Select the middleware with an ``around`` of its own."""
        self.around = inside_out(self.middleware)

    async def execute(self, execution: Execution) -> Sequence[Outcome | None]:
        """One outcome per attempt; None where the lease is lost and there is nothing to report.

        Raises:
            asyncio.CancelledError: The worker is ending, and gives the jobs back.
            ThreadsUnavailable: The interpreter is shutting down.
        """
        attempts = execution.attempts
        registered = self.handlers.get(attempts[0].name)
        try:
            refuse_unreadable(attempts)
            if registered is None:
                return [await self.unhandled.outcome_of(attempt) for attempt in attempts]
            execution.contexts = [self.contexts.make(attempt) for attempt in attempts]
        except GlideMQError as exc:
            return await self._execute_readable(execution, exc)
        if registered.at_most_once and (outcome := await self._outcome_of_lost(attempts[0])) is not None:
            return (outcome,)
        try:
            value = await wrap(self.around, execution, self.caller.call, registered, execution)
        except (ThreadsUnavailable, GeneratorExit):
            raise
        except asyncio.CancelledError as exc:
            return self._outcomes_of_cancel(execution, exc)
        except BaseException as exc:  # noqa: BLE001  the one place where user code is caught
            return self._outcomes_of_raised(attempts, exc.error if isinstance(exc, Exited) else exc)
        one = None if registered.batch_size else self._outcome_of_value(attempts[0], value)
        return self._outcomes_of_batch(attempts, value) if one is None else (one,)

    def outcome_of_cancel(self, execution: Execution, attempt: Attempt) -> Outcome | None:
        """The outcome of an attempt whose task was cancelled, possibly before its first step."""
        is_revoked = execution.stopped.get(attempt.job_id) if execution.stopped else None
        if is_revoked is None:  # its handler cancelled itself, or awaited a task that was cancelled
            return self.outcome_of_error(attempt, asyncio.CancelledError())
        return refuse(attempt, "revoked") if is_revoked else None

    def outcome_of_error(self, attempt: Attempt, exc: BaseException) -> Outcome:
        """The outcome of an attempt that raised."""
        chance = _jitter.random()
        outcome = outcome_of_error(
            attempt, exc, chance, now_ms=self.clock.now_ms(), backoffs=self.handlers.backoffs
        )
        if outcome.kind is Kind.FAIL and (trace := traceback_text(exc)):
            text = f"attempt {attempt.attempts_made + 1} failed: {trace}"
            self.contexts.messenger.send("log", attempt, text)
        return outcome

    async def _outcome_of_lost(self, attempt: Attempt) -> Outcome | None:
        """Refuse a job that must run at most once and whose worker was lost; None if it may run."""
        try:
            if await self.contexts.was_lost(attempt):
                return refuse(attempt, LOST)
        except GlideMQError:  # not known, which is no reason to fail the job, nor to run it
            return Outcome(attempt, Kind.LATER, first=self.clock.now_ms() + PAUSE_MS, second=UNBEGUN)
        return None

    def _outcomes_of_raised(self, attempts: Sequence[Attempt], exc: BaseException) -> Sequence[Outcome]:
        """Log what a handler raised; the outcomes of its jobs."""
        if isinstance(exc, BatchError):
            return self._outcomes_of_batch(attempts, exc.results)
        first, extra = attempts[0], about("attempt_failed", attempts[0])
        number = first.attempts_made + 1
        logger.info("job %s: attempt %d raised", first.job_id, number, exc_info=exc, extra=extra)
        return [self.outcome_of_error(attempt, exc) for attempt in attempts]

    def _outcomes_of_cancel(
        self, execution: Execution, exc: asyncio.CancelledError
    ) -> Sequence[Outcome | None]:
        if self.is_abandoned:
            raise exc
        return [self.outcome_of_cancel(execution, attempt) for attempt in execution.attempts]

    async def _execute_readable(self, execution: Execution, exc: GlideMQError) -> Sequence[Outcome | None]:
        """Fail for good a job with a broken payload; run the others of its batch without it."""
        if len(execution.attempts) == 1:
            return [refuse(execution.attempts[0], f"{type(exc).__name__}: {exc}")]
        outcomes: list[Outcome | None] = []
        for attempt in execution.attempts:
            outcomes += await self.execute(Execution([attempt], execution.started, task=execution.task))
        return outcomes

    def _outcomes_of_batch(self, attempts: Sequence[Attempt], results: Any) -> Sequence[Outcome]:
        """One outcome per job of a batch; unless there is a result for each, all of them fail."""
        if not isinstance(results, list | tuple) or len(results) != len(attempts):
            exc = TypeError(
                f"a batch handler must return a list with a result for each of its {len(attempts)} jobs"
            )
            return [self.outcome_of_error(attempt, exc) for attempt in attempts]
        return [
            self._outcome_of_value(attempt, result) for attempt, result in zip(attempts, results, strict=True)
        ]

    def _outcome_of_value(self, attempt: Attempt, result: Any) -> Outcome:
        if isinstance(result, BaseException):
            return self.outcome_of_error(attempt, result)
        try:
            outcome = outcome_of_value(attempt, result, _jitter.random())
            if not attempt.options.must_pass or outcome.kind is not Kind.DONE or has_passed(result):
                return outcome
            self.contexts.messenger.of(attempt).progress(result)
        except BaseException as exc:  # noqa: BLE001  a result whose own code raises during encoding
            return self.outcome_of_error(attempt, exc)
        return refuse(attempt, NOT_PASSED)
