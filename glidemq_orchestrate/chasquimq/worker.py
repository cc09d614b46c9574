"""ChasquiWorker: runs the jobs of a queue of ChasquiMQ with our handlers, beside ChasquiMQ's own workers."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.attempts.exchange import Outcome
from glidemq_orchestrate.chasquimq import chores
from glidemq_orchestrate.chasquimq.consuming import (
    Arrived,
    Consumer,
    Refused,
    give_back_all,
    leave,
    open_group,
)
from glidemq_orchestrate.chasquimq.ending import bury, dead_event, event
from glidemq_orchestrate.chasquimq.envelope import DEFAULT_MAX_ATTEMPTS
from glidemq_orchestrate.chasquimq.fetching import Fetching
from glidemq_orchestrate.chasquimq.keys import GROUP, ChasquiKeys, check_queue
from glidemq_orchestrate.chasquimq.profile import server_profile
from glidemq_orchestrate.chasquimq.renewing import Renewals
from glidemq_orchestrate.chasquimq.reporting import Reports
from glidemq_orchestrate.chasquimq.running import (
    ChasquiAttempt,
    ChasquiContexts,
    ChasquiMessenger,
    ChasquiUnhandled,
    End,
    end_of,
)
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import (
    Duration,
    duration,
    milliseconds,
    optional_duration,
    seconds,
)
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import NameRule, whole
from glidemq_orchestrate.jobs.options import DEFAULT_LEASE
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX
from glidemq_orchestrate.worker.executor import Caller, Executor, process_token
from glidemq_orchestrate.worker.handlers.handler import Handlers, RegistersHandlers
from glidemq_orchestrate.worker.handlers.log import JobLog, log_job
from glidemq_orchestrate.worker.handlers.middleware import (
    Execution,
    Hooks,
    Middleware,
    TimeLimit,
    Tracing,
    check_middleware,
)
from glidemq_orchestrate.worker.handlers.named_call import check_packages
from glidemq_orchestrate.worker.handlers.registered import Serving
from glidemq_orchestrate.worker.held_jobs import JobEvents
from glidemq_orchestrate.worker.processes import Processes
from glidemq_orchestrate.worker.services.service import Service
from glidemq_orchestrate.worker.tasks import JobTask, OwnTask
from glidemq_orchestrate.worker.threads import Threads, ThreadsUnavailable
from glidemq_orchestrate.worker.watchdog import RunningHandler, Watchdog

__all__ = ["ChasquiWorker"]

logger = logging.getLogger("glidemq_orchestrate.worker")
PROMOTE_SECONDS: Final = 0.1
SCHEDULE_SECONDS: Final = 1.0
RESULT_TTL: Final = timedelta(hours=1)
_GROUP: Final = NameRule("group", is_plain=True)


class ChasquiWorker(Service, RegistersHandlers):
    """Run the jobs of a queue of ChasquiMQ with the registered handlers until it is stopped.

    ChasquiMQ's own workers may serve the same queue beside it. Unlike them, it renews what it runs, so that
    a long job is not handed out again, and it hands back what it has not finished when it stops.

    A handler is chosen by the name of the job. ``ctx.data`` is the data as the producer wrote it, possibly
    with bytes. A result must be JSON. ChasquiMQ has no place for progress, output and messages of handlers;
    lines of ``ctx.log`` go to the log of the worker.

    Args:
        queue: The queue.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        handlers: Handlers defined elsewhere; the decorators of the worker add to them.
        unnamed: The name of the handler for jobs without a name; by default they fail.
        concurrency: The number of jobs that run at the same time, at least 1.
        attempts: The max number of runs of a job without a number of its own.
        lease: Another worker takes a job over after this long without a renewal; ChasquiMQ's workers decide
            by their own ``claim_min_idle_ms``, by default 30 s. At least a second.
        result_ttl: How long results are kept; None: they are not stored.
        group: The consumer group, which all workers of a queue share.
        run_delayed: Whether to move delayed jobs to the queue when they are due.
        run_schedules: Whether to add the jobs of schedules.
        require_chasquimq: Refuse a server on which ChasquiMQ's own workers cannot run.
        shutdown_timeout: How long a stop waits for running handlers before it gives their jobs back.
        allow_import: The packages from which handlers may import what a job names; see ``Worker``.
        middleware: Wraps the call of each handler, outermost first; see ``Middleware``.
        clock: For tests.

    Raises:
        ConfigurationError: A value is not usable.
    """

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        queue: str,
        url: Address = None,
        *,
        handlers: Handlers | None = None,
        unnamed: str | None = None,
        concurrency: int = 10,
        attempts: int = DEFAULT_MAX_ATTEMPTS,
        lease: Duration = DEFAULT_LEASE,
        result_ttl: Duration | None = RESULT_TTL,
        group: str = GROUP,
        run_delayed: bool = True,
        run_schedules: bool = True,
        require_chasquimq: bool = False,
        shutdown_timeout: Duration = 30,
        allow_import: Sequence[str] = (),
        middleware: Iterable[Middleware] = (),
        clock: Clock | None = None,
    ) -> None:
        keys = ChasquiKeys(check_queue(queue))
        name = f"gmo-chasqui-{secrets.token_hex(8)}"
        super().__init__(url, name=name, prefix=DEFAULT_PREFIX, clock=clock)
        whole("concurrency", concurrency, 1, error=ConfigurationError)
        whole("attempts", attempts, 1, error=ConfigurationError)
        if handlers is not None and not isinstance(handlers, Handlers):
            raise ConfigurationError(f"handlers must be of the type Handlers, got {described(handlers)}")
        self.handlers = handlers or Handlers()
        self._consumer = Consumer(keys, _GROUP.check(group), name, attempts)
        self._concurrency, self._unnamed = concurrency, unnamed or ""
        self._lease_ms = milliseconds(duration("lease", lease, min_=timedelta(seconds=1)))
        ttl = optional_duration("result_ttl", result_ttl, min_=timedelta(milliseconds=1))
        self._result_seconds = None if ttl is None else math.ceil(ttl.total_seconds())
        self._shutdown_seconds = seconds(duration("shutdown_timeout", shutdown_timeout))
        self._run_delayed, self._run_schedules = run_delayed, run_schedules
        self._require_chasquimq = require_chasquimq
        self._middleware, self._allow_import = check_middleware(middleware), check_packages(allow_import)
        self._threads, self._log = Threads("glidemq"), JobLog()
        self._held: dict[str, tuple[ChasquiAttempt, Execution]] = {}
        self._fetching = Fetching(
            self._run, self._consumer, concurrency, self._lease_ms, self._held, self._is_closed, self._start,
            self._drained, lambda: self._reports.reserved,
        )  # fmt: skip
        self._reports = Reports(
            self._run, self._consumer, self._failures, self._fetching.room_after, self._fetching.take
        )
        self._renewals = Renewals(
            self._run, self._consumer, self._settings, self._lease_ms / 1000, self._held, self._lose
        )
        self._executor: Executor | None = None
        self._events: JobEvents | None = None
        self._processes: Processes | None = None
        self._watchdog: Watchdog | None = None
        self._jitter = random.Random()  # noqa: S311  separate: handlers may seed the shared generator

    @property
    def _registry(self) -> Handlers:
        return self.handlers

    def _checks(self) -> Op[None]:
        yield from server_profile(require_chasquimq=self._require_chasquimq)

    # --- the service ---

    _kind = "chasqui_worker"

    def _introduction(self) -> str:
        handlers = ", ".join(self.handlers.names) or "none"
        where, queue = self._settings.where, self._consumer.keys.queue
        places = f"up to {self._concurrency} jobs at a time"
        return f"worker {self.id} serves queue {queue} of ChasquiMQ at {where}, {places}, handlers {handlers}"

    async def _begin(self) -> None:
        await self._run(ask(open_group(self._consumer)))
        queue = self._consumer.keys.queue
        for hook in self.handlers.starting(Serving((queue,), self._settings)):
            if (ended := await self._threads.run(hook)).error is not None:
                raise ended.error
        self._executor = self._make_executor()
        self._events = JobEvents(self._executor.middleware)
        self._watchdog = Watchdog(asyncio.get_running_loop(), self._executing, lambda _attempt, _line: None)
        self._watchdog.start()
        await self._renewals.start()
        self._keep(f"reports of queue {queue}", self._reports.serve)
        self._keep(f"queue {queue}", self._fetch_until_stopped)
        self._every(f"leases of queue {queue}", self._renewals.seconds, self._renewals.renew)
        if self._run_delayed:
            self._every(f"delayed jobs of queue {queue}", PROMOTE_SECONDS, self._promote)
        if self._run_schedules:
            self._every(f"schedules of queue {queue}", SCHEDULE_SECONDS, self._fire)

    def _make_executor(self) -> Executor:
        if self.handlers.has_processes:
            self._processes = Processes(self._forward)
        messenger = ChasquiMessenger(self._run, self._consumer, self._clock)
        return Executor(
            self.handlers,
            ChasquiContexts(self._run, {}, messenger, self._clock, self._allow_import),
            Caller(self._threads, self._processes),
            (Hooks(self.handlers), Tracing(), *self._middleware, TimeLimit(self.handlers)),
            ChasquiUnhandled(self._run, {}, self.handlers, self.id, self._clock),
            self._clock,
        )

    async def _drain(self) -> None:
        until = asyncio.get_running_loop().time() + self._shutdown_seconds
        while (tasks := self._job_tasks()) and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tasks, timeout=left)

    async def _finish(self) -> None:
        """Stop what still runs, hand back every entry, and leave the group."""
        if self._executor is not None:
            self._executor.is_abandoned = True
        tasks = self._job_tasks()
        for _, execution in self._held.values():
            for context in execution.contexts:
                context.cancelled.set(is_stopping=True)
        for task in tasks:
            task.end()
        if tasks:
            await asyncio.wait(tasks)
        if self._processes is not None:
            await self._quietly(
                "stopping the processes", functools.partial(asyncio.to_thread, self._processes.close)
            )
        if self._watchdog is not None:
            self._watchdog.stop()
        await self._end_tasks()
        await self._quietly("ending the renewer", self._renewals.close)
        if self._own() is not None:
            await self._quietly("giving jobs back", lambda: self._run(give_back_all(self._consumer)))
            await self._quietly("leaving the group", lambda: self._run(ask(leave(self._consumer))))
        for hook in self.handlers.stop_hooks:
            await self._quietly("a stop hook", functools.partial(self._threads.run, hook))
        self._log.flush()
        self._threads.close()

    def _job_tasks(self) -> set[OwnTask]:
        return {execution.task for _, execution in self._held.values() if execution.task is not None}

    def _executing(self) -> list[RunningHandler]:
        """The running handlers, from any thread."""
        held = list(self._held.values())
        return [RunningHandler(attempt, one.task, one.thread, one.used) for attempt, one in held]

    # --- its tasks ---

    def _is_closed(self) -> bool:
        return self._threads.is_crowded or self._stop_requested.is_set()

    def _drained(self) -> None:
        self._reports.tell(event("drained", "", "", self._clock.now_ms()))

    async def _fetch_until_stopped(self) -> None:
        while not self._stop_requested.is_set():
            if await self._fetching.fetch():
                self._failures.clear(f"queue {self._consumer.keys.queue}")

    def _lose(self, entry_id: str) -> None:
        """Stop a run that has lost its job."""
        attempt, execution = self._held.get(entry_id, (None, None))
        if attempt is None or execution is None or execution.stopped is not None or execution.has_ended:
            return
        execution.stopped = {attempt.job_id: False}
        for context in execution.contexts:
            context.cancelled.set(is_lost=True)
        text = "%s: another worker has taken the job over; its handler should stop"
        log_job(logging.WARNING, text, attempt, "lease_lost")
        registered = self.handlers.get(attempt.name)
        if registered is not None and (registered.is_async or registered.in_process) and execution.task:
            execution.task.end()

    async def _promote(self) -> float | None:
        moved = await self._run(chores.promote(self._consumer.keys, self.id, self._clock.now_ms()))
        return 0.0 if moved == chores.BATCH else None

    async def _fire(self) -> float | None:
        due_ms = await self._run(chores.fire_schedules(self._consumer.keys, self.id, self._clock.now_ms()))
        return None if due_ms is None else (due_ms - self._clock.now_ms()) / 1000

    # --- jobs ---

    def _start(self, found: Sequence[Arrived | Refused]) -> None:
        if self._stop_requested.is_set():
            return  # they are handed back with all that this consumer holds
        now_ms, loop = self._clock.now_ms(), asyncio.get_running_loop()
        for one in found:
            if isinstance(one, Refused):
                self._bury(one, now_ms)
                continue
            attempt = ChasquiAttempt.of(self._consumer, one, self._unnamed, now_ms)
            number, name = attempt.attempts_made + 1, attempt.stored_name
            self._reports.tell(event("active", attempt.envelope.job_id, name, now_ms, attempt=number))
            if self._events is not None:
                self._events.emit("active", attempt)
            execution = Execution([attempt], loop.time())
            self._held[attempt.entry_id] = attempt, execution
            execution.task = JobTask(self._work(attempt, execution), loop=loop)
            execution.task.add_done_callback(functools.partial(self._task_ended, attempt))

    def _bury(self, refused: Refused, now_ms: int) -> None:
        queue = self._consumer.keys.queue

        def log(was_held: asyncio.Future[bool]) -> None:
            error = None if was_held.cancelled() else was_held.exception()
            text = "queue %s of ChasquiMQ: entry %s became a dead letter: %s"
            if error is not None:
                text = "queue %s of ChasquiMQ: entry %s cannot become a dead letter: %s"
            extra = {"action": "dead_letter", "queue": queue}
            logger.warning(text, queue, refused.entry_id, error or refused.reason.value, extra=extra)

        ending = bury(self._consumer.keys, refused, dead_event(refused, now_ms))
        self._reports.report(ending).add_done_callback(log)

    async def _work(self, attempt: ChasquiAttempt, execution: Execution) -> None:
        assert self._executor is not None  # noqa: S101  made before jobs are fetched
        try:
            (outcome,) = await self._executor.execute(execution)
        except ThreadsUnavailable:
            self.stop()  # gives the held jobs back
            return
        attempt.seconds = asyncio.get_running_loop().time() - execution.started
        execution.has_ended = True
        if outcome is None:
            self._emit("lost", attempt)
        else:
            await self._report(outcome)

    async def _report(self, outcome: Outcome) -> None:
        """End a run on the server."""
        end = end_of(
            self._consumer, outcome, result_seconds=self._result_seconds, now_ms=self._clock.now_ms(),
            chance=self._jitter.random(),
        )  # fmt: skip
        was_held = await self._reports.report(end.ending)
        self._ended(end, "" if was_held else "stale")

    def _ended(self, end: End, refusal: str) -> None:
        verdict = refusal or end.verdict
        self._log.verdict(end.outcome, verdict)
        if self._events is not None:
            self._events.emit_verdict(end.outcome, verdict)

    def _emit(self, kind: str, attempt: ChasquiAttempt) -> None:
        if self._events is not None:
            self._events.emit(kind, attempt, attempt.seconds)

    def _task_ended(self, attempt: ChasquiAttempt, task: asyncio.Task[None]) -> None:
        """Free the place of a job, however its run ended."""
        attempt.is_mute = True
        del self._held[attempt.entry_id]
        self._fetching.freed()
        if not task.cancelled() and (error := task.exception()) is not None:
            # It stays pending until its lease ends.
            log_job(logging.ERROR, "%s: its outcome was not accepted: %s", attempt, "survived", error)

    async def _forward(self, token: str, kind: str, text: str) -> None:
        """What a handler in a process sends.

        Raises:
            LeaseLost: It asks whether it holds its job, and it does not.
        """
        if self._executor is None:
            return
        messenger = self._executor.contexts.messenger
        for attempt, _ in list(self._held.values()):
            if process_token(attempt) == token and kind == "check":
                await messenger.check_owner(attempt)
            elif process_token(attempt) == token and kind != "message":
                messenger.send(kind, attempt, text)
