"""The settings of a queue with shards: pause, dead-letter queue, and limits, of which each has a share.

The limits of the whole queue are stored with the number of its shards. The shares follow from both, so a
repeat after a kill, or of another caller, ends with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from glidemq_orchestrate.attempts.dead_letters import queue_of
from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.durations import milliseconds, seconds
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.queues import dead_letters, limits
from glidemq_orchestrate.shards import CONCURRENCY, RATE, Shards, add_shards, read_shards
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Op, ask, ask_all, command, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number, span

MAX_CHANGES: Final = 5


def set_concurrency(queue: QueueKeys, limit: int | None) -> Op[None]:
    """Set how many jobs of all members run at the same time; None for no limit. Idempotent.

    Raises:
        InvalidJob: It cannot be divided among the members; nothing was changed.
    """
    if limit is not None:
        found = yield from ask(read_shards(queue))
        divided_concurrency(limit, found.total + 1)
    yield from _set(queue, CONCURRENCY, None if limit is None else str(limit), limits.set_global_concurrency)


def set_rate(queue: QueueKeys, limit: RateLimit | None) -> Op[None]:
    """Set how often jobs of all members start; None for no limit. Idempotent."""
    text = None if limit is None else f"{limit.max} {milliseconds(limit.per)}"
    yield from _set(queue, RATE, text, limits.set_global_rate_limit)


def _set(
    queue: QueueKeys, name: str, text: str | None, remove: Callable[[QueueKeys, None], Op[None]]
) -> Op[None]:
    key = queue.key("gmo:shards")
    words = ("HDEL", key, name) if text is None else ("HSET", key, name, text)
    yield from ask(command(*words, decode=replies.anything, repeatable=True))
    found = yield from settle(queue)
    if text is None:
        yield from side_by_side([remove(keys, None) for keys in found.members()])


def concurrency(queue: QueueKeys) -> Op[int | None]:
    """How many jobs of all members may run at the same time; None: no limit."""
    return _concurrency((yield from ask(read_shards(queue))))


def rate(queue: QueueKeys) -> Op[RateLimit | None]:
    """How often jobs of all members may start; None: no limit."""
    return _rate((yield from ask(read_shards(queue))))


def _concurrency(shards: Shards) -> int | None:
    return number(shards.limits.get(CONCURRENCY)) or None


def _rate(shards: Shards) -> RateLimit | None:
    most, _, per_ms = shards.limits.get(RATE, "").partition(" ")
    try:
        return RateLimit(number(most), span(per_ms))
    except InvalidJob:
        return None


def settle(queue: QueueKeys) -> Op[Shards]:
    """Write the settings to all members; again if these, or their number, have changed. Idempotent."""
    found = yield from ask(read_shards(queue))
    for _ in range(MAX_CHANGES):
        yield from _write(found, found.members())
        before, found = found, (yield from ask(read_shards(queue)))
        if found == before:
            break
    return found


def _write(shards: Shards, members: Sequence[QueueKeys], first: int = 0) -> Op[None]:
    """Write the settings of the whole queue, of which each member has a share, to those from the first on."""
    todo: list[Op[None]] = []
    some = members[first:]
    if (limit := _concurrency(shards)) is not None:
        shares = divided_concurrency(limit, len(members))
        todo += map(limits.set_global_concurrency, some, shares[first:])
    if (often := _rate(shards)) is not None:
        todo += map(limits.set_global_rate_limit, some, divided_rate(often, len(members))[first:])
    if (yield from limits.is_paused(shards.queue)):
        todo += map(limits.pause, some)
    if (letters := (yield from queue_of(shards.queue))) is not None:
        todo += [dead_letters.set_queue(keys, letters) for keys in some]
    yield from side_by_side(todo)


def more_shards(queue: QueueKeys, count: int, now_ms: int) -> Op[Shards]:
    """Let a queue have so many shards, all with its settings. Idempotent.

    The new shards have the settings before they are used. A kill in between leaves them with smaller shares,
    and the others with larger ones, until a repeat.

    Raises:
        ShardsMismatch: It has more.
        InvalidJob: A limit cannot be divided among so many; nothing was changed.
    """
    found = yield from ask(read_shards(queue))
    if not found.total:  # so far the limits of the queue itself are those of the whole
        found = yield from _take_over(found)
    if (limit := _concurrency(found)) is not None:
        divided_concurrency(limit, count + 1)
    new = [found.one(index) for index in range(found.total, count)]
    yield from _write(found, [*found.members(), *new], found.total + 1)
    yield from add_shards(queue, count, now_ms)
    return (yield from settle(queue))


def _take_over(found: Shards) -> Op[Shards]:
    """Let the limits of a queue without shards be those of the whole, in place of those of earlier calls."""
    queue, key = found.queue, found.queue.key("gmo:shards")
    limit = yield from limits.global_concurrency(queue)
    often = yield from limits.global_rate_limit(queue)
    texts = {CONCURRENCY: limit and str(limit), RATE: often and f"{often.max} {milliseconds(often.per)}"}
    changes = [("HSET", key, name, text) if text else ("HDEL", key, name) for name, text in texts.items()]
    yield from ask_all([command(*words, decode=replies.anything, repeatable=True) for words in changes])
    return (yield from ask(read_shards(queue)))


def divided_concurrency(limit: int, members: int) -> Sequence[int]:
    """The shares of the members of a queue with shards.

    Raises:
        InvalidJob: It is less than their number.
    """
    if limit < members:
        raise InvalidJob(
            f"a limit of {limit} cannot be divided among the queue and its {members - 1} shards. "
            f"Fix: at least {members}, or an ordering key with a concurrency"
        )
    return [limit // members + (at < limit % members) for at in range(members)]


def divided_rate(limit: RateLimit, members: int) -> Sequence[RateLimit]:
    """The shares of the members of a queue with shards: together as many starts in the same time."""
    if limit.max < members:
        return [RateLimit(1, seconds(limit.per) * members / limit.max)] * members
    return [RateLimit(share, limit.per) for share in divided_concurrency(limit.max, members)]
