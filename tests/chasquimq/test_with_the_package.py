"""Our clients and the real ChasquiMQ 1.3 share a queue; the facts are those that its users rely on."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from glidemq_orchestrate.chasquimq import ChasquiBackoff, ChasquiJob, ChasquiQueue
from glidemq_orchestrate.chasquimq.envelope import Envelope, Retry, StoredBackoff
from tests.chasquimq.conftest import Peer, Raw, StartPeer
from tests.conftest import Eventually

E1 = bytes.fromhex(
    f"94ba30314846{'30' * 20}4142c41481a2746faf616461406578616d706c652e636f6dcf0000018bcfe5680000"
)
NOW = 1_700_000_000_000


def packed(*slots: Any) -> bytes:
    return msgspec.msgpack.encode(list(slots))


def kinds(images: ChasquiQueue, job_id: str) -> list[tuple[str, int | None]]:
    events = images.events("0-0", idle_timeout=0.1)
    return [(one.kind, one.attempt) for one in events if one.job_id == job_id]


def test_the_server_serves_chasquimq(images: ChasquiQueue) -> None:
    assert images.serves_chasquimq()


def test_a_worker_runs_our_jobs(images: ChasquiQueue, peer: Peer, eventually: Eventually) -> None:
    data = {"to": "ada", "n": [1, -2, 2**40, 1.5, None, True, "é"]}
    first, second = images.add("welcome", data), images.add("", [1])  # facts 3 and 4
    third = images.add("raw", b"\x00\xff", attempts=2, backoff=ChasquiBackoff("fixed", 0.01, jitter=0))
    more = images.add_many([ChasquiJob("many", number) for number in range(300)])
    peer.work()
    eventually(lambda: len(peer.get_runs()) == 303)
    runs = {job_id: rest for job_id, *rest in peer.get_runs()}
    assert runs[first] == ["welcome", data, 0]
    assert runs[second] == ["", [1], 0]
    assert runs[third] == ["raw", "00ff", 0]
    assert [runs[job_id][1] for job_id in more] == list(range(300))
    eventually(lambda: images.counts().active == 0)


def test_a_worker_runs_entries_written_by_hand(raw: Raw, peer: Peer, eventually: Eventually) -> None:
    raw.add({"d": E1, "n": "welcome"})  # fact 1
    raw.add({"x": "1", "n": "odd", "d": packed("b", packed(1), NOW, 0), "y": "2"})  # fact 5
    peer.work()
    eventually(lambda: len(peer.get_runs()) == 2)
    assert sorted(peer.get_runs()) == [
        ["01HF00000000000000000000AB", "welcome", {"to": "ada@example.com"}, 0],
        ["b", "odd", [1], 0],
    ]


def test_envelopes_of_the_package_are_read_and_written_alike(raw: Raw, peer: Peer) -> None:
    peer.add(name="x", data=[1, 2], job_id="stable-3", backoff=250)  # fact 2
    peer.add(name="x", data=None, attempts=3, backoff=["exponential", 100, {"max_ms": 10_000}])
    peer.add(name="", data={"k": 1.5})
    found = [Envelope.read(entry[b"d"]) for entry in raw.stream()]
    assert [envelope.packed for envelope in found] == [entry[b"d"] for entry in raw.stream()]
    assert found[0].retry == Retry(None, StoredBackoff("fixed", 250))
    assert found[1].retry == Retry(3, StoredBackoff("exponential", 100, 10_000, 2.0))
    assert (found[2].data, found[2].retry) == ({"k": 1.5}, None)


def test_an_id_is_added_once_for_each_producer(images: ChasquiQueue, raw: Raw, peer: Peer) -> None:  # fact 9
    for _ in range(2):
        images.add("x", 1, job_id="same")
        peer.add(name="x", data=2, job_id="same")
    assert [Envelope.read(entry[b"d"]).data for entry in raw.stream()] == [1, 2]
    assert raw.keys() == {"stream"}


def test_a_worker_runs_our_delayed_jobs_in_time(
    images: ChasquiQueue, raw: Raw, peer: Peer, eventually: Eventually
) -> None:  # facts 10 and 14
    images.add("later", {"z": 2}, job_id="dj-1", delay=0.3)
    plain = images.add("plain", delay=0.2)
    peer.work()
    eventually(lambda: len(peer.get_runs()) == 2)
    expected = [[plain, "plain", None, 0], ["dj-1", "later", {"z": 2}, 0]]
    assert sorted(peer.get_runs(), key=str) == sorted(expected, key=str)
    eventually(lambda: raw.client.exists(raw.key("didx:dj-1")) == 0)
    assert raw.client.exists(raw.key("dlid:dj-1"))
    eventually(lambda: "waiting" in dict(kinds(images, "dj-1")))
    assert not images.cancel("dj-1")


def test_each_side_cancels_delayed_jobs_of_the_other(images: ChasquiQueue, raw: Raw, peer: Peer) -> None:
    images.add("x", 1, job_id="ours", delay=60)  # facts 11 to 13
    peer.add(name="x", data=2, job_id="theirs", delay_ms=60_000)
    assert images.add("x", 3, job_id="theirs", delay=1) == "theirs"
    assert peer.add(name="x", data=4, job_id="ours", delay_ms=1_000) == "ours"
    assert raw.client.zcard(raw.key("delayed")) == 2
    assert 3655 < raw.client.ttl(raw.key("didx:theirs")) <= 3660
    assert (peer.cancel(job_id="ours"), images.cancel("theirs")) == (True, True)
    assert (images.cancel("ours"), peer.cancel(job_id="theirs")) == (False, False)
    assert raw.keys() == set()
    job_id = peer.add(name="x", data=1, delay_ms=60_000)
    assert not images.cancel(job_id)


def test_failures_end_as_dead_letters(images: ChasquiQueue, peer: Peer, eventually: Eventually) -> None:
    backoff = ChasquiBackoff("exponential", 0.02, jitter=0)
    images.add("a", {"fails": 9}, job_id="a", attempts=2, backoff=backoff)  # fact 15
    images.add("b", {"unrecoverable": "no"}, job_id="b", attempts=9)  # fact 16
    images.add("c", {"fails": 3, "returns": {"got": 1}}, job_id="c", attempts=9, backoff=backoff)  # fact 17
    peer.work(store_results=True)
    eventually(lambda: images.result("c") == {"got": 1})
    eventually(lambda: len(images.dead_letters()) == 2)
    letters = {one.job_id: one for one in images.dead_letters()}
    assert (letters["a"].reason, letters["a"].attempts_made, letters["a"].name) == (
        "retries_exhausted",
        1,
        "a",
    )
    assert (letters["b"].reason, letters["b"].attempts_made) == ("unrecoverable", 0)
    eventually(lambda: ("dlq", 2) in kinds(images, "a"))
    assert [one for one in kinds(images, "a") if one[0] != "waiting"] == [
        ("active", 1), ("failed", 1), ("retry-scheduled", 2), ("active", 2), ("failed", 2), ("dlq", 2),
    ]  # fmt: skip
    found = [one for one in images.events("0-0", idle_timeout=0.1) if one.job_id == "c"]
    waits = [one.backoff for one in found if one.kind == "retry-scheduled"]
    assert waits == [timedelta(milliseconds=ms) for ms in (20, 40, 80)]
    assert [one.reason for one in found if one.kind == "failed"] == ["boom"] * 3


def test_results_of_a_worker_are_read(
    images: ChasquiQueue, raw: Raw, peer: Peer, eventually: Eventually
) -> None:  # fact 20
    images.add("x", {"returns": {"got": 1}}, job_id="some")
    images.add("x", {"returns": None}, job_id="none")
    peer.work(store_results=True, result_ttl_ms=1_500)
    eventually(lambda: {("completed", 1)} <= set(kinds(images, "none")) & set(kinds(images, "some")))
    eventually(lambda: raw.client.get(raw.key("result:some")) == bytes.fromhex("81a3676f7401"))
    assert 0 < raw.client.ttl(raw.key("result:some")) <= 2
    assert images.results(["some", "none"]) == [{"got": 1}, None]


def test_bad_entries_become_dead_letters(
    images: ChasquiQueue, raw: Raw, peer: Peer, eventually: Eventually
) -> None:
    source = raw.add({"n": "lost"})  # facts 6 to 8
    raw.add({"d": b"x" * 2_000_000, "n": "large"})
    raw.add({"d": packed("a", {"inline": 1}, NOW, 0), "n": "rust"})
    peer.work()
    eventually(lambda: len(images.dead_letters()) == 3)
    malformed, oversize, inline = images.dead_letters()
    assert (malformed.reason, malformed.source_id, malformed.payload) == ("malformed", source, b"")
    assert malformed.detail == "missing or non-bytes payload field"
    assert (oversize.reason, oversize.name, len(oversize.payload)) == ("oversize_payload", "large", 2_000_000)
    assert (inline.reason, inline.job_id, inline.data) == ("decode_failed", "a", {"inline": 1})
    assert images.counts().waiting == 0


def test_each_side_replays_dead_letters_of_the_other(
    images: ChasquiQueue, raw: Raw, peer: Peer, eventually: Eventually
) -> None:
    letter = {"source_id": "1-1", "reason": "retries_exhausted", "n": "x"}  # facts 18 and 19
    raw.add({**letter, "d": b"\xc1"}, "dlq")
    raw.add({**letter, "d": packed("a", packed(7), NOW, 4, [9, None])}, "dlq")
    assert [(one["name"], one["reason"]) for one in peer.peek()] == [("x", "retries_exhausted")] * 2
    assert (peer.replay(limit=1), images.replay_dead_letters(1)) == (0, 0)
    assert images.replay_dead_letters() == 1
    assert raw.stream() == [{b"d": packed("a", packed(7), NOW, 0, [9, None]), b"n": b"x"}]
    images.add("y", {"unrecoverable": "no"}, job_id="b")
    peer.work()
    eventually(lambda: [one.job_id for one in images.dead_letters()] == [None, "b"])
    assert peer.replay(limit=5) == 1
    eventually(lambda: sorted(job_id for job_id, *_ in peer.get_runs()) == ["a", "b", "b"])


def test_a_worker_fires_our_schedules(
    images: ChasquiQueue, raw: Raw, peer: Peer, eventually: Eventually
) -> None:  # fact 24
    key = images.upsert_schedule("tick", {"p": 1}, every=0.2, limit=2)
    peer.work(scheduler_tick_ms=50)
    eventually(lambda: len(peer.get_runs()) == 2)
    assert {(name, data["p"], len(job_id)) for job_id, name, data, _ in peer.get_runs()} == {("tick", 1, 26)}
    eventually(lambda: images.get_schedules() == [])
    assert raw.client.exists(raw.key(f"repeat:spec:{key}")) == 0


PATTERNS: dict[str, dict[str, Any]] = {
    "an interval": {"every": 60},
    "cron": {"cron": "*/5 * * * *"},
    "a zone": {"cron": "30 3 * * *", "time_zone": "America/New_York"},
    "an offset": {"cron": "30 3 * * *", "time_zone": "+05:30"},
    "seconds": {"cron": "15 */2 * * * *"},
    "a day of the week": {"cron": "0 0 * * 1"},
    "sunday": {"cron": "0 0 * * 0"},
    "a list of days": {"cron": "0 12 * * 1-5"},
    "both days": {"cron": "0 0 13 * 5"},
    "every second day": {"cron": "0 0 */2 * 1"},
    "sunday as 7": {"cron": "0 0 * * 7"},
    "from saturday to sunday": {"cron": "0 0 * * 6-7"},
    "no day": {"cron": "0 0 ? * 5"},
    "from a minute on": {"cron": "5/15 * * * *"},
    "names": {"cron": "0 0 * JAN SUN"},
}


def test_both_sides_write_the_same_schedules(
    images: ChasquiQueue, raw: Raw, peer: Peer, subtests: pytest.Subtests
) -> None:
    for what, pattern in PATTERNS.items():
        with subtests.test(what=what):
            key = images.upsert_schedule("tick", {"p": 1}, limit=5, **pattern)
            ours = raw.client.hget(raw.key(f"repeat:spec:{key}"), "spec")
            next_run = raw.client.zscore(raw.key("repeat"), key)
            every = {"every_ms": pattern["every"] * 1000} if "every" in pattern else {}
            rest = {"cron": pattern.get("cron"), "tz": pattern.get("time_zone")}
            assert peer.upsert(name="tick", data={"p": 1}, limit=5, **(every or rest)) == key
            assert raw.client.hget(raw.key(f"repeat:spec:{key}"), "spec") == ours
            assert abs(raw.client.zscore(raw.key("repeat"), key) - next_run) < 2_000
    assert len(peer.schedules()) == len(images.get_schedules()) == len(PATTERNS)


def test_schedules_of_the_package_are_listed_and_removed(images: ChasquiQueue, peer: Peer) -> None:
    peer.upsert(name="a", data=1, every_ms=60_000, missed="once")
    key = peer.upsert(name="b", data=1, cron="0 3 * * *", missed="all", end_before_ms=4_102_444_800_000)
    found = {one.name: one for one in images.get_schedules()}
    assert found["a"].every == timedelta(minutes=1)
    assert (found["a"].catch_up, found["b"].catch_up) == (1, 7)
    assert found["b"].end is not None
    assert images.remove_schedule(key)
    assert not peer.remove_schedule(key=key)


def test_missed_runs_are_made_up_for_as_asked(
    images: ChasquiQueue, raw: Raw, peer: Peer, eventually: Eventually
) -> None:  # fact 25
    for name, catch_up in {"none": 0, "once": 1, "three": 3, "all": 99}.items():
        key = images.upsert_schedule(name, every=2, catch_up=catch_up)
        raw.client.zadd(raw.key("repeat"), {key: time.time() * 1000 - 10_500})
    peer.work(scheduler_tick_ms=50)
    eventually(lambda: len(peer.get_runs()) >= 10)
    names = [name for _, name, *_ in peer.get_runs()]
    assert {name: names.count(name) for name in ("none", "once", "three", "all")} == {
        "none": 0, "once": 1, "three": 3, "all": 6,
    }  # fmt: skip


def test_events_of_a_job_that_was_handed_out_again_are_marked(
    images: ChasquiQueue, peer: Peer, eventually: Eventually
) -> None:  # fact 28
    images.add("slow", {"sleep": 1.2}, job_id="slow")
    peer.work(claim_min_idle_ms=300, read_block_ms=100)
    eventually(lambda: kinds(images, "slow").count(("completed", 1)) >= 2)
    found = [one for one in images.events("0-0", idle_timeout=0.1) if one.kind == "completed"]
    assert [one.is_repeat for one in found] == [False] + [True] * (len(found) - 1)
    eventually(lambda: images.counts().active == 0)


def test_a_killed_worker_costs_a_delivery(
    images: ChasquiQueue, start_peer: StartPeer, eventually: Eventually
) -> None:
    images.add("x", {"kill": 1}, job_id="a", attempts=2)
    for _ in range(3):  # fact 22: it runs twice again, then it is shed
        worker = start_peer()
        with suppress(BrokenPipeError, ValueError):  # the worker dies, perhaps before it can reply
            worker.work(claim_min_idle_ms=200, read_block_ms=100)
        assert worker.process.wait(30) == -9
    last = start_peer()
    last.work(claim_min_idle_ms=200, read_block_ms=100)
    eventually(lambda: [one.reason for one in images.dead_letters()] == ["retries_exhausted"])
    assert last.get_runs() == []
    assert images.dead_letters()[0].attempts_made == 0
