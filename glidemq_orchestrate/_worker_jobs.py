"""The jobs in the hands of a worker, from their start to what is said about them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from glidemq_orchestrate import _telemetry
from glidemq_orchestrate._ops import budget
from glidemq_orchestrate._protocol.exchange import Kind, Outcome
from glidemq_orchestrate._worker_context import make_context, portable
from glidemq_orchestrate._worker_core import Slots, judge_error, judge_result, refuse, unknown_handler
from glidemq_orchestrate._worker_flow import RunningFlow
from glidemq_orchestrate._worker_hooks import Hooks, about
from glidemq_orchestrate._worker_processes import Processes
from glidemq_orchestrate._worker_tokens import TokenGate
from glidemq_orchestrate._worker_voice import Run, Voice
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import CodecError, GlideMQError, TransportError
from glidemq_orchestrate.handler import BatchError, Context, Handlers, Registered
from glidemq_orchestrate.job import Attempt
from glidemq_orchestrate.keys import QueueKeys

logger = logging.getLogger("glidemq_orchestrate.worker")
T = TypeVar("T")


class BudgetExceeded(Exception):
    """The budget of a job's flow is spent."""


class ThreadsGone(Exception):
    """The interpreter is going down and takes no more work for threads: the job must be given back."""


@dataclass(slots=True, eq=False)
class Running:
    """A handler at work on one job or, for a batch, on several."""

    attempts: list[Attempt]
    contexts: list[Context]
    started: float
    revoked: set[str] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


