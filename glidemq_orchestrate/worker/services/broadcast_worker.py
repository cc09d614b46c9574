"""BroadcastWorker: handles the messages of a subscription, each at least once."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from glidemq_orchestrate import registry
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.attempts.handler_code import registered_code
from glidemq_orchestrate.attempts.workers import REGISTERED_MS
from glidemq_orchestrate.broadcasts import messages
from glidemq_orchestrate.broadcasts.messages import (
    Result,
    Subscription,
    check_pattern,
    open_subscription,
    renew,
    report,
    take,
    take_over,
    upkeep,
)
from glidemq_orchestrate.errors import CodecError, ConfigurationError, GlideMQError, TransportError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs.attempt import OF_BROADCASTS, Attempt, from_outside
from glidemq_orchestrate.jobs.options import DEFAULT_LEASE
from glidemq_orchestrate.jobs.output import append_log
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Call, ask
from glidemq_orchestrate.wire.codec import JsonLike, decode, encode, sendable
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_subscription
from glidemq_orchestrate.worker.contexts import refuse_unreadable
from glidemq_orchestrate.worker.executor import outcome_of_error, outcome_of_value, refuse
from glidemq_orchestrate.worker.handlers.code import code_of
from glidemq_orchestrate.worker.handlers.context import Cancelled, Context, Reporter
from glidemq_orchestrate.worker.handlers.registered import Handler
from glidemq_orchestrate.worker.held_jobs import Suspects
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.services.measured import Measured
from glidemq_orchestrate.worker.services.registration import ANNOUNCE_SECONDS, of_process
from glidemq_orchestrate.worker.services.service import HandlerService
from glidemq_orchestrate.worker.services.supervisor import seconds_until
from glidemq_orchestrate.worker.tasks import JobTask, reconnect_delays
from glidemq_orchestrate.worker.threads import CallResult, call_async
from glidemq_orchestrate.worker.watchdog import RunningHandler

__all__ = ["BroadcastWorker"]

logger = logging.getLogger("glidemq_orchestrate.worker")
BLOCK_MS: Final = 200
UPKEEP_SECONDS: Final = 0.5
CROWDED_SECONDS: Final = 0.1
MAX_UNSENT: Final = 1_000


class BroadcastWorker(HandlerService):
    """Run one handler for the messages of a subscription until it is stopped.

    Workers of the same subscription share its messages; each subscription gets all messages. A failed run is
    repeated for this subscription only, according to the options of the message.

    Args:
        name: The queue.
        handler: Called with a ``Context``; ``ctx.name`` is the subject.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        subscription: Its name; not blank.
        start_from: Where a new subscription begins: ``$`` for new messages only, ``0-0`` for all existing
            messages, or an entry id.
        subjects: Patterns, of which at least one must match: ``*`` is one segment, a final ``>`` one or more.
        concurrency: The number of messages that are handled at the same time.
        lease: Another worker takes a message over after this long without a heartbeat; at least a
            second.
        max_stalled: The number of lost workers after which a message fails. Messages that a lost worker had
            started run one at a time in each worker, until the cause of the loss is known.
        shutdown_timeout: How long a stop waits for running handlers. Then ``ctx.cancelled`` is set, async
            handlers are cancelled, and other workers take the messages over after ``lease``.
        metrics_port: As for ``Worker``; the ``handler`` is the subscription.
        metrics_host: The address of that port.
        prefix: First part of every key.
        clock: For tests.

    Raises:
        ConfigurationError: A value is not usable.
    """

    def __init__(  # noqa: PLR0913  most have defaults
        self,
        name: str,
        handler: Handler,
        url: Address = None,
        *,
        subscription: str,
        start_from: str = "$",
        subjects: Sequence[str] = (),
        concurrency: int = 10,
        lease: Duration = DEFAULT_LEASE,
        max_stalled: int = 3,
        shutdown_timeout: Duration = 10,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            url, kind=OF_BROADCASTS, unique=secrets.token_hex(6), queues=[name], group=subscription,
            lease=lease, shutdown_timeout=shutdown_timeout, prefix=prefix, clock=clock,
        )  # fmt: skip
        if isinstance(subjects, str):
            raise ConfigurationError("subjects must be a list of patterns")
        whole("concurrency", concurrency, 1, error=ConfigurationError)
        patterns = tuple(check_pattern(pattern) for pattern in subjects)
        keys = self._queues[name]
        self._subscription = Subscription(keys, check_subscription(subscription), start_from, patterns)
        self._handler, self._concurrency, self._max_stalled = handler, concurrency, max_stalled
        self._held: dict[str, tuple[Attempt, JobTask]] = {}
        self._slots = JobSlots(concurrency)
        self._measured = Measured(self._slots, metrics_port, metrics_host, handler=subscription)
        self._cancelled: dict[str, Cancelled] = {}
        self._again = True
        self._taking, self._has_retry = asyncio.Lock(), asyncio.Event()
        self._suspects = Suspects(lambda _released: None)
        self._threads_of: dict[str, int] = {}
        self._room_to_send = threading.Semaphore(MAX_UNSENT)
        self._code, self._started_ms = code_of(handler), time.time_ns() // 1_000_000
        self._jitter = random.Random()  # noqa: S311  separate: handlers may seed the shared generator

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus reads what it counts, while it runs; None without a ``metrics_port``."""
        return self._measured.url

    # --- the service ---

    _kind = "broadcast_worker"

    async def _begin(self) -> None:
        self._measured.serve()
        await self._run(open_subscription(self._subscription))
        name = self._subscription.queue.queue
        await self._start_guards(self._executing, lambda _attempt, _line: None)
        self._keep(f"messages of queue {name}", self._fetch_until_stopped)
        self._every(f"registration of queue {name}", ANNOUNCE_SECONDS, self._announce)
        self._every(f"leases of queue {name}", min(self._lock_ms / 3000, UPKEEP_SECONDS), self._beat)
        self._every(f"upkeep of queue {name}", UPKEEP_SECONDS, self._maintain, woken=self._has_retry)

    async def _drain(self) -> None:
        tasks = [task for _, task in self._held.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._shutdown_seconds)

    async def _finish(self) -> None:
        """Abandon runs that do not end: their messages stay pending until their leases expire."""
        for cancelled in self._cancelled.values():
            cancelled.set()
        tasks = [task for _, task in self._held.values()]
        for task in tasks:
            task.end()
        if tasks:
            await asyncio.wait(tasks)
            extra = {"action": "abandon", "worker": self.id}
            logger.warning("%d messages still run: other workers take them over", len(tasks), extra=extra)
        await self._stop_guards()
        await self._end_tasks()
        if self._own() is not None:
            forget = ask(registry.forget_worker(self._subscription.queue, self.id))
            await self._quietly("unregistering", functools.partial(self._run, forget))
        self._threads.close()
        await self._measured.close()

    def _executing(self) -> list[RunningHandler]:
        """The running handlers, from any thread."""
        held = list(self._held.values())
        return [
            RunningHandler(attempt, task, self._threads_of.get(attempt.entry_id)) for attempt, task in held
        ]

    # --- its tasks ---

    async def _fetch_until_stopped(self) -> None:
        """Fetch messages while there is room, until stopped."""
        is_stopping = self._stop_requested.is_set
        while not is_stopping():
            if self._room() <= 0:
                await self._wait_for_room()
                continue
            again, self._again = self._again, False
            try:
                await self._fetch(again=again)
            except BaseException:
                self._again = True
                raise
            self._failures.clear(f"messages of queue {self._subscription.queue.queue}")

    async def _wait_for_room(self) -> None:
        """Wait briefly, or until a run ends: abandoned handlers may occupy the threads."""
        if tasks := [task for _, task in self._held.values()]:
            await asyncio.wait(tasks, timeout=BLOCK_MS / 1000, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(CROWDED_SECONDS)

    async def _beat(self) -> None:
        """Renew the leases; stop each run that has lost its lease, or whose message was revoked."""
        held = [attempt for attempt, _ in self._held.values()]
        renewals = await self._run(renew(self._subscription, self.id, held, self._clock))
        self._measured.meter.exchanged(self._subscription.queue.queue)
        if not self._renewer.renewed():
            await asyncio.to_thread(self._renewer.start)
        for attempt, beat in zip(held, renewals, strict=True):
            cancelled = self._cancelled.get(attempt.entry_id)
            if beat < 1 and cancelled is not None and not cancelled.is_set():
                cancelled.set()
                why = "was revoked" if beat == 0 else "was taken over, as its lease was not renewed in time"
                self._warn(attempt, "lease_lost", f"message %s {why}; its handler should stop")

    async def _announce(self) -> None:
        """Register this worker: its process, what it uses, its subscription, and the code of its handler."""
        subscription = self._subscription.group
        description = {
            **of_process(self._started_ms, self._slots, len(self._held)),
            "handlers": [],
            "subscription": subscription,
            **registered_code({subscription: self._code} if self._code else {}),
        }
        queues, now_ms = [self._subscription.queue], self._clock.now_ms()
        await self._run(workers.announce(queues, self.id, description, REGISTERED_MS, now_ms))

    async def _maintain(self) -> float | None:
        due_ms = await self._run(upkeep(self._subscription, self._lock_ms, self._clock))
        await self._take_over()
        return seconds_until(due_ms, self._clock)

    async def _take_over(self) -> None:
        """Run messages of dead workers while there is room; other workers run the rest."""
        async with self._taking:
            if (room := self._room()) > 0:
                begun = await self._run(
                    take_over(
                        self._subscription, self.id, room=room, lock_ms=self._lock_ms,
                        max_stalled=self._max_stalled, clock=self._clock, suspects=self._suspects.is_free,
                    )
                )  # fmt: skip
                self._start(begun)

    def _room(self) -> int:
        if self._threads.is_crowded or self._stop_requested.is_set():
            return 0
        return self._concurrency - len(self._held)

    async def _fetch(self, *, again: bool) -> None:
        """Fetch messages for the free places, or pending messages again, and start their runs."""
        async with self._taking:
            if (room := self._room()) <= 0:
                self._again = self._again or again
                return
            begun = await self._run(
                take(
                    self._subscription, self.id, room=room, block_ms=BLOCK_MS, again=again,
                    held=set(self._held), clock=self._clock,
                )
            )  # fmt: skip
            self._start(begun)

    def _start(self, begun: list[Attempt]) -> None:
        for attempt in begun:
            if (earlier := self._cancelled.pop(attempt.entry_id, None)) is not None:  # its lease was lost
                earlier.set()
            self._suspects.may_begin(attempt)  # always true: at most one is taken over
            task = JobTask(self._work(attempt), loop=asyncio.get_running_loop())
            self._held[attempt.entry_id] = attempt, task
            task.add_done_callback(functools.partial(self._task_ended, attempt))
        self._slots.running = len(self._held)

    def _holds(self, attempt: Attempt) -> bool:
        """Whether this worker has not begun a later run of the same message."""
        held, _ = self._held.get(attempt.entry_id, (None, None))
        return held is attempt

    def _task_ended(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """Free the place of a message, however its run ended."""
        self._suspects.ended(attempt)
        if self._holds(attempt):
            del self._held[attempt.entry_id]
            self._cancelled.pop(attempt.entry_id, None)
            self._threads_of.pop(attempt.entry_id, None)
        self._slots.running = len(self._held)
        if not task.cancelled() and (error := task.exception()) is not None:
            # It stays pending until another worker takes it over for lack of heartbeats.
            logger.error("message %s: its outcome was not accepted", attempt.job_id, exc_info=error)

    # --- one message ---

    async def _work(self, attempt: Attempt) -> None:
        meter, began = self._measured.meter, time.monotonic()
        meter.started(attempt)
        meter.waited(attempt, (self._clock.now_ms() - int(attempt.entry_id.partition("-")[0])) / 1000)
        try:
            outcome = await self._execute(attempt)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as exc:  # noqa: BLE001  the message fails, and the worker continues
            outcome = outcome_of_error(attempt, exc, self._jitter.random())
        finally:
            attempt.seconds = time.monotonic() - began
            meter.returned(attempt)
        if self._holds(attempt):  # otherwise its outcome would count for the later run
            # The outcome may reach the server before its reply arrives here.
            self._cancelled.pop(attempt.entry_id, None)
            await self._report(attempt, outcome)

    async def _execute(self, attempt: Attempt) -> Outcome:
        """The outcome of a message: runs its handler within the time limit."""
        chance, limit = self._jitter.random(), attempt.options.timeout
        try:
            refuse_unreadable([attempt])
            context = self._context(attempt)
        except CodecError as exc:
            return refuse(attempt, f"{type(exc).__name__}: {exc}")
        try:
            async with asyncio.timeout(limit.total_seconds() if limit else None):
                ended = await self._call(attempt, context)
        except TimeoutError:
            context.cancelled.set()
            ended = CallResult(error=TimeoutError(f"still running after {limit}"))
        if ended.error is not None:
            return outcome_of_error(attempt, ended.error, chance)
        return outcome_of_value(attempt, ended.value, chance)

    async def _call(self, attempt: Attempt, context: Context) -> CallResult:
        def handle() -> Any:
            self._threads_of[attempt.entry_id] = threading.get_native_id()
            return self._handler(context)

        if inspect.iscoroutinefunction(self._handler):
            return await call_async(self._handler, context)
        ended = await self._threads.run(handle)
        if ended.error is None and inspect.isawaitable(ended.value):
            return await call_async(_awaited, ended.value)
        return ended

    async def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        """Report an outcome, again after each broken connection."""
        result, meter = _result(attempt, outcome), self._measured.meter
        pauses, what = reconnect_delays(), f"reporting a message of queue {attempt.queue}"
        was_sent = False
        while True:
            try:
                verdict = await self._run(report(self._subscription, self.id, result, self._clock))
            except TransportError as exc:
                was_sent = True
                self._failures.report(what, exc)
                await asyncio.sleep(next(pauses))
            else:
                self._failures.clear(what)
                if verdict == "retrying":
                    self._has_retry.set()
                if verdict == "stale" and not was_sent:  # a repeat is stale if the first was accepted
                    text = "the outcome of message %s came too late: another worker has taken it over"
                    self._warn(attempt, "stale", text)
                    meter.lost(attempt)
                elif verdict != "stale":
                    meter.settled(outcome, verdict)
                return

    def _warn(self, attempt: Attempt, action: str, text: str) -> None:
        extra = {"action": action, "worker": self.id, "job_id": attempt.job_id}
        logger.warning(text, attempt.job_id, extra=extra)

    def _context(self, attempt: Attempt) -> Context:
        """The context of a message; the number of its unsent reports is bounded."""
        queue, loop = self._subscription.queue, asyncio.get_running_loop()

        def send(call: Call[Any]) -> None:
            if not loop.is_closed() and self._room_to_send.acquire(blocking=False):  # otherwise dropped
                asyncio.run_coroutine_threadsafe(self._send(call), loop)

        cancelled = self._cancelled[attempt.entry_id] = Cancelled()
        return Context(
            cancelled=cancelled,
            queue=queue.queue,
            job_id=attempt.job_id,
            name=attempt.name,
            attempt=attempt.attempts_made + 1,
            data=decode(attempt.data, where=f"data of message {attempt.job_id}"),
            inputs={},
            flow_id=None,
            node=None,
            reporter=MessageReporter(queue, attempt.job_id, send),
        )

    async def _send(self, call: Call[Any]) -> None:
        try:
            await self._run(ask(call))
        except GlideMQError as exc:
            self._failures.report("sending messages of handlers", exc)
        finally:
            self._room_to_send.release()


def _result(attempt: Attempt, outcome: Outcome) -> Result:
    """The result to report for an outcome; outcomes that only jobs can have become failures."""
    entry_id, job_id = attempt.entry_id, attempt.job_id
    match outcome.kind:
        case Kind.DONE | Kind.SKIP:
            return Result(entry_id, job_id, "done", outcome.text if outcome.kind is Kind.DONE else "null")
        case Kind.FAIL:
            return Result(entry_id, job_id, "fail", outcome.text, outcome.first, outcome.second)
    reason = f"{outcome.kind} is not possible for a message: its job belongs to every subscription"
    return Result(entry_id, job_id, "fail", reason)


class MessageReporter(Reporter):
    """The ``Reporter`` of a message's context."""

    def __init__(self, queue: QueueKeys, job_id: str, send: Callable[[Call[Any]], None]) -> None:
        self._queue, self._job_id, self._send = queue, job_id, send

    def progress(self, value: JsonLike) -> None:
        self._send(messages.progress(self._queue, self._job_id, encode(value, where="progress")))

    def log(self, line: str) -> None:
        self._send(append_log(self._queue, from_outside(self._job_id), sendable(line)))


async def _awaited(made: Any) -> Any:
    return await made
