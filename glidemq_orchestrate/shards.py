"""A queue that is spread over the slots of a cluster: its shards, and how many it has.

Each shard is a glide-mq queue with a slot of its own, and shard *i* of every queue is in the same slot. So
the shards of one number, of all queues, work together as on one server: a flow lives in one number. The queue
itself stays in use beside its shards: for jobs of clients in Node, and for what was there before.

A queue only ever gets more shards. Clients learn of more with a delay and use them from the same time on,
which is stored with the number.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from binascii import crc_hqx
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, ShardsMismatch
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.texts import described, shown
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, command
from glidemq_orchestrate.wire.keys import SLOTS, KeyName, QueueKeys

MAX_SHARDS: Final = 128
KNOWN_MS: Final = 30_000
"""For how long a client relies on the number of shards that it has read."""
SETTLE_MS: Final = 2 * KNOWN_MS
"""The time from adding shards until clients use them: by then each client has read the new number."""
NUMBERS: Final = 10**12
"""How many jobs the server can number in a shard: the numbers of shard 0 begin here."""
CONCURRENCY: Final = "concurrency"
RATE: Final = "rate"
"""The fields with the limits of the whole queue: how many jobs run; how many start, and in how many ms."""
_SHARD: Final = re.compile(r"(.+)~([0-9]{1,3})~([0-9a-z]{4})\Z", re.DOTALL)
_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX: Final = 4
_SLOT_BITS: Final = 14


def shard_slot(index: int) -> int:
    """The slot of a shard, for every queue: the reversed bits of the number.

    So the first two, four, eight ... shards are evenly spaced, and more shards leave the others where they
    are.
    """
    return int(f"{index:0{_SLOT_BITS}b}"[::-1], 2)


@lru_cache(maxsize=4096)
def shard_name(queue: str, index: int) -> str:
    """The queue that is a shard: the name, the number, and a suffix that puts it into the shard's slot."""
    stem = f"{queue}~{index}~"
    # A CRC is linear: the state after the stem, moved on by the length of the suffix, is a fixed difference.
    moved = crc_hqx(bytes(_SUFFIX), crc_hqx(stem.encode(), 0))
    return stem + _suffixes()[(moved ^ shard_slot(index)) % SLOTS]


@lru_cache(maxsize=1)
def _suffixes() -> Sequence[str]:
    """For each slot the first suffix whose own CRC belongs to it."""
    found: dict[int, str] = {}
    for letters in product(_LETTERS, repeat=_SUFFIX):
        suffix = "".join(letters)
        found.setdefault(crc_hqx(suffix.encode(), 0) % SLOTS, suffix)
        if len(found) == SLOTS:
            break
    return [found[slot] for slot in range(SLOTS)]


def split_shard(name: str) -> tuple[str, int | None]:
    """The queue of a shard and its number; the name itself and None for any other queue."""
    if "~" in name and (found := _SHARD.match(name)) and name == shard_name(found[1], int(found[2])):
        return found[1], int(found[2])
    return name, None


def whole_queues(names: Iterable[str]) -> list[str]:
    """The names, sorted, with each shard as its queue."""
    return sorted({split_shard(name)[0] for name in names})


def shard_for(key: str, count: int) -> int:
    """The shard for a key, out of so many: always the same, and with more shards mostly still the same.

    Jump consistent hashing (Lamping and Veach, 2014).
    """
    state = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
    found, following = -1, 0
    while following < count:
        found = following
        state = (state * 2862933555777941757 + 1) % 2**64
        following = int((found + 1) * (2**31 / ((state >> 33) + 1)))
    return found


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a queue.

    Attributes:
        queue: The queue.
        since: Since when it has how many shards (ms since the epoch), by number of shards; since 0 if it was
            new.
        limits: The limits of the whole queue, of which each member has a share.
    """

    queue: QueueKeys
    since: Mapping[int, int]
    limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many it has, including those that no client uses yet; 0 for a queue without shards."""
        return max(self.since, default=0)

    def counts(self, now_ms: int) -> list[int]:
        """How many clients have used until now, newest first."""
        return sorted((count for count, at in self.since.items() if at <= now_ms), reverse=True)

    def count(self, now_ms: int) -> int:
        """How many clients use now."""
        return next(iter(self.counts(now_ms)), 0)

    def one(self, index: int) -> QueueKeys:
        """A shard."""
        return QueueKeys(self.queue.prefix, shard_name(self.queue.queue, index))

    def members(self) -> list[QueueKeys]:
        """The queue itself and all its shards."""
        return [self.queue, *(self.one(index) for index in range(self.total))]


def places(shards: Shards, key: str, now_ms: int) -> list[QueueKeys]:
    """Where jobs with a key are added, and then where earlier ones may be.

    They may be where they were added before there were as many shards, and in the queue itself: from before
    it had shards, or from a client that did not know of them yet.
    """
    indexes = dict.fromkeys(shard_for(key, count) for count in shards.counts(now_ms))
    return [*(shards.one(index) for index in indexes), shards.queue]


def check_count(count: int) -> int:
    """Return the number of shards if a queue can have so many.

    Raises:
        ConfigurationError: It is not a number from 1 to 128.
    """
    if type(count) is not int or not 1 <= count <= MAX_SHARDS:
        raise ConfigurationError(f"shards must be a number from 1 to {MAX_SHARDS}, got {described(count)}")
    return count


