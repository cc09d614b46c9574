"""The worker: a service that fetches jobs from queues, runs their handlers and reports the outcomes.

A ``Feed`` per queue fetches jobs and reports outcomes, a ``JobRunner`` assigns places to handlers, an
``Executor`` runs them, and periodic chores, one task each per queue, renew the leases and maintain the
queues.

After kill -9, jobs stay in state ``active`` until their ``lease`` ends; then any other worker of the queue
reclaims them. A broken connection is reopened, and the jobs of a lost reply are
requested again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from glidemq_orchestrate.attempts import client_supervision, workers
from glidemq_orchestrate.attempts.client_supervision import Area
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, begin
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, ProtocolError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, milliseconds, seconds
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs.attempt import OURS, Attempt
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.jobs.options import DEFAULT_LEASE
from glidemq_orchestrate.queues.divided import divided_rate
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.shards import check_count, declare, split_shard, with_shard_counts
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys
from glidemq_orchestrate.worker.contexts import Contexts
from glidemq_orchestrate.worker.executor import Caller, Executor, Unhandled
from glidemq_orchestrate.worker.feed import Feed
from glidemq_orchestrate.worker.handlers.code import Codes
from glidemq_orchestrate.worker.handlers.handler import Handlers, RegistersHandlers
from glidemq_orchestrate.worker.handlers.middleware import (
    Hooks,
    Middleware,
    TimeLimit,
    Tracing,
    check_middleware,
)
from glidemq_orchestrate.worker.handlers.named_call import check_packages
from glidemq_orchestrate.worker.handlers.registered import Serving
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.messenger import Messenger
from glidemq_orchestrate.worker.metrics import JobMeter
from glidemq_orchestrate.worker.processes import Processes
from glidemq_orchestrate.worker.receipts import Receipts
from glidemq_orchestrate.worker.renewing import Heartbeats
from glidemq_orchestrate.worker.runner import JobRunner
from glidemq_orchestrate.worker.services.measured import Measured
from glidemq_orchestrate.worker.services.registration import ANNOUNCE_SECONDS
from glidemq_orchestrate.worker.services.service import HandlerService, logger
from glidemq_orchestrate.worker.services.supervisor import SHARDS_SECONDS, QueueChores
from glidemq_orchestrate.worker.silent_workers import SilentWorkers
from glidemq_orchestrate.worker.statistics import REPORT_SECONDS
from glidemq_orchestrate.worker.usage_limits import Budget, TokenLimit, Tokens

__all__ = ["Worker"]

UPKEEP_SECONDS: Final = 2.0
RECLAIM_SECONDS: Final = 2.0
GIVE_UP_SECONDS: Final = 5.0


class Worker(HandlerService, RegistersHandlers):
    """Run the jobs of queues with the registered handlers until it is stopped.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        queues: At least one queue name. A queue with shards is served whole, and soon after shards were
            added, these too.
        shards: How many shards the queues have, at most 128, as ``Queue``. A new queue gets them. None: as
            many as each has.
        concurrency: The number of jobs that run at the same time, at least 1; plain functions run in as many
            threads.
        prefetch: How many jobs to hold beyond the running ones, so that the next one starts without a round
            trip. Default: as many as start within 20 ms at the current duration of jobs, at most 128; a job
            that waits for a second is given back to the queue. With a number, jobs stay until they run.
        rate_limit: The max number of starts per time, over all workers of a queue; a limit that is set on
            the queue takes precedence. Shards divide it evenly.
        token_limit: No job starts while more tokens are spent; jobs report what they spend. It counts for
            each queue, and for each shard.
        handlers: Handlers defined elsewhere; the decorators of the worker add to them.
        prefix: First part of every key.
        lease: Another worker takes the jobs over after this long without a heartbeat, or after its own
            lease if that is longer; at least a second.
        max_stalled: The number of lost workers after which a job fails. A loss counts only if the job may
            have caused it: its handler had started.
        max_suspects: After the loss of a worker, how many of the jobs that it ran may run side by side here;
            after each further loss an eighth as many, down to one. Default: one at a time from the start. For
            handlers that take long because they wait: one job that kills workers is found later.
        shutdown_timeout: How long a stop waits for running handlers before it gives their jobs back.
        allow_import: The packages from which handlers may import what a job names (``python``,
            ``spark.python``): ``mypackage`` allows ``mypackage.steps``, but not ``mypackage2``. Default:
            none.
        middleware: Wraps the call of each handler, outermost first; see ``Middleware``.
        metrics_port: Serve what it counts to Prometheus, at ``/metrics`` of this port; 0 for any free one.
            Needs the extra ``[metrics]``. Default: do not.
        metrics_host: The address of that port.
        only_known: Give back jobs without a handler here instead of failing them, even if no other worker is
            alive. For a worker that runs only some of the jobs of a shared queue.
        clock: For tests.

    Raises:
        ConfigurationError: A value is not usable. ``ShardsMismatch`` at the start: a queue never had this
            number of shards.
    """

    def __init__(  # noqa: PLR0913  all but the first two have defaults
        self,
        url: Address = None,
        *,
        queues: Sequence[str],
        shards: int | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        rate_limit: RateLimit | None = None,
        token_limit: TokenLimit | None = None,
        handlers: Handlers | None = None,
        prefix: str = DEFAULT_PREFIX,
        lease: Duration = DEFAULT_LEASE,
        max_stalled: int = 3,
        max_suspects: int = 1,
        shutdown_timeout: Duration = 10,
        allow_import: Sequence[str] = (),
        middleware: Iterable[Middleware] = (),
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        only_known: bool = False,
        clock: Clock | None = None,
    ) -> None:
        started = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}"
        super().__init__(
            url, kind=OURS, unique=started, queues=queues, lease=lease,
            shutdown_timeout=shutdown_timeout, prefix=prefix, clock=clock,
        )  # fmt: skip
        whole("concurrency", concurrency, 1, error=ConfigurationError)
        whole("max_stalled", max_stalled, 0, error=ConfigurationError)
        whole("max_suspects", max_suspects, 1, error=ConfigurationError)
        if prefetch is not None:
            whole("prefetch", prefetch, 0, error=ConfigurationError)
        for kind, what, value in (
            (Handlers, "handlers", handlers),
            (RateLimit, "rate_limit", rate_limit),
            (TokenLimit, "token_limit", token_limit),
        ):
            if value is not None and not isinstance(value, kind):
                raise ConfigurationError(
                    f"{what} must be of the type {kind.__name__}, got {described(value)}"
                )
        self.handlers = handlers or Handlers()
        self._slots = JobSlots(concurrency, prefetch, max_suspects)
        self._token_limit = token_limit
        self._middleware = check_middleware(middleware)
        self._allow_import = check_packages(allow_import)
        self._only_known = only_known
        self._limit = rate_limit
        self._heartbeats = Heartbeats(
            self._run, self._queues.keys(), self._slots, self._renewer, self._lock_seconds, self._clock
        )
        self._shards = None if shards is None else check_count(shards)
        self._named, self._max_stalled = list(self._queues.values()), max_stalled
        self._supervised = set(self._named)
        self._members = Counter(keys.queue for keys in self._named)
        self._codes = Codes(self.handlers)
        self._chores = {name: self._chores_of(keys) for name, keys in self._queues.items()}
        self._feeds: dict[str, Feed] = {}
        self._jobs: JobRunner | None = None
        self._measured = Measured(self._slots, metrics_port, metrics_host)
        self._processes: Processes | None = None

    @property
    def _registry(self) -> Handlers:
        return self.handlers

    @property
    def jobs_taken(self) -> int:
        """The number of jobs, and elements of arrays, that it has fetched since its start."""
        return self._slots.taken

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus reads what it counts, while it runs; None without a ``metrics_port``."""
        return self._measured.url

    def measure(self) -> JobMeter:
        """What counts its jobs for Prometheus: from its start, if this was called before."""
        self._measured.is_metered = True
        return self._measured.meter

    def retire(self) -> None:
        """Stop once its running jobs have ended, however long they take; ``stop`` ends the wait.

        It fetches no more jobs, and those that wait here for a place return to the queue at once. From any
        thread; a worker that is not ready yet does nothing.
        """
        if self._loop is not None and self.ready.is_set():
            with suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._keep, "retiring", self._retire)

    # --- the service ---

    _kind = "worker"

    def _introduction(self) -> str:
        handlers = ", ".join(self.handlers.names) or "none"
        queues = with_shard_counts(self._named, self._queues.values())
        places = f"up to {self._slots.concurrency} jobs at a time"
        where = self._settings.where
        return f"worker {self.id} serves queues {queues} at {where}, {places}, handlers {handlers}"

    async def _begin(self) -> None:
        self._measured.serve()
        if self._shards is not None:
            for keys in self._named:
                await self._run(declare(keys, self._shards))
        await self._find_shards()
        for name, keys in self._queues.items():
            try:
                await self._run(workers.open_queues([keys]))
            except ProtocolError as exc:  # keys of one queue are broken: still serve the others
                self._failures.report(f"queue {name}", exc)
        queues = tuple(keys.queue for keys in self._named)
        for hook in self.handlers.starting(Serving(queues, self._settings)):
            await self._run_hook(hook)
        if not (self.handlers.names or self.handlers.takes_all):
            logger.warning(
                "worker %s has no handlers, so it runs no job. Fix: register functions with @worker.handler",
                self.id,
                extra={"action": "start"},
            )
        self._jobs = jobs = self._job_runner()
        await self._start_guards(jobs.executing, jobs.note)
        for name, keys in self._queues.items():
            self._feeds[name] = self._feed_of(keys, jobs)
        for name, keys in self._queues.items():
            self._begin_queue(name, keys, jobs, is_registered=await self._register(name))
        self._every("shards", SHARDS_SECONDS, partial(self._serve_new_shards, jobs), immediately=False)

    def _feed_of(self, keys: QueueKeys, jobs: JobRunner) -> Feed:
        return Feed(
            self._run, self.id, keys, self._slots, jobs, self._clock, partial(self._limit_of, keys),
            self._feeds_with_jobs, self._failures,
        )  # fmt: skip

    def _limit_of(self, keys: QueueKeys) -> tuple[int, int]:
        """The rate limit of a queue, or the share of a member of a queue with shards; (0, 0) for none."""
        if self._limit is None:
            return 0, 0
        members = self._members[split_shard(keys.queue)[0]]
        share = divided_rate(self._limit, members)[-1] if members > 1 else self._limit
        return share.max, milliseconds(share.per)

    def _feeds_with_jobs(self) -> int:
        return sum(feed.may_have_jobs for feed in self._feeds.values())

    async def _find_shards(self) -> None:
        """Note the shards that its queues have, to serve them too."""
        for keys in await self._with_shards(self._named):
            if keys.queue not in self._queues:
                self._members[split_shard(keys.queue)[0]] += 1
                self._queues[keys.queue] = keys
                self._supervised.add(keys)
                self._chores[keys.queue] = self._chores_of(keys)

    async def _serve_new_shards(self, jobs: JobRunner) -> None:
        """Serve the shards that its queues have got since it began; after a failure also those left over."""
        await self._find_shards()
        new = [keys for name, keys in self._queues.items() if name not in self._feeds]
        if not new:
            return
        await asyncio.to_thread(self._renewer.restart)
        for keys in new:
            await self._run(workers.open_queues([keys]))
            is_registered = await self._register(keys.queue)
            self._feeds[keys.queue] = self._feed_of(keys, jobs)
            self._begin_queue(keys.queue, keys, jobs, is_registered=is_registered)
        queues = with_shard_counts(self._named, self._queues.values())
        extra = {"action": "worker_shards", "worker": self.id}
        logger.info("worker %s serves new shards: queues %s", self.id, queues, extra=extra)

    async def _register(self, name: str) -> bool:
        """Register on a queue; returns False if that failed. Before the start hooks it would be too early."""
        try:
            await self._chores[name].announce()
            if self._queues[name] in self._named:  # those that serve its shards serve the queue itself too
                await self._chores[name].compare_code()
        except GlideMQError as exc:
            self._failures.report(f"registration of queue {name}", exc)
            return False
        return True

    def _begin_queue(self, name: str, keys: QueueKeys, jobs: JobRunner, *, is_registered: bool) -> None:
        """Start the tasks of one queue. A failure of one task, or of the queue, affects no other."""
        feed, chores = self._feeds[name], self._chores[name]
        self._keep(f"queue {name}", feed.serve)
        if self._confirmation:
            feed.receipts = receipts = Receipts(
                self._run, self._run_confirmed, keys, jobs.settled, feed.report, feed.wake, self._failures
            )
            self._keep(receipts.what, receipts.serve)
        self._keep(feed.listening, feed.listen)
        self._every(f"leases of queue {name}", self._heartbeats.seconds, partial(self._beat, keys, jobs))
        registration = f"registration of queue {name}"
        self._every(registration, ANNOUNCE_SECONDS, chores.announce, immediately=not is_registered)
        self._every(f"upkeep of queue {name}", UPKEEP_SECONDS, chores.maintain)
        reclaim_seconds = min(self._lock_seconds / 2, RECLAIM_SECONDS)
        self._every(f"reclaiming of queue {name}", reclaim_seconds, partial(self._reclaim, chores))
        self._every(f"supervision of queue {name}", UPKEEP_SECONDS, chores.supervise)
        report = partial(jobs.statistics.report, self._run_chore, keys)
        self._every(f"statistics of queue {name}", REPORT_SECONDS, report, immediately=False)
        fire = partial(chores.fire, feed)
        self._every(f"schedules of queue {name}", UPKEEP_SECONDS, fire, woken=feed.rescheduled)

    async def _reclaim(self, chores: QueueChores) -> None:
        await chores.reclaim()
        self._measured.meter.exchanged(chores.keys.queue)

    async def _beat(self, keys: QueueKeys, jobs: JobRunner) -> float | None:
        ended = [*self._feeds[keys.queue].unreported, *jobs.unreported(keys.queue)]
        return await self._heartbeats.beat(keys, ended, jobs.cancel, jobs.give_back)

    def _job_runner(self) -> JobRunner:
        self._slots.batch_room = self._slots.concurrency * max(self.handlers.largest_batch - 1, 0)
        if self.handlers.has_processes:
            self._processes = Processes(self._forward)
        run, queues, clock = self._run, self._queues, self._clock
        messenger, patience = Messenger(run, queues, clock), seconds(self._settings.socket_timeout)
        executor = Executor(
            self.handlers,
            Contexts(self._run_confirmed, queues, messenger, clock, self._allow_import, patience),
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
            report_start=self._report_start,
            is_late=self._heartbeats.is_late,
            note_lease=self._heartbeats.note_lease,
            meter=self._measured.meter if self._measured.is_metered else None,
        )

    def _all_middleware(self, messenger: Messenger) -> Sequence[Middleware]:
        """The middleware around each call of a handler, outermost first."""
        run, queues, limit = self._run, self._queues, self._token_limit
        return (
            *([Tokens(run, queues, limit, messenger, self._clock)] if limit else []),
            Hooks(self.handlers),
            Budget(run, queues, messenger),
            Tracing(),
            *self._middleware,
            TimeLimit(self.handlers),
        )

    async def _drain(self) -> None:
        await self._run_out(self._shutdown_seconds)

    async def _run_out(self, seconds: float | None) -> None:
        """Fetch no more, and wait until nothing runs, at most this long; None: however long it takes."""
        self._slots.stopping = True
        if self._jobs is not None:
            self._jobs.give_back_waiting()
            await self._jobs.drain(seconds)

    async def _retire(self) -> None:
        await self._run_out(None)
        self.stop()

    async def _finish(self) -> None:
        self._slots.stopping = True
        if self._jobs is not None:
            await self._quietly("stopping the handlers", self._jobs.abandon)
        if self._processes is not None:
            close = partial(asyncio.to_thread, self._processes.close)
            await self._quietly("stopping the processes", close)
        for attempt in list(self._slots.held.values()):
            self._feeds[attempt.queue].report(Outcome(attempt, Kind.BACK))
        for feed in self._feeds.values():
            feed.close()
        feeds = [task for task in self._tasks if task.get_name() in {f"queue {name}" for name in self._feeds}]
        if feeds:
            # Do not wait for an unreachable server: the leases expire.
            await asyncio.wait(feeds, timeout=GIVE_UP_SECONDS)
        if self._jobs is not None:
            self._jobs.log.flush()
        await self._end_tasks()
        await self._stop_guards()
        if self._own() is not None:
            await self._quietly("reporting statistics", self._report_statistics)
            await self._quietly("unregistering", self._unregister)
        for hook in self.handlers.stop_hooks:
            await self._quietly("a stop hook", partial(self._run_hook, hook))
        self._threads.close()
        await self._measured.close()

    async def _report_statistics(self) -> None:
        if self._jobs is not None:
            for keys in self._queues.values():
                await self._jobs.statistics.report(self._run, keys)

    async def _unregister(self) -> None:
        for chores in self._chores.values():
            await self._run(client_supervision.resign(chores.area))
        await self._run(workers.withdraw(list(self._queues.values()), self.id))

    async def _run_hook(self, hook: Callable[[], None]) -> None:
        if (ended := await self._threads.run(hook)).error is not None:
            raise ended.error

    # --- between its parts ---

    def _report(self, outcome: Outcome) -> None:
        self._feeds[outcome.attempt.queue].report(outcome)
        if len(self._feeds) > 1:  # the others may use its place
            self._wake()

    async def _report_start(self, attempt: Attempt) -> bool:
        return await self._run(begin(self._queues[attempt.queue], self.id, attempt, self._clock))

    def _wake(self) -> None:
        for feed in self._feeds.values():
            feed.wake()

    async def _forward(self, token: str, kind: str, text: str) -> None:
        if self._jobs is not None:
            await self._jobs.forward(token, kind, text)

    def _chores_of(self, keys: QueueKeys) -> QueueChores:
        own = Supervision(keys, self.id, self._lock_ms, self._max_stalled)
        every_ms = int(UPKEEP_SECONDS * 1000)
        area = Area(own, self._clock, every_ms, every_ms, self._supervised)
        silent = SilentWorkers(keys.queue, self._slots)
        return QueueChores(
            self._run_chore,
            self.id,
            keys,
            self.handlers,
            self._slots,
            self._heartbeats,
            silent,
            area,
            self._clock,
            self._codes,
        )
