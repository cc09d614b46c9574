"""What is sent again, and which connections are kept."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import BusyLoadingError

from glidemq_orchestrate.errors import ConnectionFailed, OutcomeUnknown, ServerBusy
from glidemq_orchestrate.io.connect import Link, Pool
from glidemq_orchestrate.io.delivery import PAUSES, Delivered, tries
from glidemq_orchestrate.io.topology import is_stale
from glidemq_orchestrate.io.translate import loading
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.replies import anything, error_from

WRITE: Call[Any] = function("gmo_add_jobs", ["{q}"], (), anything)
READ: Call[Any] = command("GET", "x", decode=anything)
EVERYWHERE: Call[Any] = command("FUNCTION", "DELETE", "x", decode=anything)

REFUSALS_OF_REPLICAS: list[str] = [
    "READONLY You can't write against a read only replica.",
    "UNBLOCKED force unblock from blocking operation",
    "MASTERDOWN Link with MASTER is down",
    "NOREPLICAS Not enough good replicas to write.",
    "CLUSTERDOWN The cluster is down",
    "LOADING the dataset is in memory",
    "ERR WAIT cannot be used with replica instances. Please also note",
    "ERR WAITAOF cannot be used with replica instances.",
]

OTHER_REFUSALS: list[str] = ["OOM command not allowed", "MISCONF x", "BUSY x", "GMO_STALE", "ERR x"]


def test_a_refusal_of_a_former_primary_is_repeated_whatever_was_asked(subtests: pytest.Subtests) -> None:
    for text in REFUSALS_OF_REPLICAS:
        with subtests.test(text=text):
            refusal = error_from(text)
            assert is_stale(refusal)
            assert isinstance(refusal, ServerBusy)
            calls = [WRITE, READ, EVERYWHERE]
            assert Delivered([refusal, "fine", refusal]).again(calls, is_known=True) == [0]


def test_what_may_have_been_done_is_repeated_only_where_that_is_safe() -> None:
    unknown = OutcomeUnknown("cut")
    assert Delivered([unknown, unknown]).again([WRITE, READ], is_known=True) == [1]
    assert Delivered([], unknown).again([WRITE, READ], is_known=True) == []
    unsent = ConnectionFailed("no")
    assert Delivered([], unsent).again([WRITE, READ], is_known=True) == [0, 1]
    assert Delivered([], unsent).again([WRITE, READ], is_known=False) == []


def test_other_refusals_are_the_callers(subtests: pytest.Subtests) -> None:
    for text in OTHER_REFUSALS:
        with subtests.test(text=text):
            refusal = error_from(text)
            assert not is_stale(refusal)
            assert Delivered([refusal]).again([WRITE], is_known=True) == []


def test_later_only_calls_for_a_moving_slot_are_repeated() -> None:
    moving, down, unknown = error_from("TRYAGAIN x"), error_from("CLUSTERDOWN x"), OutcomeUnknown("cut")
    delivered = Delivered([moving, down, unknown, "fine"])
    calls = [READ] * 4
    assert delivered.again(calls, is_known=True) == [0, 1, 2]
    assert delivered.again(calls, is_known=True, is_late=True) == [0]
    assert Delivered([], unknown).again(calls, is_known=True, is_late=True) == []


def test_they_are_repeated_as_long_as_the_driver_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("glidemq_orchestrate.io.delivery.monotonic", lambda: now)
    short = [(pause, False) for pause in PAUSES]
    assert list(tries(0)) == short
    long = tries(3.0)
    found = []
    for pause, is_late in long:
        found.append((pause, is_late))
        now += pause
    assert found == [*short, *[(0.5, True)] * 4]
    assert sum(pause for pause, _ in found) <= 3.0


def test_calls_behind_one_that_found_the_server_loading_may_be_done() -> None:
    first, *others = loading(3, BusyLoadingError("the dataset is in memory"))
    assert (type(first), first.code) == (ServerBusy, "LOADING")
    assert [type(other) for other in others] == [OutcomeUnknown] * 2


def test_a_connection_that_was_misled_takes_the_others_along() -> None:
    pool = Pool(object)
    one, two, three, busy = (pool.take() for _ in range(4))
    assert pool.put(one, Link.SOUND) == []
    assert pool.put(two, Link.BROKEN) == [two]
    assert set(pool.put(three, Link.MISLED)) == {three, one}
    assert pool.put(busy, Link.SOUND) == [busy]
    fresh = pool.take()
    assert pool.put(fresh, Link.SOUND) == []
    assert pool.every() == [fresh]


def test_a_connection_that_nobody_used_for_a_minute_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr("glidemq_orchestrate.io.connect.monotonic", lambda: now)
    pool = Pool(object)
    old = pool.take()
    assert pool.put(old, Link.SOUND) == []
    now += 59
    assert pool.take() is old
    assert pool.put(old, Link.SOUND) == []
    now += 61
    fresh = pool.take()
    assert fresh is not old
    assert set(pool.every()) == {old, fresh}
    assert pool.put(fresh, Link.SOUND) == [old]
    assert pool.every() == [fresh]
