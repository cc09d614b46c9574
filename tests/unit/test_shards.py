"""What holds for the names, the slots and the choice of shards, without a server."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from redis.crc import key_slot

from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed
from glidemq_orchestrate.shards import (
    KNOWN_MS,
    MAX_SHARDS,
    KnownShards,
    Shards,
    check_count,
    shard_for,
    shard_name,
    split_shard,
)
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.unit.conftest import ManualClock

ODD_NAMES = ("etl", "a", "x" * 240, "é", "with space", "etl~3", "~", "etl~1~0000")


def test_a_shard_of_every_queue_is_in_the_same_slot() -> None:
    for index in (0, 1, 7, 127):
        slots = {key_slot(shard_name(queue, index).encode()) for queue in ODD_NAMES}
        assert len(slots) == 1, index


@pytest.mark.parametrize("count", [2, 4, 16, 64])
def test_shards_divide_the_slots_evenly(count: int) -> None:
    slots = sorted(key_slot(shard_name("etl", index).encode()) for index in range(count))
    assert slots == [part * 16384 // count for part in range(count)]


def test_the_name_of_a_shard_names_its_queue_and_number() -> None:
    for queue in ODD_NAMES:
        assert split_shard(queue) == (queue, None)
        assert split_shard(shard_name(queue, 12)) == (queue, 12)


def test_the_names_of_shards_never_change() -> None:
    """They are in the keys of servers: another name would lose the jobs there."""
    names = [shard_name("etl", index) for index in (0, 1, 15)]
    assert names == ["etl~0~0fhq", "etl~1~06f4", "etl~15~055h"]


def test_more_shards_move_few_keys_and_spread_them_evenly() -> None:
    keys = [f"flow-{number}" for number in range(4000)]
    before, after = [shard_for(key, 16) for key in keys], [shard_for(key, 20) for key in keys]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {16, 17, 18, 19}
    assert 0.15 < len(moved) / len(keys) < 0.25
    assert min(Counter(before).values()) > 0.7 * 4000 / 16


def test_more_shards_count_from_the_time_that_is_stored_with_them() -> None:
    shards = Shards(QueueKeys("glide", "etl"), {4: 0, 8: 1_000})
    assert (shards.count(999), shards.count(1_000), shards.total) == (4, 8, 8)
    assert shards.counts(1_000) == [8, 4]
    assert [keys.queue for keys in shards.members()] == ["etl", *(shard_name("etl", i) for i in range(8))]
    assert Shards(QueueKeys("glide", "etl"), {}).members() == [QueueKeys("glide", "etl")]


@pytest.mark.parametrize("count", [0, -1, MAX_SHARDS + 1, True, 1.5, "16"])
def test_an_impossible_number_of_shards_is_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match=r"shards must be a number from 1 to 128"):
        check_count(count)


def test_while_the_number_cannot_be_read_the_last_one_holds() -> None:
    known, clock, queue = KnownShards(), ManualClock(), QueueKeys("glide", "etl")
    assert drive(known.of([queue], clock), [["4", "0"]])["etl"].total == 4
    assert drive(known.of([queue], clock), None)["etl"].total == 4
    clock.now += KNOWN_MS
    assert drive(known.of([queue], clock), [ConnectionFailed("down")])["etl"].total == 4
    clock.now += 1
    assert drive(known.of([queue], clock), [["4", "0", "8", "1"]])["etl"].total == 8
    with pytest.raises(ConnectionFailed):
        drive(known.of([QueueKeys("glide", "other")], clock), [ConnectionFailed("down")])


def drive(op: Any, replies: Any) -> Any:
    """The value of an operation that makes one batch, or none."""
    try:
        next(op)
        assert replies is not None
        op.send(replies)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it asks again")
