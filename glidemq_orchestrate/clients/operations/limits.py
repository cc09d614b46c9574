"""The operations of Queue and AsyncQueue on limits: how many jobs run, and how often they start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TypeVar

from glidemq_orchestrate.clients.operations.combining import by_key, sum_of_limits, sum_of_rates
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import on_all
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration
from glidemq_orchestrate.foundation.values import lasting, whole
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues import limits
from glidemq_orchestrate.queues.limits import GroupInfo, divided_concurrency, divided_rate
from glidemq_orchestrate.shards import places
from glidemq_orchestrate.wire.call import Op, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys

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
        return self._divided(limits.set_global_concurrency, limit, divided_concurrency)

    @on_all(sum_of_limits)
    def global_concurrency(self) -> Op[int | None]:
        """Read how many jobs may run at the same time over all workers; None: no limit."""
        return limits.global_concurrency(self._keys)

    def set_global_rate_limit(self, limit: RateLimit | None) -> Op[None]:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable.

        A queue with shards divides the limit evenly among them and itself.
        """
        return self._divided(limits.set_global_rate_limit, limit, divided_rate)

    @on_all(sum_of_rates)
    def global_rate_limit(self) -> Op[RateLimit | None]:
        """Read how often jobs may start over all workers; None: no limit."""
        return limits.global_rate_limit(self._keys)

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

    def _divided(
        self,
        write: Callable[[QueueKeys, T | None], Op[None]],
        limit: T | None,
        divide: Callable[[T, int], Sequence[T]],
    ) -> Op[None]:
        """Write the share of each member; None removes the limit of each."""
        queues = yield from self._member_keys()
        if limit is None or len(queues) == 1:
            shares: Sequence[T | None] = [limit] * len(queues)
        else:
            shares = divide(limit, len(queues))
        yield from side_by_side([write(keys, share) for keys, share in zip(queues, shares, strict=True)])

    @on_all(by_key(attrgetter("key")))
    def groups(self) -> Op[list[GroupInfo]]:
        """List the ordering keys in use, with their numbers of running and blocked jobs.

        A key without waiting or running jobs is removed after its limits have recovered, and may be listed
        for a while longer.
        """
        return limits.groups(self._keys)
