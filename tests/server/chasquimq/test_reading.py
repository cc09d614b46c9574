"""Results, counts, dead letters, schedules and events are read and changed as ChasquiMQ stores them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from glidemq_orchestrate.chasquimq import ChasquiCounts, ChasquiQueue
from glidemq_orchestrate.chasquimq.delayed import DelayedMember
from glidemq_orchestrate.chasquimq.envelope import Envelope, Retry
from glidemq_orchestrate.errors import ConfigurationError, DecodeError, InvalidJob, JobNotFound
from tests.server.chasquimq.conftest import Raw

MINUTE = timedelta(minutes=1)


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def test_results_are_those_of_the_workers(images: ChasquiQueue, raw: Raw) -> None:
    for job_id, value in {"a": {"got": 1}, "b": 0, "c": ""}.items():
        raw.client.set(raw.key(f"result:{job_id}"), packed(value))
    raw.client.set(raw.key("result:bad"), b"\xc1")
    assert images.results(["a", "b", "none", "c"]) == [{"got": 1}, 0, None, ""]
    assert (images.result("a"), images.result("none"), images.results([])) == ({"got": 1}, None, [])
    with pytest.raises(DecodeError, match="result of job bad"):
        images.result("bad")


def test_counts_tell_waiting_from_fetched(images: ChasquiQueue, raw: Raw) -> None:
    assert images.counts() == ChasquiCounts(0, 0, 0, 0, 0)
    for number in range(3):
        images.add("x", number)
    images.add("x", delay=60)
    images.upsert_schedule("tick", every=MINUTE)
    assert images.counts() == ChasquiCounts(3, 0, 1, 0, 1)
    raw.client.xgroup_create(raw.key("stream"), "default", "0")
    raw.client.xreadgroup("default", "me", {raw.key("stream"): ">"}, count=2)
    assert images.counts() == ChasquiCounts(1, 2, 1, 0, 1)
    assert images.counts(group="other") == ChasquiCounts(3, 0, 1, 0, 1)


def letter(raw: Raw, envelope: bytes, name: str = "", reason: str = "retries_exhausted") -> str:
    fields = {"d": envelope, "source_id": "1-1", "reason": reason}
    return raw.add({**fields, "n": name} if name else fields, "dlq")


def test_a_dead_letter_is_replayed_once_and_anew(images: ChasquiQueue, raw: Raw) -> None:
    envelope = Envelope("a", packed(packed([1])), 5, 4, Retry(9))  # fact 18
    letter_id = letter(raw, envelope.packed, "resize")
    (found,) = images.dead_letters()
    assert (found.id, found.job_id, found.name, found.data) == (letter_id, "a", "resize", [1])
    assert (found.reason, found.source_id, found.attempts_made) == ("retries_exhausted", "1-1", 4)
    assert images.replay_dead_letters() == 1
    assert raw.stream() == [{b"d": envelope.afresh().packed, b"n": b"resize"}]
    assert (images.dead_letters(), images.replay_dead_letters()) == ([], 0)


def test_unreadable_dead_letters_remain_until_they_are_removed(images: ChasquiQueue, raw: Raw) -> None:
    bad = letter(raw, b"\xc1", reason="decode_failed")  # fact 19
    letter(raw, Envelope.of("a", 1, 5).packed)
    assert images.replay_dead_letters(1) == 0
    assert [one.job_id for one in images.dead_letters()] == [None, "a"]
    with pytest.raises(DecodeError):
        _ = images.dead_letters()[0].data
    images.remove_dead_letter(bad)
    for missing in (bad, "nonsense"):
        with pytest.raises(JobNotFound, match="no dead letter"):
            images.remove_dead_letter(missing)
    assert images.replay_dead_letters(1) == 1


def test_many_dead_letters_move_in_pages(images: ChasquiQueue, raw: Raw) -> None:
    for number in range(55):
        letter(raw, Envelope.of(str(number), number, 5).packed, "é")
    assert [one.job_id for one in images.dead_letters(30)] == list(map(str, range(30)))
    assert images.replay_dead_letters(45) == 45
    assert [Envelope.read(entry[b"d"]).data for entry in raw.stream()] == list(range(45))
    assert {entry[b"n"].decode() for entry in raw.stream()} == {"é"}
    assert images.counts().dead == 10


def test_a_schedule_is_stored_with_its_next_run(images: ChasquiQueue, raw: Raw) -> None:
    key = images.upsert_schedule("tick", {"p": 1}, every=MINUTE)
    assert key == "tick::every:60000"
    assert raw.client.hget(raw.key(f"repeat:spec:{key}"), "spec").hex() == (
        "98b17469636b3a3a65766572793a3630303030a47469636b81a5457665727991cdea60c406c40481a17001c0c0c000"
    )
    (entry,) = images.get_schedules()
    now = datetime.fromtimestamp(raw.client.time()[0], UTC)
    assert entry.next_at is not None
    assert timedelta(seconds=50) < entry.next_at - now <= timedelta(seconds=62)
    assert (entry.key, entry.name, entry.every, entry.fired) == (key, "tick", MINUTE, 0)
    raw.client.hset(raw.key(f"repeat:spec:{key}"), "fired", 7)
    images.upsert_schedule("tick", {"p": 2}, every=MINUTE)
    assert [one.fired for one in images.get_schedules()] == [7]
    assert (images.remove_schedule(key), images.remove_schedule(key)) == (True, False)
    assert raw.keys() == set()


def test_a_cron_schedule_has_zone_bounds_and_catch_up(images: ChasquiQueue) -> None:
    end = datetime(2100, 1, 1, tzinfo=UTC)
    for zone in (None, "America/New_York", "+05:30", "-0800"):
        key = images.upsert_schedule(
            "c", cron="*/5 * * * *", time_zone=zone, limit=5, end=end, catch_up=1 if zone else 7
        )
        assert key == f"c::cron:*/5 * * * *:{zone or 'UTC'}"
    found = {one.time_zone: one for one in images.get_schedules()}
    assert {one.cron for one in found.values()} == {"*/5 * * * *"}
    assert found[None].catch_up == 7
    assert found["+05:30"].catch_up == 1
    assert all(one.next_at and one.next_at.minute % 5 == one.next_at.second == 0 for one in found.values())
    assert {(one.limit, one.end) for one in found.values()} == {(5, end)}


REFUSED: dict[str, dict[str, Any]] = {
    "neither": {},
    "both": {"every": 1, "cron": "* * * * *"},
    "no time": {"every": 0},
    "a zone without cron": {"every": 1, "time_zone": "UTC"},
    "an unknown zone": {"cron": "* * * * *", "time_zone": "Moon"},
    "no pattern": {"cron": "often"},
    "an end before the first run": {"every": 3600, "end": datetime(2000, 1, 1, tzinfo=UTC)},
    "never": {"cron": "0 0 30 2 *"},
    "an end without zone": {"every": 1, "end": datetime(2100, 1, 1)},  # noqa: DTZ001
    "no run": {"every": 1, "limit": 0},
    "a negative catch-up": {"every": 1, "catch_up": -1},
}


def test_a_schedule_that_never_runs_is_refused(
    images: ChasquiQueue, raw: Raw, subtests: pytest.Subtests
) -> None:
    for what, options in REFUSED.items():
        with subtests.test(what=what), pytest.raises((ConfigurationError, InvalidJob)):
            images.upsert_schedule("x", **options)
    assert raw.keys() == set()


def test_a_schedule_that_cannot_be_read_is_listed_as_broken(images: ChasquiQueue, raw: Raw) -> None:
    raw.client.zadd(raw.key("repeat"), {"lost": 1, "odd": 2})
    raw.client.hset(raw.key("repeat:spec:odd"), "spec", b"\xc1")
    images.upsert_schedule("tick", every=1)
    assert [(one.key, one.broken is not None) for one in images.get_schedules()] == [
        ("lost", True),
        ("odd", True),
        ("tick::every:1000", False),
    ]
    assert images.remove_schedule("odd")
    assert len(images.get_schedules(1)) == 1


def event(raw: Raw, kind: str, job_id: str = "", **fields: Any) -> str:
    return raw.add({"e": kind, "id": job_id, "ts": 1_700_000_000_000, **fields}, "events")


def test_events_are_read_from_a_position(images: ChasquiQueue, raw: Raw) -> None:
    event(raw, "active", "a", n="resize", attempt=1)
    middle = event(raw, "failed", "a", n="resize", attempt=1, reason="boom", duration_us=1500)
    event(raw, "retry-scheduled", "a", n="resize", attempt=2, backoff_ms=250)
    event(raw, "drained", duration_us="9" * 30)
    first, failed, again, drained = images.events("0-0", idle_timeout=0.05)
    assert (first.kind, first.job_id, first.name, first.attempt) == ("active", "a", "resize", 1)
    assert (failed.reason, failed.duration) == ("boom", timedelta(milliseconds=1.5))
    assert failed.at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert again.backoff == timedelta(milliseconds=250)
    assert (drained.job_id, drained.name, drained.attempt) == (None, "", None)
    assert drained.duration is not None
    assert [one.kind for one in images.events(middle, idle_timeout=0.05)] == ["retry-scheduled", "drained"]
    assert list(images.events(idle_timeout=0.05)) == []
    with pytest.raises(ConfigurationError):
        images.events("yesterday")


def test_a_completion_that_is_reported_again_is_marked(images: ChasquiQueue, raw: Raw) -> None:
    for attempt in (1, 1, 2):  # fact 28
        event(raw, "completed", "a", attempt=attempt)
    event(raw, "drained")
    event(raw, "drained")
    found = [one.is_repeat for one in images.events("0-0", idle_timeout=0.05)]
    assert found == [False, True, False, False, False]


def test_a_delayed_member_of_the_package_is_read() -> None:
    member = DelayedMember.read(
        bytes.fromhex("050000006c6174657294a4646a2d31c40481a17a02cf0000018bcfe5680000")
    )
    assert (member.name, Envelope.read(member.envelope).job_id) == ("later", "dj-1")
