"""The operations of Queue and AsyncQueue on limits: how many jobs run, and how often they start."""

from __future__ import annotations

from datetime import datetime

from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration
from glidemq_orchestrate.foundation.values import lasting
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues import limits
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.wire.call import Op


class LimitOperations(QueueOperationsBase):
    """Operations on limits."""

    def set_global_concurrency(self, limit: int | None) -> Op[None]:
        """Limit how many jobs run at the same time over all workers; None removes the limit. Repeatable.

        Raises:
            InvalidJob: The limit is less than 1; nothing was sent.
        """
        return limits.set_global_concurrency(self._keys, limit)

    def global_concurrency(self) -> Op[int | None]:
        """Read how many jobs may run at the same time over all workers; None: no limit."""
        return limits.global_concurrency(self._keys)

    def set_global_rate_limit(self, limit: RateLimit | None) -> Op[None]:
        """Limit how often jobs start, over all workers; None removes the limit. Repeatable."""
        return limits.set_global_rate_limit(self._keys, limit)

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
        return self._now(lambda now_ms: limits.rate_limit_group(self._keys, key, span, now_ms, extend=extend))

    def groups(self) -> Op[list[GroupInfo]]:
        """List the ordering keys in use, with their numbers of running and blocked jobs.

        A key without waiting or running jobs is removed after its limits have recovered, and may be listed
        for a while longer.
        """
        return limits.groups(self._keys)
