"""A scheduler entry that is invalid is logged and skipped; the others fire."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobTemplate, Queue, Schedule
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.schedules import ops
from glidemq_orchestrate.wire.call import _report_once
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

P = b"glide:{etl}:"
ETL = QueueKeys("glide", "etl")
LATIN = b"caf\xe9"
DUE: dict[str, Any] = {"every": 3_600_000, "iterationCount": 0, "nextRun": 1, "template": {"name": "other"}}

BROKEN: dict[str, tuple[bytes, bytes]] = {
    "a name that is not UTF-8": (LATIN, json.dumps(DUE).encode()),
    "a value that is not UTF-8": (b"a", b'{"every":1,"x":"' + LATIN + b'"}'),
    "no JSON": (b"a", b"{"),
    "no object": (b"a", b"[1]"),
    "too deep": (b"a", b'{"every":' * 50_000),
    "digits": (b"a", b'{"every":1,"nextRun":' + b"9" * 5_000 + b"}"),
    "half a character in the name": (b"a", b'{"every":1,"nextRun":1,"template":{"name":"\\ud83d"}}'),
    "half a character in the data": (b"a", b'{"every":1,"nextRun":1,"template":{"data":"\\ud83d"}}'),
    "half a character in a key": (b"a", b'{"every":1,"nextRun":1,"\\udfff":1}'),
    "no pattern": (b"a", json.dumps(DUE | {"pattern": "what"}).encode()),
    "a huge pattern": (b"a", json.dumps(DUE | {"pattern": "1," * 100_000 + "1 * * * *"}).encode()),
    "no zone": (b"a", json.dumps(DUE | {"pattern": "* * * * *", "tz": "Mars/Olympus"}).encode()),
    "a zone that is a number": (b"a", json.dumps(DUE | {"pattern": "* * * * *", "tz": 7}).encode()),
    "nothing to repeat": (b"a", b'{"nextRun":1}'),
}
ODD: dict[str, dict[str, Any]] = {
    "catch-up without slots": {
        "repeatAfterComplete": 60_000,
        "catchUp": "all",
        "catchUpLimit": 9,
        "nextRun": 1,
    },
    "dates far away": DUE | {"startDate": 9e15, "endDate": 9e15, "lastRun": 1e300, "nextRun": -9e15},
    "a logical time far away": DUE | {"nextRun": -9e15, "logicalTime": True, "template": {"data": {}}},
    "a pattern and a time far away": DUE | {"pattern": "* * * * *", "nextRun": -9e15, "catchUp": "all"},
    "options that are a list": DUE | {"template": {"name": 7, "opts": [1], "data": [None]}},
    "numbers that are texts": {"every": "x", "nextRun": "1", "limit": [], "iterationCount": {}},
    "a lag of years": DUE | {"every": 1, "catchUp": "all", "catchUpLimit": 1e300},
}


@pytest.fixture
def raw(url: str, queue: Queue) -> Iterator[Any]:
    """A client that sends and reads bytes."""
    from redis import Redis  # noqa: PLC0415  beside the other drivers of the tests

    queue.add("warm")
    with Redis.from_url(url.replace("valkey://", "redis://")) as client:
        client.flushall()
        yield client


@pytest.fixture
def schedulers(url: str) -> Iterator[Schedules]:
    with Schedules("etl", url) as made:
        yield made


@pytest.mark.parametrize("where", [b"schedulers", b"gmo:schedulers"])
def test_an_entry_that_cannot_be_fired_is_logged_once_and_the_others_fire(
    raw: Any, schedulers: Schedules, hand: Hand, caplog: pytest.LogCaptureFixture, where: bytes
) -> None:
    for case, (name, text) in BROKEN.items():
        raw.flushdb()
        caplog.clear()
        raw.hset(P + where, name, text)
        raw.hset(P + b"schedulers", "good", json.dumps(DUE))
        clock, fired = Moving(), 0
        _report_once.cache_clear()
        with caplog.at_level(logging.ERROR):
            for _ in range(4):
                hand.run(ops.tick(ETL, clock))
                fired = int(json.loads(raw.hget(P + b"schedulers", "good"))["iterationCount"])
                clock.now += 3_600_000
        assert fired == 4, case
        assert raw.hget(P + where, name) == text
        assert len([record for record in caplog.records if "is skipped" in record.getMessage()]) == 1
        broken, good = sorted(schedulers.list(), key=lambda entry: entry.name == "good")
        assert (bool(broken.broken), good.broken) == (True, "")
        assert schedulers.get(broken.name) == broken
        assert schedulers.remove(broken.name)
        assert [entry.name for entry in schedulers.list()] == ["good"]


@pytest.mark.parametrize("where", [b"schedulers", b"gmo:schedulers"])
def test_odd_numbers_in_an_entry_do_not_stop_others_from_firing(
    raw: Any, schedulers: Schedules, hand: Hand, where: bytes
) -> None:
    for case, entry in ODD.items():
        raw.flushdb()
        raw.hset(P + where, "a", json.dumps(entry))
        raw.hset(P + b"schedulers", "good", json.dumps(DUE))
        clock = Moving()
        for _ in range(3):
            hand.run(ops.tick(ETL, clock))
            clock.now += 3_600_000
        assert json.loads(raw.hget(P + b"schedulers", "good"))["iterationCount"] == 3, case
        assert "good" in {entry.name for entry in schedulers.list()}


def test_what_others_have_added_to_the_index_is_removed(raw: Any, hand: Hand) -> None:
    raw.hset(P + b"schedulers", "good", json.dumps(DUE))
    raw.zadd(P + b"gmo:schedulers:due", {"active": 9e15, "": 9e15, "-gone": 9e15, b"\xff": "inf"})
    clock = Moving()
    for _ in range(2):
        hand.run(ops.tick(ETL, clock))
        clock.now += 3_600_000
    assert raw.zrange(P + b"gmo:schedulers:due", 0, -1) == [b"-good"]
    assert json.loads(raw.hget(P + b"schedulers", "good"))["iterationCount"] == 2


def test_a_worker_fires_what_it_can_beside_every_odd_entry(
    raw: Any, schedulers: Schedules, run_worker: RunWorker, eventually: Eventually, queue: Queue
) -> None:
    for number, (name, text) in enumerate(BROKEN.values()):
        raw.hset(P + b"schedulers", name + b"%d" % number, text)
        raw.hset(P + b"gmo:schedulers", name + b"%d" % number, text)
    for case, entry in ODD.items():
        raw.hset(P + b"schedulers", case, json.dumps(entry))
    seen: list[Any] = []
    schedulers.upsert("good", Schedule(every=timedelta(milliseconds=50)), JobTemplate("good"))
    running = run_worker(["etl"], {"good": lambda ctx: seen.append(ctx.data), "other": lambda ctx: None})
    eventually(lambda: len(seen) >= 5, timeout=20)
    assert queue.add_and_wait("good", 1, timeout=timedelta(seconds=5)) is None
    assert running.error is None
    assert len(schedulers.list()) == 2 * len(BROKEN) + len(ODD) + 1


class Moving:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = int(time.time() * 1000)

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now
