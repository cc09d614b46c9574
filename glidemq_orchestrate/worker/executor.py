"""Runs handlers, and turns what they return or raise into the outcomes that a worker reports.

A handler runs in a thread, in a process, or on the worker's loop. A job whose name has no handler here is
given back or fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.errors import CodecError, EncodeError, GlideMQError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.foundation.texts import short_reason
from glidemq_orchestrate.jobs.attempt import NOT_PASSED, Attempt, has_passed
from glidemq_orchestrate.jobs.option_values import MAX_DELAY_MS, delay_ms
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.codec import JsonLike, encode
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.contexts import Contexts, portable, refuse_unreadable
from glidemq_orchestrate.worker.handlers.context import NO_FLOW
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.log import Lines, about, job_name, log_job
from glidemq_orchestrate.worker.handlers.middleware import Execution, Middleware, inside_out, wrap
from glidemq_orchestrate.worker.handlers.registered import BackoffStrategy, Registered
from glidemq_orchestrate.worker.handlers.results import encode_result
from glidemq_orchestrate.worker.handlers.signals import (
    BatchError,
    HandlerSignal,
    RetryLater,
    Skip,
    Suspend,
    Unrecoverable,
    WaitForChildren,
)
from glidemq_orchestrate.worker.handlers.tracebacks import from_users, text_of, traceback_text
from glidemq_orchestrate.worker.processes import Processes
from glidemq_orchestrate.worker.threads import CallResult, Threads, ThreadsUnavailable, call_async

logger = logging.getLogger("glidemq_orchestrate.worker")
LOST: Final = "the worker that ran it was lost, and the job must not run again"
PAUSE_MS: Final = 1_000
FIRST_PAUSE_MS: Final = 50
MAX_REMEMBERED: Final = 10_000


def outcome_of_value(attempt: Attempt, value: JsonLike, chance: float) -> Outcome:
    """The outcome of a handler that returned; a value that is not valid JSON is a failure."""
    try:
        text = "null" if value is None else encode_result(value, where=f"result of job {attempt.name}")
    except EncodeError as exc:
        return outcome_of_error(attempt, exc, chance)
    return Outcome(attempt, Kind.DONE, text, attempt.options.remove_on_complete)


def outcome_of_error(
    attempt: Attempt,
    error: BaseException,
    chance: float,
    *,
    now_ms: int = 0,
    backoffs: Mapping[str, BackoffStrategy] | None = None,
) -> Outcome:
    """The outcome of a handler that raised."""
    options, text = attempt.options, text_of(error)
    if isinstance(error, Unrecoverable):
        return _failed(attempt, text or "Unrecoverable", 0, 0, error.group)
    if isinstance(error, RetryLater):
        wait = milliseconds(error.delay)
        if not error.counts:
            return Outcome(attempt, Kind.LATER, first=now_ms + wait)
        return _failed(attempt, text, options.attempts, wait)
    if isinstance(error, Skip | WaitForChildren | Suspend):
        return _parked(attempt, error, text)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    strategy = (backoffs or {}).get(options.backoff_name)
    failures = attempt.attempts_made + 1
    try:
        wait = (
            min(max(milliseconds(strategy(failures, error)), 0), MAX_DELAY_MS)
            if strategy
            else delay_ms(options.backoff, failures, chance)
        )
    except BaseException as exc:  # noqa: BLE001  user code, called with a user error
        wait, reason = 0, f"{reason} (and backoff {options.backoff_name!r} raised {type(exc).__name__})"
    return _failed(attempt, reason, options.attempts, wait)


def _parked(attempt: Attempt, error: Skip | WaitForChildren | Suspend, text: str) -> Outcome:
    """The outcome of a handler that raised a signal other than a failure."""
    if isinstance(error, Skip):
        return Outcome(attempt, Kind.SKIP, short_reason(text), attempt.options.remove_on_complete)
    if isinstance(error, WaitForChildren):
        return Outcome(attempt, Kind.CHILDREN)
    return Outcome(
        attempt, Kind.SUSPEND, short_reason(text), first=milliseconds(error.timeout or timedelta(0))
    )


def unknown_handler(attempt: Attempt, known: list[str]) -> Outcome:
    """The failure of a job whose name has no handler in this worker, nor in another live one of its queue."""
    worker = f"worker {socket.gethostname()} {os.getpid()} (known: {', '.join(known) or 'none'})"
    queue, _ = split_shard(attempt.queue)
    return refuse(
        attempt,
        f"HandlerNotFound: no handler for job {attempt.name!r} in {worker}, nor in another live worker of "
        f"queue {queue}. Fix: correct the job name, or start a worker with the code that has the "
        "handler; then retry",
    )


def refuse(attempt: Attempt, reason: str) -> Outcome:
    """The final failure of a job: no further attempt runs."""
    return _failed(attempt, reason, 0, 0)


def _failed(attempt: Attempt, reason: str, attempts: int, backoff_ms: int, group: str = "") -> Outcome:
    retention = attempt.options.remove_on_fail
    return Outcome(attempt, Kind.FAIL, short_reason(reason), retention, attempts, backoff_ms, group)


@dataclass(slots=True)
class Unhandled:
    """Decides what happens to jobs without a handler in this worker.

    Attributes:
        run: Drives operations.
        queues: Keys by queue name.
        handlers: The handlers of this worker.
        worker_id: This worker.
        clock: The current time.
        only_known: Jobs are given back even while no other worker is alive.
        pauses: The next pause of a job that is given back, in milliseconds, by queue and job.
    """

    run: Run
    queues: Mapping[str, QueueKeys]
    handlers: Handlers
    worker_id: str
    clock: Clock
    only_known: bool = False
    pauses: dict[tuple[str, str], int] = field(default_factory=dict)

    async def outcome_of(self, attempt: Attempt) -> Outcome:
        """Give a job back if another live worker of the queue may run it; otherwise it fails.

        The job is available after a pause that doubles each time: this worker may fetch it next.
        """
        queue, key = self.queues[attempt.queue], (attempt.queue, attempt.node_job_id)
        failure = unknown_handler(attempt, self.handlers.names)
        try:
            longest = await self.run(
                workers.longest_pause(queue, attempt, self.worker_id, failure.text, self.clock)
            )
        except GlideMQError:
            longest = workers.MAX_PAUSE_MS  # unknown, which is no reason to fail a job
        last = self.pauses.pop(key, FIRST_PAUSE_MS)
        if longest is None:
            if not self.only_known:
                return failure
            longest = workers.MAX_PAUSE_ALONE_MS
        pause = min(last, longest)  # another worker may have come that runs it
        self.pauses[key] = min(pause * 2, longest)
        if len(self.pauses) > MAX_REMEMBERED:
            del self.pauses[next(iter(self.pauses))]
        level = logging.INFO if pause == FIRST_PAUSE_MS else logging.DEBUG
        text = "%s: given back, as this worker has no handler for %r and another worker may have one"
        log_job(level, text, attempt, "handed_back", attempt.name)
        return Outcome(attempt, Kind.LATER, first=self.clock.now_ms() + pause, second=UNBEGUN)


class Exited(Exception):
    """A handler raised an exception that no coroutine can raise."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__()