def read_shards(queue: QueueKeys) -> Call[Shards]:
    """How many shards a queue has."""

    def decode(reply: Any) -> Shards:
        found = replies.pairs(reply)
        since = {int(count): int(at) for count, at in found.items() if count.isdigit()}
        return Shards(queue, since, {name: found[name] for name in (CONCURRENCY, RATE) if name in found})

    return command("HGETALL", queue.key("gmo:shards"), decode=decode)


def _write(found: Shards, count: int, at_ms: int) -> Op[None]:
    """Note that a queue has so many shards from a time on, unless that is noted. Idempotent.

    Before that, the server's numbers for jobs are set apart: no two shards give out the same.
    """
    first = [
        ("SET", found.one(index).key("id"), (index + 1) * NUMBERS, "NX")
        for index in range(found.total, count)
    ]
    noting = ("HSETNX", found.queue.key("gmo:shards"), count, at_ms)
    yield from ask_all([command(*words, decode=replies.anything, repeatable=True) for words in first])
    yield from ask(command(*noting, decode=replies.anything, repeatable=True))


def _in_use(queue: QueueKeys) -> Op[bool]:
    """Whether there are jobs or settings in a queue, or it ever numbered a job; workers alone are no use."""
    names: Sequence[KeyName] = ("id", "meta", "scheduled", "gmo:priorities", "lifo", "completed", "failed")
    keys = command("EXISTS", *queue.keys(*names), decode=bool)
    return any((yield from ask_all([keys, command("XLEN", queue.key("stream"), decode=bool)])))


def declare(queue: QueueKeys, count: int) -> Op[Shards]:
    """The shards of a queue that should have so many; a new queue gets them at once. Idempotent.

    An earlier number is accepted too: settings name it until they are changed.

    Raises:
        ConfigurationError: It is a shard itself.
        ShardsMismatch: It never had this number.
    """
    if split_shard(queue.queue)[1] is not None:
        raise ConfigurationError(f"queue {shown(queue.queue)} is a shard, and cannot have shards")
    found = yield from ask(read_shards(queue))
    if not found.total and not (yield from _in_use(queue)):
        yield from _write(found, count, 0)
        found = yield from ask(read_shards(queue))
    if count not in found.since:
        raise ShardsMismatch(queue.queue, count, found.total)
    return found


def add_shards(queue: QueueKeys, count: int, now_ms: int) -> Op[Shards]:
    """Let a queue have so many shards; clients use them after a minute. Idempotent.

    Raises:
        ShardsMismatch: It has more.
    """
    found = yield from ask(read_shards(queue))
    if found.total > count:
        raise ShardsMismatch(queue.queue, count, found.total)
    if found.total == count:
        return found
    fresh = not found.total and not (yield from _in_use(queue))
    yield from _write(found, count, 0 if fresh else now_ms + SETTLE_MS)
    return (yield from ask(read_shards(queue)))


def with_shard_counts(named: Iterable[QueueKeys], served: Iterable[QueueKeys]) -> str:
    """The names of queues, with the number of their shards among those served."""
    every = [split_shard(keys.queue) for keys in served]
    shards = Counter(queue for queue, index in every if index is not None)
    counted = ((keys.queue, shards[keys.queue]) for keys in named)
    return ", ".join(f"{queue} ({count} shards)" if count else queue for queue, count in counted)


def members_of(queues: Sequence[QueueKeys]) -> Op[list[str]]:
    """The names of queues and of their shards."""
    every = yield from ask_all([read_shards(queue) for queue in queues])
    return [member.queue for shards in every for member in shards.members()]


class KnownShards:
    """What a client knows of the shards of queues, for ``KNOWN_MS``; and whose turn it is to get a job."""

    def __init__(self) -> None:
        self._known: dict[QueueKeys, tuple[int, Shards]] = {}
        self._stated: dict[QueueKeys, int] = {}
        self._turn = secrets.randbelow(MAX_SHARDS)

    def state(self, queue: QueueKeys, count: int) -> None:
        """Note that a queue should have so many shards: the next operation declares it; see ``declare``."""
        self._stated[queue] = count
        self.forget(queue)

    def next_turn(self) -> int:
        """A number that is one more each time; at first a random one."""
        self._turn += 1
        return self._turn

    def of(self, queues: Iterable[QueueKeys], clock: Clock) -> Op[dict[str, Shards]]:
        """The shards of those queues that have some, by name.

        While the number cannot be read, the last one holds: what others add elsewhere is found there.

        Raises:
            ConfigurationError, ShardsMismatch: A queue cannot have the stated number; see ``declare``.
        """
        every, now_ms = list(queues), clock.monotonic_ms()
        for one in self._stated.keys() & set(every):
            yield from declare(one, self._stated[one])
            self._stated.pop(one, None)
        old = [one for one in every if one not in self._known or now_ms >= self._known[one][0]]
        if old:
            for queue, found in zip(
                old, (yield from ask_each([read_shards(one) for one in old])), strict=True
            ):
                if not isinstance(found, GlideMQError):
                    self._known[queue] = (now_ms + KNOWN_MS, found)
                elif queue not in self._known:
                    raise found
        now = (self._known[one][1] for one in every)
        return {shards.queue.queue: shards for shards in now if shards.total}

    def of_one(self, queue: QueueKeys, clock: Clock) -> Op[Shards | None]:
        """The shards of a queue; None for one without."""
        found = self._known.get(queue)
        if found is None or clock.monotonic_ms() >= found[0]:
            return (yield from self.of([queue], clock)).get(queue.queue)
        return found[1] if found[1].since else None

    def forget(self, queue: QueueKeys) -> None:
        """Read the shards of a queue again with the next operation."""
        self._known.pop(queue, None)
