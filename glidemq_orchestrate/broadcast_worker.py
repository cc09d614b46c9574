"""BroadcastWorker: one subscription's share of a queue's messages. At least once for each."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import random
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate._facade import AsyncFacade
from glidemq_orchestrate._names import SUBSCRIPTION
from glidemq_orchestrate._ops import broadcast as ops
from glidemq_orchestrate._ops.broadcast import Subscription
from glidemq_orchestrate._protocol import broadcasting, glidemq
from glidemq_orchestrate._protocol.call import Call, ask
from glidemq_orchestrate._protocol.exchange import Kind
from glidemq_orchestrate._worker_core import judge_error, judge_result, reconnect_delays
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.codec import JsonLike, decode, encode
from glidemq_orchestrate.errors import ConfigurationError, TransportError
from glidemq_orchestrate.handler import Cancelled, Context, Handler
from glidemq_orchestrate.job import Attempt, milliseconds
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.subjects import check_pattern

__all__ = ["BroadcastWorker"]

logger = logging.getLogger(__name__)
BLOCK_MS: Final = 200


class BroadcastWorker(AsyncFacade):
    """Runs one handler for the messages of a subscription until it is stopped.

    Workers with the same subscription share its messages; each subscription gets them all. A failed run is
    repeated for this subscription only, as the options of the message say.

    Args:
        name: The queue.
        handler: Gets a ``Context``; ``ctx.name`` is the subject.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        subscription: Its name; not blank.
        start_from: For a new subscription: ``$`` from now on, ``0-0`` all there is, or an entry id.
        subjects: Patterns, of which one must fit: ``*`` is one segment, ``>`` at the end one or more.
        concurrency: Messages at the same time.
        lock_duration: After so long without a sign of life others take a message over; at least a second.
        max_lost: How often a message may lose its worker before it fails.
        shutdown_timeout: How long a stop waits for running handlers. Then ``ctx.cancelled`` is set, async
            handlers are cancelled, and others take the messages over after ``lock_duration``.
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
        lock_duration: timedelta = timedelta(seconds=30),
        max_lost: int = 3,
        shutdown_timeout: timedelta = timedelta(seconds=10),
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        if not SUBSCRIPTION.check(subscription).strip():
            raise ConfigurationError("subscription must not be blank")
        if isinstance(subjects, str):
            raise ConfigurationError("subjects must be a list of patterns")
        if concurrency < 1 or lock_duration < timedelta(seconds=1):
            raise ConfigurationError("concurrency must be at least 1, lock_duration at least a second")
        keys = QueueKeys(self._prefix, check_queue_name(name))
        patterns = tuple(check_pattern(pattern) for pattern in subjects)
        self.id = f"gmo-broadcast-{secrets.token_hex(6)}"
        self.ready = threading.Event()
        self._subscription = Subscription(keys, subscription, start_from, patterns)
        self._handler, self._concurrency = handler, concurrency
        self._lock_ms, self._max_lost = milliseconds(lock_duration), max_lost
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._cancelled: dict[str, Cancelled] = {}
        self._shutdown_seconds = shutdown_timeout.total_seconds()
        self._threads: ThreadPoolExecutor | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Serve until ``stop`` or, in the main thread, SIGTERM or SIGINT. Blocks."""
        asyncio.run(self.serve())

    def stop(self) -> None:
        """Ask the worker to end after what it has begun, from any thread. A repeat changes nothing."""
        self._stopped.set()

    async def serve(self) -> None:
        """Serve until stopped; running handlers are waited for a while. Connections are closed afterwards."""
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        caught = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        for number in caught:
            loop.add_signal_handler(number, self.stop)
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="glidemq-broadcast")
        try:
            await self._run(ops.open_subscription(self._subscription))
            self.ready.set()
            await self._serve_until_stopped()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for number in caught:
                loop.remove_signal_handler(number)
            await self.close()

    async def _serve_until_stopped(self) -> None:
        delays, due, again = reconnect_delays(), 0, True
        patience: float | None = None
        while not self._stopped.is_set() or self._tasks:
            if self._stopped.is_set():
                patience = patience or time.monotonic() + self._shutdown_seconds
                if time.monotonic() > patience:
                    await self._abandon()
                    return
            try:
                if self._clock.now_ms() >= due:
                    again = bool(await self._upkeep()) or again
                    due = self._clock.now_ms() + min(self._lock_ms // 3, 500)
                if not self._stopped.is_set() and len(self._tasks) < self._concurrency:
                    await self._fetch(again=again)
                else:
                    await asyncio.sleep(BLOCK_MS / 1000)
            except TransportError as exc:
                logger.warning("trying again: %s", exc, extra={"action": "reconnect", "worker": self.id})
                await asyncio.sleep(next(delays))
                again = True
            else:
                again, delays = False, reconnect_delays()

    async def _abandon(self) -> None:
        """Leave what does not end: it stays pending, and is taken over when its lock is over."""
        for cancelled in self._cancelled.values():
            cancelled.set()
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        logger.warning(
            "%d messages were left to other workers", len(tasks),
            extra={"action": "abandon", "worker": self.id},
        )  # fmt: skip

    async def _upkeep(self) -> int:
        await self._run(ops.beat(self._subscription, [job for job, _ in self._tasks.values()], self._clock))
        return await self._run(
            ops.upkeep(self._subscription, self.id, self._lock_ms, self._max_lost, self._clock)
        )

    async def _fetch(self, *, again: bool) -> None:
        room = self._concurrency - len(self._tasks)
        count = 2 * self._concurrency if again else room
        begun = await self._run(
            ops.take(
                self._subscription, self.id, count=count, block_ms=BLOCK_MS, again=again,
                held=set(self._tasks), clock=self._clock,
            )
        )  # fmt: skip
        for attempt in begun:
            task = asyncio.create_task(self._work(attempt))
            self._tasks[attempt.entry_id] = attempt.job_id, task

    async def _work(self, attempt: Attempt) -> None:
        try:
            await self._hand_in(attempt, await self._outcome(attempt))
        except Exception:
            # It stays pending, and is taken over when nobody gives a sign of life for it.
            logger.exception("message %s: its outcome was not taken", attempt.job_id)
        finally:
            self._tasks.pop(attempt.entry_id, None)
            self._cancelled.pop(attempt.entry_id, None)

    async def _outcome(self, attempt: Attempt) -> Call[Any]:
        queue, group, chance = self._subscription.queue, self._subscription.group, random.random()  # noqa: S311
        job_id, entry_id, limit = attempt.job_id, attempt.entry_id, attempt.options.timeout
        try:
            context = self._context(attempt)
            async with asyncio.timeout(limit.total_seconds() if limit else None):
                verdict = judge_result(attempt, await self._call(context), chance)
        except Exception as exc:  # noqa: BLE001  whatever user code raises
            verdict = judge_error(attempt, exc, chance)
        now_ms = self._clock.now_ms()
        match verdict.kind:
            case Kind.DONE | Kind.SKIP:
                result = verdict.text if verdict.kind is Kind.DONE else "null"
                return broadcasting.complete(queue, job_id, entry_id, group, result, now_ms)
            case Kind.FAIL:
                return broadcasting.fail(
                    queue, job_id, entry_id, group, reason=verdict.text, max_attempts=verdict.first,
                    backoff_ms=verdict.second, now_ms=now_ms,
                )  # fmt: skip
        reason = f"a message cannot ask for {verdict.kind}: its job belongs to every subscription"
        return broadcasting.fail(
            queue, job_id, entry_id, group, reason=reason, max_attempts=0, backoff_ms=0, now_ms=now_ms
        )

    async def _call(self, context: Context) -> JsonLike:
        if inspect.iscoroutinefunction(self._handler):
            value: JsonLike = await self._handler(context)
            return value
        loop, about = asyncio.get_running_loop(), contextvars.copy_context()
        made: Any = await loop.run_in_executor(self._threads, about.run, self._handler, context)
        return await made if inspect.isawaitable(made) else made  # type: ignore[no-any-return]  # user code

    async def _hand_in(self, attempt: Attempt, call: Call[Any]) -> None:
        delays = reconnect_delays()
        while True:
            try:
                await self._run(ask(call))
            except TransportError as exc:
                logger.warning("message %s: not handed in yet: %s", attempt.job_id, exc)
                await asyncio.sleep(next(delays))
            else:
                return

    def _context(self, attempt: Attempt) -> Context:
        queue, loop = self._subscription.queue, asyncio.get_running_loop()

        def say(call: Call[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                asyncio.run_coroutine_threadsafe(self._say(call), loop)

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
            progress=lambda value: say(
                broadcasting.progress(queue, attempt.job_id, encode(value, where="progress"))
            ),
            log=lambda line: say(glidemq.add_log(queue, attempt.job_id, line)),
        )

    async def _say(self, call: Call[Any]) -> None:
        with contextlib.suppress(TransportError):
            await self._run(ask(call))
