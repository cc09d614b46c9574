"""The operations of Queue and AsyncQueue on limits: how many jobs run, and how often they start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TypeVar

from glidemq_orchestrate.clients.operations.combining import by_key
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import on_all
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration
from glidemq_orchestrate.foundation.values import lasting, whole
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues import divided, limits
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.shards import places
from glidemq_orchestrate.wire.call import Op, side_by_side

T = TypeVar("T")


class LimitOperations(QueueOperationsBase):
    """Operations on limits."""

    def set_global_concurrency(self, limit: int | None) -> Op[None]:
        """Limit how many jobs run at the same time over all workers; None removes the limit. Repeatable.

        A queue with shards divides the limit evenly among them and itself.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent. Or a queue with shards cannot divide it
                evenly among them and itself: it is less than their number.
        """
        if limit is not None:
            whole("limit", limit, 1)
        return self._either(
            lambda: limits.set_global_concurrency(self._keys, limit),
            lambda: divided.set_concurrency(self._keys, limit),
        )

    def global_concurrency(self) -> Op[int | None]:
        """Read how many jobs may run at the same time over all workers; None: no limit."""
        return self._either(
            lambda: limits.global_concurrency(self._keys), lambda: divided.concurrency(self._keys)
        )

    def set_global_rate_limit(self, limit: RateLimit | None) -> Op[None]:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable.

        A queue with shards divides the limit evenly among them and itself.
        """
        return self._either(
            lambda: limits.set_global_rate_limit(self._keys, limit),
            lambda: divided.set_rate(self._keys, limit),
        )

    def global_rate_limit(self) -> Op[RateLimit | None]:
        """Read how often jobs may start over all workers; None: no limit."""
        return self._either(lambda: limits.global_rate_limit(self._keys), lambda: divided.rate(self._keys))

    def rate_limit_group(self, key: str, duration: Duration, *, extend: bool = True) -> Op[datetime]:
        """Block the jobs of an ordering key for a while; returns until when.

        Args:
            key: The ordering key, with or without jobs.
            duration: From now on, at least a millisecond.
            extend: True: a later end that was set earlier remains. False: it is replaced.

        Raises:
            InvalidJob: The key or the duration is not valid; nothing was sent.
        """
        span = lasting("duration", duration, min_=MILLISECOND)
        return self._rate_limit_group(key, span, extend=extend)

    def _rate_limit_group(self, key: str, span: timedelta, *, extend: bool) -> Op[datetime]:
        """Block the jobs of a key wherever there are some, and where new ones would be added."""
        shards = yield from self._shards()
        queues = [self._keys] if shards is None else places(shards, key, self._clock.now_ms())
        now_ms = self._clock.now_ms()
        ends = yield from side_by_side(
            [limits.rate_limit_group(keys, key, span, now_ms, extend=extend) for keys in queues]
        )
        return max(ends)

    def _either(self, plain: Callable[[], Op[T]], spread: Callable[[], Op[T]]) -> Op[T]:
        """The operation on a queue without shards, or that on one with shards, as it is now."""
        self.forget()
        return (yield from (plain if (yield from self._shards()) is None else spread)())

    @on_all(by_key(attrgetter("key")))
    def groups(self) -> Op[list[GroupInfo]]:
        """List the ordering keys in use, with their numbers of running and blocked jobs.

        A key without waiting or running jobs is removed after its limits have recovered, and may be listed
        for a while longer.
        """
        return limits.groups(self._keys)
