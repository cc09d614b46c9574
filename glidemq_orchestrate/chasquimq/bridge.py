"""ChasquiBridge: workers of ChasquiMQ run the jobs of one of our queues, such as the nodes of flows."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from glidemq_orchestrate.attempts.exchange import begin
from glidemq_orchestrate.chasquimq.events import last_entry
from glidemq_orchestrate.chasquimq.handed_over import (
    HandedOver,
    add,
    id_of,
    keep_marks,
    remote_data,
    withdraw,
)
from glidemq_orchestrate.chasquimq.keys import GROUP, ChasquiKeys, check_queue
from glidemq_orchestrate.chasquimq.queue import MAX_WAITING, AsyncChasquiQueue
from glidemq_orchestrate.chasquimq.remote import Remote, Remotes
from glidemq_orchestrate.errors import GlideMQError, LeaseLost, ProtocolError, TransportError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.options import DEFAULT_LEASE
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.shards import with_shard_counts
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import JsonLike, encode
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.middleware import Execution, Middleware, Proceed
from glidemq_orchestrate.worker.handlers.registered import Registered
from glidemq_orchestrate.worker.handlers.signals import RetryLater
from glidemq_orchestrate.worker.services.worker import Worker
from glidemq_orchestrate.worker.tasks import reconnect_delays

__all__ = ["ChasquiBridge"]

T = TypeVar("T")
logger = logging.getLogger("glidemq_orchestrate.worker")
CHECK_SECONDS: Final = 2.0
MARKS_SECONDS: Final = 3_600.0
AGAIN: Final = timedelta(seconds=2)
CONCURRENCY: Final = 100
MAX_LOSSES: Final = 1_000
"""Of bridges: what runs elsewhere cannot be the cause."""
HISTORY_MS: Final = 86_400_000
NOTE: Final = "chasquimq"


class _Remote(AsyncChasquiQueue):
    """The queue of ChasquiMQ, with operations of the bridge."""

    async def run(self, op: Op[T]) -> T:
        return await self._run(op)

    @property
    def where(self) -> str:
        return self._settings.where


class _Everything(Handlers):
    """One handler for jobs of every name."""

    def __init__(self, registered: Registered) -> None:
        super().__init__()
        self._one = registered

    @property
    def takes_all(self) -> bool:
        return True

    def get(self, name: str) -> Registered | None:
        del name
        return self._one


class _Attempts(Middleware):
    """Tells the handler which attempt its context belongs to."""

    def __init__(self) -> None:
        self.of: dict[str, Attempt] = {}

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        (attempt,), (context,) = execution.attempts, execution.contexts
        key = f"{context.token}:{context.job_id}"
        self.of[key] = attempt
        try:
            return await proceed()
        finally:
            del self.of[key]


class ChasquiBridge(Worker):
    """Run the jobs of one of our queues in workers of ChasquiMQ, until it is stopped.

    For each attempt of a job, the bridge adds one job with the same name and data to the queue of ChasquiMQ,
    waits for its end, and ends the attempt with its result or error. Attempts, pauses and time limits are
    those of our job; ChasquiMQ runs each of its jobs once, unless a worker dies. The results of the
    dependencies of a node are added to data that is an object, or missing, as ``inputs``.

    Workers of ChasquiMQ must store results (``store_results``), otherwise every result is None, and write
    events: a job that is gone without an event, a result and a dead letter was lost, and has failed. The
    progress of a job is the id of the job in ChasquiMQ.

    After kill -9 of the bridge, its jobs return to the queue, and it or another bridge continues to wait for
    what it had added; nothing is added twice. A job that is cancelled is taken from the queue of ChasquiMQ
    if no worker has fetched it. What runs there cannot be stopped, and its result is ignored.

    Args:
        queue: Our queue.
        url: Our server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        chasquimq_url: The server of ChasquiMQ; by default the same.
        chasquimq_queue: The queue of ChasquiMQ; by default one of the same name.
        group: The consumer group of its workers.
        concurrency: The number of jobs that are handed over at the same time.
        max_waiting: As in ``ChasquiQueue``.
        lease: Another bridge takes the jobs over after this long without a heartbeat; at least a second.
        shutdown_timeout: How long a stop waits for running jobs before it gives them back.
        metrics_port: As for ``Worker``; a job runs from when it is handed over until its end is known.
        metrics_host: The address of that port.
        prefix: First part of every key of ours.
        clock: For tests.

    Raises:
        ConfigurationError: A value is not usable.
    """

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        queue: str,
        url: Address = None,
        *,
        chasquimq_url: Address = None,
        chasquimq_queue: str | None = None,
        group: str = GROUP,
        concurrency: int = CONCURRENCY,
        max_waiting: int | None = MAX_WAITING,
        lease: Duration = DEFAULT_LEASE,
        shutdown_timeout: Duration = timedelta(seconds=1),
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        self._attempts = _Attempts()
        super().__init__(
            url, queues=[queue], concurrency=concurrency, prefetch=0,
            handlers=_Everything(Registered(self._hand_over, is_async=True)),
            prefix=prefix, lease=lease, max_stalled=MAX_LOSSES, max_suspects=max(concurrency, 1),
            shutdown_timeout=shutdown_timeout, middleware=[self._attempts], clock=clock,
            metrics_port=metrics_port, metrics_host=metrics_host,
        )  # fmt: skip
        name = check_queue(queue if chasquimq_queue is None else chasquimq_queue)
        self._chasqui_keys, self._group, self._max_waiting = ChasquiKeys(name), group, max_waiting
        address = self._settings if chasquimq_url is None else chasquimq_url
        self._remote = _Remote(name, address, max_waiting=max_waiting, clock=clock)
        self._remotes: Remotes | None = None

    _kind = "chasqui_bridge"

    def _introduction(self) -> str:
        queue = with_shard_counts(self._named, self._queues.values())
        where, elsewhere = self._settings.where, self._remote.where
        there = self._chasqui_keys.queue
        return f"bridge {self.id} hands queue {queue} at {where} over to queue {there} at {elsewhere}"

    async def _begin(self) -> None:
        if not await self._remote.serves_chasquimq():  # also the check of the server
            text = "%s: at %s, ChasquiMQ's own workers cannot run, only ChasquiWorker of this package"
            logger.warning(text, self.id, self._remote.where, extra={"action": "start"})
        loop = asyncio.get_running_loop()
        self._remotes = Remotes(self._remote.run, self._chasqui_keys, await self._position(), loop.time)
        self._keep("events of ChasquiMQ", self._follow)
        self._every("jobs in ChasquiMQ", CHECK_SECONDS, self._remotes.check_all)
        self._every("marks of jobs in ChasquiMQ", MARKS_SECONDS, self._keep_marks)
        await super()._begin()

    async def _position(self) -> str:
        """Where to read events from: a day before the newest. The clock of this process may be wrong."""
        try:
            newest = await self._remote.run(ask(last_entry(self._chasqui_keys)))
        except ProtocolError:  # the key holds something else, so there are no events
            newest = "0-0"
        return f"{max(int(newest.partition('-')[0]) - HISTORY_MS, 0)}-0"

    async def _keep_marks(self) -> None:
        if self._remotes is not None and self._remotes.jobs:
            await self._remote.run(keep_marks(self._chasqui_keys, list(self._remotes.jobs)))

    async def _follow(self) -> None:
        assert self._remotes is not None  # noqa: S101  made before
        while True:
            await self._remotes.read_events()
            self._failures.clear("events of ChasquiMQ")

    async def _finish(self) -> None:
        await super()._finish()
        await self._quietly("closing the connections to ChasquiMQ", self._remote.close)

    # --- one job ---

    async def _hand_over(self, ctx: Context) -> Any:
        """The handler of every job."""
        attempt = self._attempts.of[f"{ctx.token}:{ctx.job_id}"]
        try:
            remote_id = await self._id_for(attempt)
        except TransportError as exc:
            raise RetryLater(AGAIN, str(exc), counts=False) from exc
        remote: Remote | None = None
        try:
            await self._note(attempt, remote_id)
            remote = await self._add(ctx, remote_id)
            return await remote.ended
        except TransportError as exc:  # it may have been added
            await self._give_back(attempt, remote_id)
            raise RetryLater(AGAIN, str(exc), counts=False) from exc
        except asyncio.CancelledError:
            await self._leave(ctx, attempt, remote_id)
            raise
        finally:
            if remote is not None and self._remotes is not None:
                self._remotes.forget(remote)

    async def _id_for(self, attempt: Attempt) -> str:
        """The id of the job for this attempt; only its start is reported here.

        It is that of an earlier activation if a bridge was lost, or has given the job back. A loss is known
        to the next bridge because the start was reported before anything was noted or added.

        Raises:
            LeaseLost: Another bridge has the job.
        """
        keys = self._queues[attempt.queue]
        if not await self._run(begin(keys, self.id, attempt, self._clock)):
            raise LeaseLost(f"another worker has job {attempt.job_id}")
        fields: tuple[JobField, ...] = ("progress", "gmo:lost", "stalledCount")
        found = await self._run(ask(job_hash.get_some(keys, attempt.job_id, fields, list)))
        note = _note_in(found[0])
        is_known = note.get("attempt") == attempt.attempts_made and isinstance(note.get("job"), str)
        if is_known and (note.get("given_back") is True or any(map(_is_positive, found[1:]))):
            return str(note["job"])
        return id_of(attempt.queue, attempt.job_id, attempt.epoch)

    async def _note(self, attempt: Attempt, remote_id: str, **more: bool) -> None:
        """Store on our server, as the progress of the job, what this attempt adds; before it is added."""
        keys, now_ms = self._queues[attempt.queue], self._clock.now_ms()
        note: dict[str, JsonLike] = {"job": remote_id, "attempt": attempt.attempts_made, **more}
        text = encode({NOTE: note}, where="progress")
        await self._run_confirmed(ask(attempt_calls.progress(attempt, keys, text, now_ms)))

    async def _give_back(self, attempt: Attempt, remote_id: str) -> None:
        """Note that the next activation continues with this job, as soon as our server can be reached."""
        for pause in reconnect_delays():
            try:
                await self._note(attempt, remote_id, given_back=True)
            except TransportError as exc:
                self._failures.report(f"giving back jobs of queue {attempt.queue}", exc)
                await asyncio.sleep(pause)
            else:
                return

    async def _add(self, ctx: Context, remote_id: str) -> Remote:
        assert self._remotes is not None  # noqa: S101  made before
        job = HandedOver(remote_id, ctx.name, remote_data(ctx.data, dict(ctx.inputs)))
        call = add(self._chasqui_keys, job, self._max_waiting, self._clock.now_ms())
        entry_id = await self._remote.run(ask(call))
        return self._remotes.expect(remote_id, entry_id)

    async def _leave(self, ctx: Context, attempt: Attempt, remote_id: str) -> None:
        """After a cancellation: withdraw what no worker has, or note it for the next bridge."""
        if ctx.cancelled.is_lost:
            return
        try:
            if ctx.cancelled.is_stopping:
                await self._note(attempt, remote_id, given_back=True)
            else:
                await self._remote.run(withdraw(self._chasqui_keys, self._group, remote_id))
        except GlideMQError as exc:
            self._failures.report(f"leaving job {attempt.job_id}", exc)


def _note_in(progress: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(progress or "null")
    except (ValueError, RecursionError):
        return {}
    note = found.get(NOTE) if isinstance(found, dict) else None
    return note if isinstance(note, dict) else {}


def _is_positive(count: str | None) -> bool:
    return count is not None and count.isascii() and count.isdigit() and int(count) > 0