class Caller:
    """Calls handlers.

    Args:
        threads: Where plain functions run.
        processes: Where handlers with ``process=True`` run; None when there are none.
    """

    def __init__(self, threads: Threads, processes: Processes | None) -> None:
        self.threads, self._processes = threads, processes

    def call(self, registered: Registered, execution: Execution) -> Awaitable[Any]:
        """The call of a handler, to be awaited; it raises what the handler raises.

        Raises:
            ThreadsUnavailable: The interpreter is shutting down.
            Exited: The handler raised an exception that no coroutine can raise.
        """
        argument: Any = execution.contexts if registered.batch_size else execution.contexts[0]
        if registered.is_async:
            awaited: Awaitable[Any] = registered.function(argument)
            return awaited
        if registered.in_process and self._processes is not None:
            token, job = process_token(execution.attempts[0]), portable(execution.contexts[0])
            return _value(call_async(self._processes.run, registered.function, token, job))
        if registered.grace:
            stop, grace = execution.contexts[0].cancelled.set, registered.grace
            return _value(
                self.threads.run(_in_thread, execution, registered, argument, stop=stop, grace=grace)
            )
        return _value(self.threads.run(_in_thread, execution, registered, argument))


def process_token(attempt: Attempt) -> str:
    """The token that relates messages of a handler in a process to its attempt."""
    return f"{attempt.token}:{attempt.job_id}"


def _in_thread(execution: Execution, registered: Registered, argument: Any) -> Any:
    execution.thread, began = threading.get_native_id(), time.thread_time()
    try:
        return registered.function(argument)
    finally:
        execution.used = time.thread_time() - began


def _check_awaited(execution: Execution) -> None:
    """Refuse the result of an async handler whose nodes would be missing.

    Raises:
        Unrecoverable: It has not awaited a method that adds nodes.
    """
    for context in execution.contexts:
        if context.flow is not NO_FLOW and (name := context.flow.forgotten):
            raise Unrecoverable(f"an await is missing before ctx.flow.{name}(...): it added nothing")


async def _value(call: Awaitable[CallResult]) -> Any:
    """Return the value, or raise the error in a form that a coroutine can raise."""
    ended = await call
    if ended.error is None:
        return ended.value
    if isinstance(ended.error, StopIteration):
        raise Exited(ended.error) from ended.error
    raise ended.error


