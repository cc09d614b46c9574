"""The operations of Queue and AsyncQueue on the whole queue, and the base of all others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal, TypeVar, cast

from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.clients.operations.combining import (
    every_lost,
    every_one,
    every_worker,
    nothing,
    total,
)
from glidemq_orchestrate.clients.operations.spread import OnMembers, in_turn, on_all
from glidemq_orchestrate.errors import ConfigurationError, QueueInUse
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import lasting
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.states import EndedState, JobState
from glidemq_orchestrate.queues import limits, listing, removal
from glidemq_orchestrate.queues.divided import more_shards
from glidemq_orchestrate.shards import KnownShards, check_count, split_shard
from glidemq_orchestrate.wire import stored
from glidemq_orchestrate.wire.call import Op, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
Compression = Literal["none", "gzip"]


class QueueOperationsBase(OnMembers):
    """Base of the operations on one queue.

    Args:
        keys: The queue.
        clock: The clock.
        compression: See ``Queue``.
        known: Returns what the client knows of shards.
    """

    def __init__(
        self,
        keys: QueueKeys,
        clock: Clock,
        compression: Compression,
        known: Callable[[], KnownShards],
    ) -> None:
        if compression not in ("none", "gzip"):
            raise ConfigurationError(f"compression {described(compression)} is unknown; use 'none' or 'gzip'")
        super().__init__(keys, clock, known)
        self._packed = compression == "gzip"

    def _now(self, make: Callable[[int], Op[T]]) -> Op[T]:
        """An operation that needs the server's time, which is unknown until the client is connected."""
        return (yield from make(self._clock.now_ms()))


class WholeQueueOperations(QueueOperationsBase):
    """Operations on the whole queue."""

    def now(self) -> Op[datetime]:
        """Return the server's time, by which leases and due times are set: UTC, within a few milliseconds."""
        yield from ()  # without a call to the server
        return stored.as_time(self._clock.now_ms())

    @on_all(nothing, fresh=True)
    def pause(self) -> Op[None]:
        """Stop workers of this package from starting jobs; running jobs continue. Repeatable.

        ``resume`` ends the pause. Node workers ignore it, and so do the workers of broadcasts.
        """
        return limits.pause(self._keys)

    @on_all(nothing, fresh=True)
    def resume(self) -> Op[None]:
        """End the pause: workers start jobs again. Repeatable."""
        return limits.pause(self._keys, resume=True)

    @on_all(every_one)
    def is_paused(self) -> Op[bool]:
        """Whether the queue is paused."""
        return limits.is_paused(self._keys)

    @in_turn("limit")
    def clean(self, state: EndedState, *, grace: Duration = 0, limit: int = 1000) -> Op[list[JobId]]:
        """Delete jobs that ended at least ``grace`` ago, oldest first; returns their ids.

        Nodes of unfinished flows remain, and so do children whose results an unfinished job may read.
        Repeatable; stops half-way if the connection breaks.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
            InvalidJob: ``grace`` is negative or ``limit`` less than 1; nothing was sent.
        """
        span, ended = lasting("grace", grace), cast("JobState", state)
        return self._now(lambda now_ms: removal.clean(self._keys, ended, span, limit, now_ms))

    @on_all(total)
    def drain(self, *, delayed: bool = False) -> Op[int]:
        """Delete the waiting jobs, including those with a priority or ordering key; returns how many.

        Jobs that wait for other jobs or for a signal remain, and so do nodes of unfinished flows. A job that
        waited only for deleted jobs becomes ready to run, and is deleted too.

        Args:
            delayed: Delete delayed jobs too, including those that wait for another attempt.
        """
        return (yield from removal.drain(self._keys, delayed=delayed, now_ms=self._clock.now_ms()))

    def obliterate(self, *, force: bool = False) -> Op[None]:
        """Delete everything in the queue: jobs, flows with this home, events, settings, schedules.

        Stop its workers first: they recreate the keys they need. Repeatable. A queue with shards keeps these,
        with their limits and numbers of jobs, since other clients use them.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """
        return self._obliterate(force=force)

    def _obliterate(self, *, force: bool) -> Op[None]:
        self.forget()
        shards = yield from self._shards()
        if shards is None:
            yield from removal.obliterate(self._keys, force=force)
            return
        members = shards.members()
        active = sum((yield from side_by_side([listing.active_count(keys) for keys in members])))
        if active and not force:
            raise QueueInUse(self._keys.queue, active)
        keep = {keys.key("id") for keys in members} | {self._keys.key("gmo:shards")}
        for keys in members:
            yield from removal.obliterate(keys, force=True, keep=keep)

    def shards(self) -> Op[int]:
        """How many shards the queue has, including those that are not used yet; 0 for none."""
        shards = yield from self._shards()
        return 0 if shards is None else shards.total

    def add_shards(self, count: int) -> Op[int]:
        """Let the queue have so many shards; returns how many it has. Repeatable.

        Workers serve the new shards within seconds. Clients add jobs and flows to them after a minute, all
        from the same time on; a new queue uses them at once. Flows end in the shard where they began, and the
        jobs of an ordering key stay together as long as some of them wait or run. Pauses, limits and the
        dead-letter queue hold for the new shards too.

        Args:
            count: At most 128. Shards cannot be removed.

        Raises:
            ConfigurationError: The number is not valid, or this is a shard itself.
            ShardsMismatch: The queue has more. Nothing was changed.
            InvalidJob: The limit of running jobs cannot be divided among so many. Nothing was changed.
        """
        check_count(count)
        if split_shard(self._keys.queue)[1] is not None:
            raise ConfigurationError(f"queue {self._keys.queue} is a shard, and cannot have shards")
        return self._add_shards(count)

    def _add_shards(self, count: int) -> Op[int]:
        found = yield from more_shards(self._keys, count, self._clock.now_ms())
        self.forget()
        return found.total

    @on_all(every_lost)
    def lost_workers(self) -> Op[list[LostWorker]]:
        """List the lost workers, each with the number of jobs that wait until its leases end."""
        return (yield from workers.lost(self._keys, self._clock.now_ms()))

    @on_all(every_worker)
    def workers(self) -> Op[list[WorkerInfo]]:
        """List the live workers of the queue, oldest first."""
        return (yield from workers.live(self._keys, self._clock.now_ms()))
