"""The worker: a service that fetches jobs from queues, runs their handlers and reports the outcomes.

A ``Feed`` per queue fetches jobs and reports outcomes, a ``JobRunner`` assigns places to handlers, an
``Executor`` runs them, and periodic chores, one task each per queue, renew the leases and maintain the
queues.

A kill -9 leaves jobs in state ``active`` whose lease ends after ``lock_duration``; any other worker of the
queue then takes them back. A broken connection is opened again; what a lost reply contained is requested
again.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.attempts import client_supervision as tendings
from glidemq_orchestrate.attempts import leases, upkeep, workers
from glidemq_orchestrate.attempts.client_supervision import Tending
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.attempts.workers import REGISTERED_MS
from glidemq_orchestrate.errors import ConfigurationError, ProtocolError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.bounds import lasting, milliseconds, whole
from glidemq_orchestrate.jobs.options import DEFAULT_LOCK
from glidemq_orchestrate.jobs.worker_id import OURS, worker_id
from glidemq_orchestrate.schedules import ops as schedulers
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name
from glidemq_orchestrate.worker.allowed_imports import check_packages
from glidemq_orchestrate.worker.caller import Caller
from glidemq_orchestrate.worker.calls import Threads
from glidemq_orchestrate.worker.contexts import Contexts
from glidemq_orchestrate.worker.core import Slots
from glidemq_orchestrate.worker.executor import Executor
from glidemq_orchestrate.worker.feed import NEVER, Feed
from glidemq_orchestrate.worker.handler import H, Handlers, Serving
from glidemq_orchestrate.worker.log import log_lost_workers
from glidemq_orchestrate.worker.messages import Messenger
from glidemq_orchestrate.worker.middleware.budget import Budget
from glidemq_orchestrate.worker.middleware.hooks import Hooks
from glidemq_orchestrate.worker.middleware.middleware import Middleware, check_middleware
from glidemq_orchestrate.worker.middleware.time_limit import TimeLimit
from glidemq_orchestrate.worker.middleware.tokens import TokenLimit, Tokens
from glidemq_orchestrate.worker.middleware.tracing import Tracing
from glidemq_orchestrate.worker.processes import Processes
from glidemq_orchestrate.worker.receipts import Receipts
from glidemq_orchestrate.worker.renewing import Renewer
from glidemq_orchestrate.worker.runner import JobRunner
from glidemq_orchestrate.worker.service import Service
from glidemq_orchestrate.worker.unhandled import Unhandled
from glidemq_orchestrate.worker.watch import Watch

__all__ = ["Worker"]

ANNOUNCE_SECONDS: Final = 10.0
UPKEEP_SECONDS: Final = 2.0
BEAT_SECONDS: Final = 1.0
RECLAIM_SECONDS: Final = 2.0
GIVE_UP_SECONDS: Final = 5.0


class Worker(Service):
    """Run the jobs of queues with the registered handlers until it is stopped.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        queues: At least one queue name.
        concurrency: Jobs at the same time, at least 1; handlers that are plain functions run in as many
            threads.
        prefetch: Jobs to hold beyond the running ones, so that the next one starts without a round trip. By
            default as many as start within 20 ms, judging by how long jobs take: at most 128, none if jobs
            are long; what waits for a second goes back to the queue. With a number they stay here, however
            long the jobs before them take.
        rate_limit: At most this many starts per period, counted over all workers of a queue; a limit set on
            the queue takes precedence.
        token_limit: Runs wait while more tokens than this are spent, as reported by the jobs themselves.
        handlers: Handlers defined elsewhere; ``worker.handler`` adds to them.
        prefix: First part of every key.
        lock_duration: After this long without a heartbeat, another worker may take the jobs over (one whose
            own is longer waits for that); at least a second.
        max_stalled: With how many workers a job may be lost before it fails. A loss counts only where the job
            may be its cause: its handler had begun.
        shutdown_timeout: How long a stop waits for running handlers before it gives their jobs back.
        allow_import: The packages from which handlers may import what a job names (``python``,
            ``spark.python``). Whole parts count: ``mypackage`` allows ``mypackage.steps``, not
            ``mypackage2``. Others are refused.
        middleware: Wraps the call of each handler, the outermost first; see ``Middleware``.
        only_known: Never fail a job because it has no handler here: give it back, also while no other worker
            is alive. For a worker that takes a few kinds of jobs from a queue that is not its own.
        clock: For tests.

    Raises:
        ConfigurationError: A value is not usable.
    """

    def __init__(  # noqa: PLR0913  all but the first two have defaults
        self,
        url: Address = None,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        prefetch: int | None = None,
        rate_limit: tuple[int, timedelta] | None = None,
        token_limit: TokenLimit | None = None,
        handlers: Handlers | None = None,
        prefix: str = DEFAULT_PREFIX,
        lock_duration: timedelta = DEFAULT_LOCK,
        max_stalled: int = 3,
        shutdown_timeout: timedelta = timedelta(seconds=10),
        allow_import: Sequence[str] = (),
        middleware: Iterable[Middleware] = (),
        only_known: bool = False,
        clock: Clock | None = None,
    ) -> None:
        time_of = functools.partial(lasting, most=timedelta.max, error=ConfigurationError)
        time_of("lock_duration", lock_duration, least=timedelta(seconds=1))
        self._lock_ms = milliseconds(lock_duration)
        started = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}"
        super().__init__(url, name=worker_id(OURS, started, self._lock_ms), prefix=prefix, clock=clock)
        if not queues or isinstance(queues, str):
            raise ConfigurationError("queues must be a list of at least one queue name")
        count = functools.partial(whole, error=ConfigurationError)
        count("concurrency", concurrency, 1)
        count("max_stalled", max_stalled, 0)
        if prefetch is not None:
            count("prefetch", prefetch, 0)
        if rate_limit is not None:
            if not isinstance(rate_limit, tuple) or len(rate_limit) != 2:
                raise ConfigurationError(
                    f"rate_limit must be a count and a timedelta, got {described(rate_limit)}"
                )
            count("the count of rate_limit", rate_limit[0], 1)
            time_of("the time of rate_limit", rate_limit[1], least=timedelta(milliseconds=1))
        time_of("shutdown_timeout", shutdown_timeout, least=timedelta(0))
        for kind, what, value in ((Handlers, "handlers", handlers), (TokenLimit, "token_limit", token_limit)):
            if value is not None and not isinstance(value, kind):
                raise ConfigurationError(
                    f"{what} must be of the type {kind.__name__}, got {described(value)}"
                )
        self.handlers = handlers or Handlers()
        self._queues = {name: QueueKeys(self._prefix, check_queue_name(name)) for name in queues}
        self._max_stalled = max_stalled
        self._beat_seconds = min(self._lock_ms / 3000, BEAT_SECONDS)
        self._shutdown_seconds = shutdown_timeout.total_seconds()
        self._slots = Slots(concurrency, prefetch)
        self._token_limit = token_limit
        self._middleware = check_middleware(middleware)
        self._allow_import = check_packages(allow_import)
        self._only_known = only_known
        self._limit = (rate_limit[0], milliseconds(rate_limit[1])) if rate_limit else (0, 0)
        self._tendings = {name: self._tending(keys) for name, keys in self._queues.items()}
        self._feeds: dict[str, Feed] = {}
        self._jobs: JobRunner | None = None
        self._processes: Processes | None = None
        self._threads = Threads("glidemq")
        self._renewer = Renewer(self.id, queues, self._settings, lock_duration.total_seconds())
        self._known_lease = math.inf  # the shortest that the renewer knows of
        self._renewed: dict[str, float] = {}
        self._woken: dict[str, float] = {}
        self._watch_loop: Watch | None = None

    def handler(
        self, name: str, *, process: bool = False, once: bool = False, grace: timedelta = timedelta(0)
    ) -> Callable[[H], H]:
        """Register a function for a job name: ``async def`` runs on the loop, ``def`` in a thread.

        With ``process=True`` it runs in a process that a timeout or a cancel kills; with ``once=True`` no job
        is run again whose worker was lost; with a ``grace`` a function that has timed out may return first.
        See ``Handlers.handler``.
        """
        return self.handlers.handler(name, process=process, once=once, grace=grace)

    # --- the service ---

    _kind = "worker"

    def _introduction(self) -> str:
        queues, handlers = ", ".join(self._queues), ", ".join(self.handlers.names) or "none"
        return f"worker {self.id} serves queues {queues}, handlers {handlers}"

    async def _begin(self) -> None:
        for name, keys in self._queues.items():
            try:
                await self._run(workers.open_queues([keys]))
                await self._announce(keys)
            except ProtocolError as exc:  # keys of one queue are broken: still serve the others
                self._failures.report(f"queue {name}", exc)
        for hook in self.handlers.starting(Serving(tuple(self._queues), self._settings)):
            if (ended := await self._threads.run(hook)).error is not None:
                raise ended.error
        self._jobs = jobs = self._job_runner()
        await asyncio.to_thread(self._renewer.start)
        self._watch_loop = Watch(asyncio.get_running_loop(), jobs.executing, jobs.note)
        self._watch_loop.start()
        for name, keys in self._queues.items():
            self._feeds[name] = Feed(
                self._run, self.id, keys, self._slots, jobs, self._clock, self._limit, len(self._queues),
                self._failures,
            )  # fmt: skip
        for name, keys in self._queues.items():
            self._begin_queue(name, keys, jobs)

    def _begin_queue(self, name: str, keys: QueueKeys, jobs: JobRunner) -> None:
        """Start the tasks of one queue. A failure of one task, or of the queue, affects no other."""
        feed, lock_seconds = self._feeds[name], self._lock_ms / 1000
        self._keep(f"queue {name}", feed.serve)
        if self._confirmation:
            feed.receipts = receipts = Receipts(
                self._run, self._run_confirmed, keys, jobs.settled, feed.report, feed.wake, self._failures
            )
            self._keep(receipts.what, receipts.serve)
        self._keep(f"listening to queue {name}", feed.listen)
        for what, seconds, chore in (
            ("leases", self._beat_seconds, functools.partial(self._beat, keys, jobs)),
            ("registration", ANNOUNCE_SECONDS, functools.partial(self._announce, keys)),
            ("upkeep", UPKEEP_SECONDS, functools.partial(self._maintain, keys)),
            ("reclaiming", min(lock_seconds / 2, RECLAIM_SECONDS), functools.partial(self._reclaim, keys)),
            ("supervision", UPKEEP_SECONDS, functools.partial(self._tend, self._tendings[name])),
        ):
            self._every(f"{what} of queue {name}", seconds, chore, immediately=what != "registration")
        fire, woken = functools.partial(self._fire, keys), feed.rescheduled
        self._every(f"schedules of queue {name}", UPKEEP_SECONDS, fire, woken=woken)

    def _job_runner(self) -> JobRunner:
        self._slots.batch_room = self._slots.concurrency * max(self.handlers.largest_batch - 1, 0)
        if self.handlers.has_processes:
            self._processes = Processes(self._forward)
        run, queues, clock = self._run, self._queues, self._clock
        messenger = Messenger(run, queues, clock)
        executor = Executor(
            self.handlers,
            Contexts(self._run_confirmed, queues, messenger, clock, self._allow_import),
            Caller(self._threads, self._processes),
            self._all_middleware(messenger),
            Unhandled(run, queues, self.handlers, self.id, clock, self._only_known),
            clock,
        )
        return JobRunner(
            executor,
            self._slots,
            report=self._report,
            wake=self._wake,
            stop=self.stop,
            tell=self._tell,
            is_late=self._is_late,
            note_lease=self._note_lease,
        )

    def _all_middleware(self, messenger: Messenger) -> Sequence[Middleware]:
        """The middleware around each call of a handler, the outermost first."""
        run, queues, limit = self._run, self._queues, self._token_limit
        return (
            *([Tokens(run, queues, limit, messenger, self._clock)] if limit else []),
            Hooks(self.handlers),
            Budget(run, queues, messenger),
            Tracing(),
            *self._middleware,
            TimeLimit(),
        )

    async def _drain(self) -> None:
        self._slots.stopping = True
        if self._jobs is not None:
            await self._jobs.drain(self._shutdown_seconds)

    async def _finish(self) -> None:
        self._slots.stopping = True
        if self._jobs is not None:
            await self._quietly("stopping the handlers", self._jobs.abandon)
        if self._processes is not None:
            close = functools.partial(asyncio.to_thread, self._processes.close)
            await self._quietly("stopping the processes", close)
        for attempt in list(self._slots.held.values()):
            self._feeds[attempt.queue].report(Outcome(attempt, Kind.BACK))
        for feed in self._feeds.values():
            feed.close()
        feeds = [task for task in self._tasks if task.get_name() in {f"queue {name}" for name in self._feeds}]
        if feeds:
            # Do not wait for a server that cannot be reached: the leases expire by themselves.
            await asyncio.wait(feeds, timeout=GIVE_UP_SECONDS)
        await self._end_tasks()
        if self._watch_loop is not None:
            self._watch_loop.stop()
        await self._quietly("ending the renewer", functools.partial(asyncio.to_thread, self._renewer.close))
        if self._own() is not None:
            await self._quietly("unregistering", self._unregister)
        for hook in self.handlers.stop_hooks:
            await self._quietly("a stop hook", functools.partial(self._run_hook, hook))
        self._threads.close()

    async def _unregister(self) -> None:
        for tending in self._tendings.values():
            await self._run(tendings.resign(tending))
        await self._run(workers.withdraw(list(self._queues.values()), self.id))

    async def _run_hook(self, hook: Callable[[], None]) -> None:
        if (ended := await self._threads.run(hook)).error is not None:
            raise ended.error

    # --- between its parts ---

    def _report(self, outcome: Outcome) -> None:
        self._feeds[outcome.attempt.queue].report(outcome)
        if len(self._feeds) > 1:  # there is room for the others
            self._wake()

    async def _tell(self, attempt: Attempt) -> bool:
        return await self._run(leases.begin(self._queues[attempt.queue], self.id, attempt, self._clock))

    def _is_late(self, queue: str) -> bool:
        """Whether it has not renewed its leases for longer than it ever should."""
        now = time.monotonic()
        return now - self._renewed.get(queue, now) > 2 * self._beat_seconds

    def _wake(self) -> None:
        for feed in self._feeds.values():
            feed.wake()

    async def _forward(self, token: str, kind: str, text: str) -> None:
        if self._jobs is not None:
            await self._jobs.forward(token, kind, text)

    # --- chores of a queue; each returns in how many seconds to repeat it ---

    async def _beat(self, keys: QueueKeys, jobs: JobRunner) -> float | None:
        held = [attempt for attempt in self._slots.held.values() if attempt.queue == keys.queue]
        began = time.monotonic()
        if self._is_late(keys.queue):
            self._woken[keys.queue] = began
        # What has ended keeps its lease too, else it runs again because the server was away when it ended.
        leased = [*held, *self._feeds[keys.queue].unreported]
        if leased:
            kept = await self._run(leases.heartbeat(keys, leased, self._clock.now_ms()))
            for attempt, beat in zip(held, kept, strict=False):
                if beat < 1:
                    jobs.cancel(attempt, revoked=beat == 0)
        self._renewed[keys.queue] = began
        await self._report_renewal(began)
        shortest = self._shortest_lease()
        return None if math.isinf(shortest) else shortest / 3

    def _shortest_lease(self) -> float:
        """The seconds of the shortest lease that a job which it holds has of its own."""
        own = (attempt.options.lock_duration for attempt in self._slots.held.values())
        return min((lease.total_seconds() for lease in own if lease is not None), default=math.inf)

    def _note_lease(self, seconds: float) -> None:
        """Tell the renewer of a shorter lease at once: the next handler may block the loop."""
        if seconds < self._known_lease:
            self._known_lease = seconds
            self._renewer.heard(seconds)

    async def _report_renewal(self, now: float) -> None:
        """Tell the renewer that there is nothing to do for it, if the leases of every queue were renewed."""
        if now - min(self._renewed.get(name, 0.0) for name in self._queues) > 2 * self._beat_seconds:
            return
        self._known_lease = self._shortest_lease()
        if not self._renewer.heard(self._known_lease):
            await asyncio.to_thread(self._renewer.start)

    async def _announce(self, keys: QueueKeys) -> None:
        description = {
            "addr": socket.gethostname(),
            "pid": os.getpid(),
            "startedAt": int(self.id.removeprefix(OURS).split("-")[0]),
            "activeJobs": len(self._slots.held),
            "handlers": self.handlers.names,
        }
        await self._run(workers.announce([keys], self.id, description, REGISTERED_MS, self._clock.now_ms()))

    async def _maintain(self, keys: QueueKeys) -> float | None:
        return self._until(await self._run(upkeep.upkeep([keys], self._clock)))

    async def _fire(self, keys: QueueKeys) -> float | None:
        due_ms = await self._run(schedulers.tick(keys, self._clock))
        self._feeds[keys.queue].look_ms = due_ms if due_ms >= 0 else NEVER
        return self._until(due_ms)

    async def _catch_up(self, keys: QueueKeys) -> None:
        """After a stop of this process: first renew and report, else its own jobs count as lost."""
        now, late = time.monotonic(), 2 * self._beat_seconds
        if self._is_late(keys.queue) or now - self._woken.get(keys.queue, -late) < late:
            await asyncio.sleep(self._beat_seconds)

    async def _reclaim(self, keys: QueueKeys) -> None:
        await self._catch_up(keys)
        lost = await self._run(
            upkeep.reclaim(
                [keys], self.id, lock_ms=self._lock_ms, max_stalled=self._max_stalled, clock=self._clock
            )
        )
        log_lost_workers(lost)

    async def _tend(self, tending: Tending) -> float:
        await self._catch_up(tending.own.queue)
        try:
            await self._run(tendings.tend(tending))
        finally:
            log_lost_workers(tending.own.lost)
            tending.own.lost.clear()
        return tending.rest_ms / 1000

    def _until(self, due_ms: int) -> float | None:
        return max(due_ms - self._clock.now_ms(), 20) / 1000 if due_ms >= 0 else None

    def _tending(self, keys: QueueKeys) -> Tending:
        watch, every_ms = (
            Supervision(keys, self.id, self._lock_ms, self._max_stalled),
            int(UPKEEP_SECONDS * 1000),
        )
        return Tending(watch, self._clock, every_ms, every_ms, frozenset(self._queues.values()))