@dataclass(slots=True)
class Executor:
    """Runs handlers and returns their outcomes.

    Attributes:
        handlers: User code by job name.
        contexts: Creates the arguments of handlers.
        caller: Calls handlers.
        middleware: Wraps the calls, outermost first.
        unhandled: Decides what happens to jobs without a handler.
        clock: The current time.
        is_abandoned: The worker is ending: handlers are cancelled, and their jobs given back.
        around: The middleware that overrides ``around``, innermost first.
        jitter: Random numbers, separate from the shared generator, which handlers may seed. Not at module
            level: forked processes would share them.
        tracebacks: Those of elements of arrays in the log.
    """

    handlers: Handlers
    contexts: Contexts
    caller: Caller
    middleware: Sequence[Middleware]
    unhandled: Unhandled
    clock: Clock
    is_abandoned: bool = False
    around: Sequence[Middleware] = field(init=False)
    jitter: random.Random = field(default_factory=random.Random)
    tracebacks: Lines = field(
        default_factory=lambda: Lines(logging.INFO, "elements of arrays raised", "attempts_failed")
    )

    def __post_init__(self) -> None:
        """Select the middleware that overrides ``around``."""
        self.around = inside_out(self.middleware)

    async def execute(self, execution: Execution) -> Sequence[Outcome | None]:
        """Run the handler; returns an outcome per attempt, or None if its lease is lost.

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
            execution.contexts = list(map(self.contexts.make, attempts))
        except GlideMQError as exc:
            return await self._execute_readable(execution, exc)
        if registered.at_most_once and (outcome := await self._outcome_of_lost(attempts[0])) is not None:
            return (outcome,)
        return await self.call(execution, registered, attempts)

    async def call(
        self, execution: Execution, registered: Registered, attempts: Sequence[Attempt]
    ) -> Sequence[Outcome | None]:
        """Call the handler with the contexts of an execution; returns an outcome for each.

        ``attempts``: those of the outcomes; of a slice of an array, the slice for each element.
        """
        try:
            value = await wrap(self.around, execution, self.caller.call, registered, execution)
            if registered.is_async:
                _check_awaited(execution)
        except (ThreadsUnavailable, GeneratorExit):
            raise
        except asyncio.CancelledError as exc:
            return self._outcomes_of_cancel(execution, attempts, exc)
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
        chance = self.jitter.random()
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
        except GlideMQError:  # unknown, which is no reason to fail the job, nor to run it
            return Outcome(attempt, Kind.LATER, first=self.clock.now_ms() + PAUSE_MS, second=UNBEGUN)
        return None

    def _outcomes_of_raised(self, attempts: Sequence[Attempt], exc: BaseException) -> Sequence[Outcome]:
        """Log what a handler raised, and return the outcomes of its jobs."""
        if isinstance(exc, BatchError):
            return self._outcomes_of_batch(attempts, exc.results)
        first, extra = attempts[0], about("attempt_failed", attempts[0])
        number = first.attempts_made + 1
        if logger.isEnabledFor(logging.INFO) and self._may_log(first):
            # The message of such an error says everything, and is logged with the verdict.
            is_complete = isinstance(exc, HandlerSignal | CodecError) and not traceback_text(exc)
            part = exc if logger.isEnabledFor(logging.DEBUG) else from_users(exc)
            shown = None if is_complete else part
            logger.info("%s: attempt %d raised", job_name(first), number, exc_info=shown, extra=extra)
        return [self.outcome_of_error(attempt, exc) for attempt in attempts]

    def _may_log(self, attempt: Attempt) -> bool:
        """Whether the traceback of an attempt is logged: all of jobs, only some of elements of arrays."""
        return (attempt.element is None and attempt.slice is None) or self.tracebacks.have_room()

    def _outcomes_of_cancel(
        self, execution: Execution, attempts: Sequence[Attempt], exc: asyncio.CancelledError
    ) -> Sequence[Outcome | None]:
        if self.is_abandoned:
            raise exc
        return [self.outcome_of_cancel(execution, attempt) for attempt in attempts]

    async def _execute_readable(self, execution: Execution, exc: GlideMQError) -> Sequence[Outcome | None]:
        """Fail a job with a broken payload, without retries; run the other jobs of its batch."""
        if len(execution.attempts) == 1:
            return [refuse(execution.attempts[0], f"{type(exc).__name__}: {exc}")]
        outcomes: list[Outcome | None] = []
        for attempt in execution.attempts:
            outcomes += await self.execute(Execution([attempt], execution.started, task=execution.task))
        return outcomes

    def _outcomes_of_batch(self, attempts: Sequence[Attempt], results: Any) -> Sequence[Outcome]:
        """One outcome per job of a batch; all jobs fail unless there is a result for each."""
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
            outcome = outcome_of_value(attempt, result, self.jitter.random())
            if not attempt.options.must_pass or outcome.kind is not Kind.DONE or has_passed(result):
                return outcome
            text = encode(result, where=f"progress of job {attempt.name}")
            self.contexts.messenger.send("progress", attempt, text, is_awaited=True)
        except BaseException as exc:  # noqa: BLE001  a result whose own code raises during encoding
            return self.outcome_of_error(attempt, exc)
        return refuse(attempt, NOT_PASSED)
