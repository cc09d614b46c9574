"""The operations of Queue and AsyncQueue on the whole queue, and the base of all others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal, TypeVar, cast

from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import lasting
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.states import EndedState, JobState
from glidemq_orchestrate.queues import limits, removal
from glidemq_orchestrate.wire import stored
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
Compression = Literal["none", "gzip"]


class QueueOperationsBase:
    """Base of the operations on one queue."""

    def __init__(self, keys: QueueKeys, clock: Clock, compression: Compression = "none") -> None:
        if compression not in ("none", "gzip"):
            raise ConfigurationError(f"compression {described(compression)} is unknown; use 'none' or 'gzip'")
        self._keys, self._clock, self._packed = keys, clock, compression == "gzip"

    def _now(self, make: Callable[[int], Op[T]]) -> Op[T]:
        """An operation that needs the server's time, which is unknown until the client is connected."""
        return (yield from make(self._clock.now_ms()))


class WholeQueueOperations(QueueOperationsBase):
    """Operations on the whole queue."""

    def now(self) -> Op[datetime]:
        """Return the server's time, by which leases and due times are set: UTC, within a few milliseconds."""
        yield from ()  # without a call to the server
        return stored.as_time(self._clock.now_ms())

    def pause(self) -> Op[None]:
        """Stop workers of this package from starting jobs; running jobs continue. Repeatable.

        ``resume`` ends the pause. Node workers ignore it, and so do the workers of broadcasts.
        """
        return limits.pause(self._keys)

    def resume(self) -> Op[None]:
        """End the pause: workers start jobs again. Repeatable."""
        return limits.pause(self._keys, resume=True)

    def is_paused(self) -> Op[bool]:
        """Whether the queue is paused."""
        return limits.is_paused(self._keys)

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

        Stop its workers first: they recreate the keys they need. Repeatable.

        Args:
            force: Even if jobs are active.

        Raises:
            QueueInUse: Jobs are active; nothing was removed.
        """
        return removal.obliterate(self._keys, force=force)

    def lost_workers(self) -> Op[list[LostWorker]]:
        """List the lost workers, each with the number of jobs that wait until its leases end."""
        return (yield from workers.lost(self._keys, self._clock.now_ms()))

    def workers(self) -> Op[list[WorkerInfo]]:
        """List the live workers of the queue, oldest first."""
        return (yield from workers.live(self._keys, self._clock.now_ms()))
