"""One job in a worker, from its activation to the acceptance of its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from glidemq_orchestrate._ops import attempt as ops
from glidemq_orchestrate._protocol import glidemq, orchestrate
from glidemq_orchestrate._protocol.call import Call, Op, ask
from glidemq_orchestrate._worker_core import (
    Fail,
    Finish,
    judge_error,
    judge_result,
    reconnect_delays,
    unknown_handler,
)
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.codec import JsonLike, decode, encode
from glidemq_orchestrate.errors import CodecError, LeaseLost, TransportError
from glidemq_orchestrate.handler import Context, Handler, Handlers
from glidemq_orchestrate.job import Attempt
from glidemq_orchestrate.keys import QueueKeys

logger = logging.getLogger("glidemq_orchestrate.worker")
T = TypeVar("T")


class Run(Protocol):
    """Drives an operation."""

    async def __call__(self, op: Op[T]) -> T:
        """Run it to its end."""


class ThreadsGone(Exception):
    """The interpreter is going down and takes no more work for threads: the job must be given back."""


@dataclass(slots=True)
class Running:
    """A handler at work."""

    context: Context
    task: asyncio.Future[JsonLike] | None = None


class JobRunner:
    """Runs handlers and hands in what came of them.

    Args:
        run: Drives operations.
        queues: Keys by queue name.
        handlers: User code by job name.
        threads: Where plain functions run.
        clock: The present.
        on_retry: Told in how many ms a job of this worker runs again.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of a worker that a job needs
        self,
        run: Run,
        queues: Mapping[str, QueueKeys],
        handlers: Handlers,
        threads: ThreadPoolExecutor,
        clock: Clock,
        on_retry: Callable[[int], None],
    ) -> None:
        self._run, self._queues, self._handlers = run, queues, handlers
        self._threads, self._clock, self._on_retry = threads, clock, on_retry
        self._running: dict[str, Running] = {}
        self._said: set[asyncio.Task[None]] = set()
        self._abandoned = False
        self._loop = asyncio.get_running_loop()

    async def work(self, attempt: Attempt, inputs: Mapping[str, str]) -> None:
        """Run the handler and hand in its outcome. Returns when the server has taken or refused it.

        Raises:
            ThreadsGone: The handler was not run; the job is still held.
        """
        try:
            verdict = await self._judge(attempt, inputs)
            await self._hand_in(attempt, verdict)
        except ThreadsGone:
            raise
        except Exception:
            # Whatever it was, the slot becomes free. The lease is not renewed, so another attempt follows.
            logger.exception(
                "job %s: its outcome was not taken", attempt.job_id, extra=_about("error", attempt)
            )
        finally:
            self._running.pop(attempt.token, None)

    def cancel(self, attempt: Attempt) -> None:
        """Tell the handler to stop: its lease is gone, or it was revoked. Async ones are interrupted."""
        if running := self._running.get(attempt.token):
            running.context.cancelled.set()
            if running.task is not None and _is_async(self._handlers.get(attempt.name)):
                running.task.cancel()

    def abandon(self) -> None:
        """Tell every handler to stop and hand in nothing more."""
        self._abandoned = True
        for running in list(self._running.values()):
            running.context.cancelled.set()

    async def _judge(  # noqa: PLR0911  one return an outcome
        self, attempt: Attempt, inputs: Mapping[str, str]
    ) -> Finish | Fail | None:
        handler, chance = self._handlers.get(attempt.name), random.random()  # noqa: S311  jitter
        if handler is None:
            return unknown_handler(attempt, self._handlers.names)
        try:
            running = Running(self._context(attempt, inputs))
        except CodecError as exc:
            return Fail(f"{type(exc).__name__}: {exc}", 0, 0)
        self._running[attempt.token] = running
        limit = attempt.options.timeout
        try:
            async with asyncio.timeout(limit.total_seconds() if limit else None) as timer:
                value = await self._call(handler, running)
        except TimeoutError as exc:
            if not timer.expired():
                return judge_error(attempt, exc, chance)
            running.context.cancelled.set()
            return judge_error(attempt, TimeoutError(f"still running after {limit}"), chance)
        except asyncio.CancelledError as exc:
            if self._abandoned or _is_cancelled_from_outside():
                raise
            if running.context.cancelled.is_set():
                return None  # the lease is gone: there is nothing to hand in
            return judge_error(attempt, exc, chance)  # the handler waited for something that was cancelled
        except ThreadsGone:
            raise
        except Exception as exc:
            logger.info(
                "job %s: attempt %d raised", attempt.job_id, attempt.attempts_made + 1,
                exc_info=exc, extra=_about("attempt_failed", attempt),
            )  # fmt: skip
            return judge_error(attempt, exc, chance)
        return judge_result(attempt, value, chance)

    async def _call(self, handler: Handler, running: Running) -> JsonLike:
        if _is_async(handler):
            running.task = self._loop.create_task(_awaited(handler, running.context))
        else:
            try:
                running.task = self._loop.run_in_executor(self._threads, _called, handler, running.context)
            except RuntimeError as exc:
                raise ThreadsGone from exc
        return await running.task

    async def _hand_in(self, attempt: Attempt, verdict: Finish | Fail | None) -> None:
        delays = reconnect_delays()
        while verdict is not None:
            try:
                if isinstance(verdict, Finish):
                    await self._run(
                        ops.complete(self._queues[attempt.queue], attempt, verdict.result, self._clock)
                    )
                    logger.debug("job %s: completed", attempt.job_id, extra=_about("job_completed", attempt))
                else:
                    await self._hand_in_failure(attempt, verdict)
            except LeaseLost as exc:
                # Also the answer to a repeat whose first reply was lost.
                logger.warning("outcome not taken: %s", exc, extra=_about("outcome_refused", attempt))
            except TransportError as exc:
                logger.warning("outcome not handed in yet: %s", exc, extra=_about("reconnect", attempt))
                await asyncio.sleep(next(delays))
                continue
            return

    async def _hand_in_failure(self, attempt: Attempt, verdict: Fail) -> None:
        op = ops.fail(
            self._queues[attempt.queue],
            attempt,
            verdict.reason,
            max_attempts=verdict.max_attempts,
            backoff_ms=verdict.backoff_ms,
            clock=self._clock,
        )
        if await self._run(op):
            self._on_retry(verdict.backoff_ms)
            logger.info(
                "job %s: runs again in %d ms",
                attempt.job_id,
                verdict.backoff_ms,
                extra=_about("retrying", attempt),
            )
        else:
            logger.error(
                "job %s: failed: %s", attempt.job_id, verdict.reason, extra=_about("job_failed", attempt)
            )

    def _context(self, attempt: Attempt, inputs: Mapping[str, str]) -> Context:
        queue = self._queues[attempt.queue]

        def progress(value: JsonLike) -> None:
            text = encode(value, where=f"progress of job {attempt.name}")
            self._say(orchestrate.progress(attempt, queue, text, self._clock.now_ms()))

        def log(line: str) -> None:
            self._say(glidemq.add_log(queue, attempt.job_id, line))

        return Context(
            queue=attempt.queue,
            job_id=attempt.job_id,
            name=attempt.name,
            attempt=attempt.attempts_made + 1,
            data=decode(attempt.data, where=f"data of job {attempt.name}"),
            inputs=orchestrate.read_results(inputs),
            flow_id=attempt.flow_id,
            node=attempt.node,
            progress=progress,
            log=log,
        )

    def _say(self, call: Call[Any]) -> None:
        """Send something that is not part of the outcome, from any thread."""

        async def send() -> None:
            with contextlib.suppress(TransportError, LeaseLost):
                await self._run(ask(call))

        def start() -> None:
            task = self._loop.create_task(send())
            self._said.add(task)
            task.add_done_callback(self._said.discard)

        with contextlib.suppress(RuntimeError):  # the loop has ended: a handler that outlived its worker
            self._loop.call_soon_threadsafe(start)

    async def all_said(self) -> None:
        """Wait until progress and log lines are on the server."""
        await asyncio.sleep(0)  # lets what other threads have just asked for start
        if self._said:
            await asyncio.wait(set(self._said))


def _is_cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_async(handler: Handler | None) -> bool:
    return inspect.iscoroutinefunction(handler)


def _awaited(handler: Handler, context: Context) -> Coroutine[Any, Any, JsonLike]:
    made = handler(context)
    if not inspect.iscoroutine(made):
        raise TypeError(f"handler {context.name} is async but made no coroutine")
    return made


def _called(handler: Handler, context: Context) -> Any:
    return handler(context)


def _about(action: str, attempt: Attempt) -> dict[str, str | None]:
    return {"action": action, "queue": attempt.queue, "job_id": attempt.job_id, "flow_id": attempt.flow_id}
