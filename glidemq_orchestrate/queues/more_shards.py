"""The settings of a queue, for the shards that it is about to get."""

from __future__ import annotations

from glidemq_orchestrate.attempts.dead_letters import queue_of
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues import dead_letters, limits
from glidemq_orchestrate.shards import Shards
from glidemq_orchestrate.wire.call import Op, side_by_side


def settings_for_more(shards: Shards, count: int) -> Op[None]:
    """Let the pause, the limits and the dead-letter queue hold for the shards up to this number. Idempotent.

    Raises:
        InvalidJob: The limit of running jobs cannot be divided among so many; nothing was changed.
    """
    old, new = shards.members(), [shards.one(index) for index in range(shards.total, count)]
    every = [*old, *new]
    concurrency = yield from side_by_side([limits.global_concurrency(keys) for keys in old])
    rates = yield from side_by_side([limits.global_rate_limit(keys) for keys in old])
    if all(limit is not None for limit in concurrency):
        shares = limits.divided_concurrency(sum(limit or 0 for limit in concurrency), len(every))
        yield from side_by_side(
            [limits.set_global_concurrency(keys, share) for keys, share in zip(every, shares, strict=True)]
        )
    known: list[RateLimit] = [rate for rate in rates if rate is not None]
    if len(known) == len(old):
        parts = limits.divided_rate(limits.joined_rate(known), len(every))
        yield from side_by_side(
            [limits.set_global_rate_limit(keys, part) for keys, part in zip(every, parts, strict=True)]
        )
    if (yield from limits.is_paused(shards.queue)):
        yield from side_by_side([limits.pause(keys) for keys in new])
    if (letters := (yield from queue_of(shards.queue))) is not None:
        yield from side_by_side([dead_letters.set_queue(keys, letters) for keys in new])