class JobRunner:
    """Runs handlers and says what came of them.

    Args:
        run: Drives operations.
        queues: Keys by queue name.
        handlers: User code by job name.
        slots: What the worker holds.
        threads: Where plain functions run.
        clock: The present.
        say: Takes an outcome to be handed in.
        nudge: Told that there is room.
        stop: Ends the worker.
        tokens: Holds runs back while too many tokens are spent.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of a worker that a job needs
        self,
        run: Run,
        queues: Mapping[str, QueueKeys],
        handlers: Handlers,
        slots: Slots,
        threads: ThreadPoolExecutor,
        clock: Clock,
        say: Callable[[Outcome], None],
        nudge: Callable[[], None],
        stop: Callable[[], None],
        tokens: TokenGate | None = None,
    ) -> None:
        self._run, self._queues, self._handlers, self._slots = run, queues, handlers, slots
        self._threads, self._clock, self._say, self._stop = threads, clock, say, stop
        self._nudge, self._tokens = nudge, tokens
        self._running: dict[tuple[str, str], Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._collected: dict[str, list[Attempt]] = {}
        self._full: deque[list[Attempt]] = deque()
        self._voice = Voice(run, queues, clock)
        self._hooks = Hooks(handlers)
        self._processes: Processes | None = None
        self._abandoned = False
        self._loop = asyncio.get_running_loop()
        if handlers.has_processes:
            self._processes = Processes(self._said_by_process)

    # --- taking jobs ---

    def begin(self, begun: list[Attempt]) -> None:
        """Take activated jobs and run as many as there are free places."""
        for attempt in begun:
            if self._slots.stopping:  # it was asked for before
                self._say(Outcome(attempt, Kind.BACK))
                continue
            self._slots.take(attempt)
            registered = self._handlers.get(attempt.name)
            if registered is not None and registered.batch_size:
                self._collect(attempt, registered)
            else:
                self._slots.waiting.append(attempt)
        self.fill()

    def fill(self) -> None:
        """Start what waits while there are free places."""
        slots = self._slots
        while slots.running < slots.concurrency and not slots.stopping:
            if self._full:
                self._start(self._full.popleft())
            elif slots.waiting:
                self._start([slots.waiting.popleft()])
            else:
                return

    def _collect(self, attempt: Attempt, registered: Registered) -> None:
        batch = self._collected.setdefault(attempt.name, [])
        batch.append(attempt)
        if len(batch) >= registered.batch_size:
            self._close_batch(attempt.name, batch)
        elif len(batch) == 1:
            self._loop.call_later(registered.batch_wait, self._close_batch, attempt.name, batch)

    def _close_batch(self, name: str, batch: list[Attempt]) -> None:
        if self._collected.get(name) is batch:
            del self._collected[name]
            if batch:
                self._full.append(batch)
            self.fill()

    def _start(self, attempts: list[Attempt]) -> None:
        self._slots.running += 1
        running = Running(attempts, [], self._loop.time())
        for attempt in attempts:
            self._running[attempt.queue, attempt.job_id] = running
            self._hooks.tell("active", attempt)
        running.task = self._loop.create_task(self._work(running))
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    # --- running them ---

    async def _work(self, running: Running) -> None:
        outcomes: Sequence[Outcome | None] = ()
        try:
            outcomes = await self._judge(running)
        except ThreadsGone:
            self._stop()
            return
        finally:
            self._slots.running -= 1
            seconds = self._loop.time() - running.started
            for attempt in running.attempts:
                self._running.pop((attempt.queue, attempt.job_id), None)
        if self._voice.is_busy:
            await self._voice.all_said()  # progress of an attempt is refused once its outcome is taken
        self._slots.ran(seconds)
        for attempt, outcome in zip(running.attempts, outcomes, strict=True):
            if outcome is not None and outcome.kind is Kind.DONE:
                await self._charge(attempt)
            self._end(attempt, outcome, seconds)
        self.fill()

    async def _check_budget(self, attempt: Attempt) -> Outcome | None:
        """What to say about a job whose budget is spent; None: it may run."""
        verdict = "go"
        with contextlib.suppress(TransportError):  # no reason to fail a job
            verdict = await self._run(budget.check(attempt.budget_key))
        if verdict == "go":
            return None
        if verdict == "pause":
            return Outcome(attempt, Kind.LATER, first=self._clock.now_ms() + budget.PAUSE_MS)
        return self._judge_error(attempt, BudgetExceeded("Budget exceeded"))

    async def _charge(self, attempt: Attempt) -> None:
        queue = self._queues[attempt.queue]
        if attempt.budget_key:
            with contextlib.suppress(GlideMQError):  # it is too late to refuse the job
                await self._run(budget.charge(queue, attempt.job_id, attempt.budget_key))
        if self._tokens:
            await self._tokens.charge(queue, attempt.job_id)

    async def _judge(self, running: Running) -> Sequence[Outcome | None]:
        """One outcome per attempt; None where the lease is gone and there is nothing to hand in."""
        attempts = running.attempts
        registered = self._handlers.get(attempts[0].name)
        if registered is None:
            return [unknown_handler(attempt, self._handlers.names) for attempt in attempts]
        try:
            running.contexts = [self._context(attempt) for attempt in attempts]
        except CodecError as exc:
            return await self._judge_readable(running, exc)
        try:
            if self._tokens:
                await self._tokens.wait(self._queues[attempts[0].queue])
            if attempts[0].budget_key and (refused := await self._check_budget(attempts[0])):
                return [refused]
            with _telemetry.running(attempts[0]) if _telemetry.is_on() else contextlib.nullcontext():
                value = await self._limited(registered, running)
        except ThreadsGone:
            raise
        except asyncio.CancelledError as exc:
            return self._judge_cancelled(running, exc)
        except Exception as exc:  # noqa: BLE001  the one place where code of users is caught
            return self._judge_raised(attempts, exc)
        return self._judge_batch(attempts, value if registered.batch_size else [value])

    async def _limited(self, registered: Registered, running: Running) -> Any:
        limits = [attempt.options.timeout for attempt in running.attempts if attempt.options.timeout]
        if not limits:
            return await self._call(registered, running)
        try:
            async with asyncio.timeout(max(limits).total_seconds()) as timer:
                return await self._call(registered, running)
        except TimeoutError:
            if not timer.expired():
                raise  # the handler's own
            for context in running.contexts:
                context.cancelled.set()
            raise TimeoutError(f"still running after {max(limits)}") from None

    def _judge_raised(self, attempts: list[Attempt], exc: Exception) -> Sequence[Outcome]:
        if isinstance(exc, BatchError):
            return self._judge_batch(attempts, exc.results)
        logger.info(
            "job %s: attempt %d raised",
            attempts[0].job_id,
            attempts[0].attempts_made + 1,
            exc_info=exc,
            extra=about("attempt_failed", attempts[0]),
        )
        return [self._judge_error(attempt, exc) for attempt in attempts]

    async def _judge_readable(self, running: Running, exc: CodecError) -> Sequence[Outcome | None]:
        """A job whose payload is broken fails for good; the others of its batch run without it."""
        if len(running.attempts) == 1:
            return [refuse(running.attempts[0], f"{type(exc).__name__}: {exc}")]
        outcomes: list[Outcome | None] = []
        for attempt in running.attempts:
            alone = Running([attempt], [], running.started, task=running.task)
            outcomes += await self._judge(alone)
        return outcomes

    def _judge_batch(self, attempts: list[Attempt], results: Any) -> Sequence[Outcome]:
        if not isinstance(results, list | tuple) or len(results) != len(attempts):
            exc = TypeError(
                f"a batch handler must return a list with a result for each of its {len(attempts)} jobs"
            )
            return [self._judge_error(attempt, exc) for attempt in attempts]
        return [
            self._judge_error(attempt, result)
            if isinstance(result, BaseException)
            else judge_result(attempt, result, random.random())  # noqa: S311  jitter
            for attempt, result in zip(attempts, results, strict=True)
        ]

    def _judge_cancelled(self, running: Running, exc: asyncio.CancelledError) -> Sequence[Outcome | None]:
        if self._abandoned:
            raise exc
        if all(context.cancelled.is_set() for context in running.contexts):
            return [
                refuse(attempt, "revoked") if attempt.job_id in running.revoked else None
                for attempt in running.attempts
            ]
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise exc
        # The handler waited for something that was cancelled.
        return [self._judge_error(attempt, exc) for attempt in running.attempts]

    def _judge_error(self, attempt: Attempt, exc: BaseException) -> Outcome:
        chance = random.random()  # noqa: S311  jitter
        return judge_error(
            attempt, exc, chance, now_ms=self._clock.now_ms(), backoffs=self._handlers.backoffs
        )

    async def _call(self, registered: Registered, running: Running) -> Any:
        given: Any = running.contexts if registered.batch_size else running.contexts[0]
        if registered.is_async:
            return await registered.function(given)
        if registered.in_process and self._processes is not None:
            return await self._processes.run(
                registered.function, _token(running.attempts[0]), portable(running.contexts[0])
            )
        try:
            # With the context, as asyncio.to_thread does: a span of the handler belongs to the one around it.
            call = functools.partial(contextvars.copy_context().run, registered.function, given)
            future = self._loop.run_in_executor(self._threads, call)
        except RuntimeError as exc:
            raise ThreadsGone from exc
        return await future

    # --- ending them early ---

    def cancel(self, attempt: Attempt, *, revoked: bool) -> None:
        """Tell the handler to stop: it was revoked, or its lease is gone. Async ones are interrupted."""
        running = self._running.get((attempt.queue, attempt.job_id))
        if running is None:
            self._drop(attempt, revoked=revoked)
            return
        if revoked:
            running.revoked.add(attempt.job_id)
        for held, context in zip(running.attempts, running.contexts, strict=False):
            if held is attempt:
                context.cancelled.set()
        registered = self._handlers.get(attempt.name)
        is_stoppable = registered is not None and (registered.is_async or registered.in_process)
        if is_stoppable and running.task and all(context.cancelled.is_set() for context in running.contexts):
            running.task.cancel()

    def _drop(self, attempt: Attempt, *, revoked: bool) -> None:
        """Forget a job that has not begun."""
        for batch in (self._slots.waiting, *self._collected.values(), *self._full):
            if attempt in batch:
                batch.remove(attempt)
                self._end(attempt, refuse(attempt, "revoked") if revoked else None, 0.0)

    def _end(self, attempt: Attempt, outcome: Outcome | None, seconds: float) -> None:
        self._slots.free(attempt)
        if outcome is None:
            self._hooks.tell("lost", attempt, seconds)
            self._nudge()
        else:
            self._say(outcome)
            self._hooks.tell_outcome(outcome, seconds)

    async def drain(self, seconds: float) -> None:
        """Wait until nothing runs, at most so long."""
        until = self._loop.time() + seconds
        while self._tasks and (left := until - self._loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def abandon(self, seconds: float = 5.0) -> None:
        """Stop every handler; afterwards nothing more is said. One that will not stop is left behind."""
        self._abandoned = True
        for running in list(self._running.values()):
            for context in running.contexts:
                context.cancelled.set()
        for task in list(self._tasks):
            task.cancel()
        await self.drain(seconds)
        await self._voice.all_said()

    def close(self) -> None:
        """Kill what runs in processes."""
        if self._processes is not None:
            self._processes.close()

    # --- what handlers say meanwhile ---

    def _context(self, attempt: Attempt) -> Context:
        return make_context(attempt, self._voice, self._flow_of(attempt))

    def _flow_of(self, attempt: Attempt) -> RunningFlow | None:
        if attempt.flow_id is None or attempt.options.portable:
            return None
        return RunningFlow(self._run, self._loop, self._queues[attempt.queue].prefix, attempt, self._clock)

    def _said_by_process(self, token: str, kind: str, text: str) -> None:
        for running in self._running.values():
            for attempt in running.attempts:
                if _token(attempt) == token:
                    self._voice.tell(kind, attempt, text)
                    return

    def taken(self, outcome: Outcome, verdict: str) -> None:
        """The server has taken or refused an outcome."""
        self._hooks.log_verdict(outcome, verdict)


def _token(attempt: Attempt) -> str:
    return f"{attempt.token}:{attempt.job_id}"
