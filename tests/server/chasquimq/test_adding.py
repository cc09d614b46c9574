"""Jobs are stored as ChasquiMQ stores them, once, and delayed ones can be cancelled."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate.chasquimq import AsyncChasquiQueue, ChasquiBackoff, ChasquiJob, ChasquiQueue
from glidemq_orchestrate.chasquimq.adding import Producer
from glidemq_orchestrate.chasquimq.envelope import Envelope, Retry, StoredBackoff
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.profile import Profile
from glidemq_orchestrate.errors import ConfigurationError, EncodeError, InvalidJob, PayloadTooLarge
from glidemq_orchestrate.wire.call import ask_all
from tests.server.chasquimq.conftest import Raw

HOUR = timedelta(hours=1)


def test_a_job_is_an_entry_with_envelope_and_name(images: ChasquiQueue, raw: Raw) -> None:
    ids = [images.add("resize", {"file": "a"}), images.add("", job_id="b", attempts=3)]
    first, second = raw.stream()
    assert list(first) == [b"d", b"n"]
    assert first[b"n"] == b"resize"
    assert list(second) == [b"d"]  # fact 4
    found = [Envelope.read(entry[b"d"]) for entry in (first, second)]
    assert [envelope.job_id for envelope in found] == ids
    assert re.fullmatch("[0-9A-HJKMNP-TV-Z]{26}", ids[0])
    assert (found[0].data, found[0].retry, found[0].attempt) == ({"file": "a"}, None, 0)
    assert (found[1].data, found[1].retry) == (None, Retry(3))
    now_ms = int(raw.client.time()[0]) * 1000
    assert abs(found[0].created_at_ms - now_ms) < 60_000


def test_one_client_adds_an_id_once_and_another_again(images: ChasquiQueue, raw: Raw, url: str) -> None:
    for data in (1, 2):
        assert images.add("x", data, job_id="same") == "same"
    assert [Envelope.read(entry[b"d"]).data for entry in raw.stream()] == [1]
    with ChasquiQueue("images", url) as other:
        other.add("x", 3, job_id="same")
    assert [Envelope.read(entry[b"d"]).data for entry in raw.stream()] == [1, 3]  # fact 9
    for key in raw.client.keys("*gmo:added*"):
        assert 0 < raw.client.ttl(key) <= 100


def test_many_jobs_keep_their_order(images: ChasquiQueue, raw: Raw) -> None:
    ids = images.add_many(ChasquiJob("x", number) for number in range(450))
    found = [Envelope.read(entry[b"d"]) for entry in raw.stream()]
    assert [envelope.job_id for envelope in found] == ids
    assert [envelope.data for envelope in found] == list(range(450))
    assert images.add_many([]) == []


def test_many_jobs_are_each_added_once(images: ChasquiQueue, raw: Raw) -> None:
    jobs = [ChasquiJob("x" if number % 2 else "", number, f"{number}") for number in range(80)]
    for _ in range(2):
        assert images.add_many([*jobs, jobs[-1]])[-2:] == ["79", "79"]
    first, *_, last = raw.stream()
    assert (len(raw.stream()), list(first), last[b"n"]) == (80, [b"d"], b"x")


def test_a_call_that_is_repeated_adds_no_more_jobs(images: ChasquiQueue, raw: Raw) -> None:
    profile = Profile.FULL if images.serves_chasquimq() else Profile.OWN
    producer = Producer(ChasquiKeys("images"), "p", None, 0)
    calls = producer.calls(producer.pack([ChasquiJob("x")] * 600, 1), profile)
    for _ in range(2):  # as the driver does after a broken connection
        images._run(ask_all(calls))
    assert len(raw.stream()) == 600
    assert all(0 < raw.client.ttl(key) <= 100 for key in raw.client.keys("*gmo:call*"))


def test_a_delayed_job_waits_in_the_sorted_set(images: ChasquiQueue, raw: Raw) -> None:
    backoff = ChasquiBackoff("fixed", 0.25)
    images.add("later", {"z": 2}, job_id="dj-1", delay=60, backoff=backoff)
    ((member, score),) = raw.client.zrange(raw.key("delayed"), 0, -1, withscores=True)
    assert member[:9] == bytes.fromhex("050000006c61746572")
    envelope = Envelope.read(member[9:])
    assert (envelope.job_id, envelope.data) == ("dj-1", {"z": 2})
    assert envelope.retry == Retry(None, StoredBackoff("fixed", 250))
    assert score == envelope.created_at_ms + 60_000
    assert raw.client.get(raw.key("didx:dj-1")) == member
    assert raw.client.get(raw.key("dlid:dj-1")) == b"1"
    assert all(3655 < raw.client.ttl(raw.key(f"{kind}:dj-1")) <= 3660 for kind in ("didx", "dlid"))


def test_a_delayed_id_is_added_once_until_it_is_cancelled(images: ChasquiQueue, raw: Raw, url: str) -> None:
    with ChasquiQueue("images", url) as other:  # facts 11 and 12
        images.add("later", 1, job_id="a", delay=60)
        assert other.add("later", 2, job_id="a", delay=5) == "a"
        ((member, _),) = raw.client.zrange(raw.key("delayed"), 0, -1, withscores=True)
        assert Envelope.read(member[9:]).data == 1
        assert other.cancel("a")
        assert raw.keys() == set()
        assert not images.cancel("a")
        images.add("later", 3, job_id="a", delay=60)
        assert images.counts().delayed == 1


def test_a_delayed_job_without_an_id_cannot_be_cancelled(images: ChasquiQueue, raw: Raw) -> None:
    job_id = images.add("later", delay=60)  # fact 13
    assert not images.cancel(job_id)
    assert raw.keys() == {"delayed"}


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "a blank id": ({"job_id": " "}, InvalidJob),
    "an empty id": ({"job_id": ""}, InvalidJob),
    "a long name": ({"name": "é" * 129}, InvalidJob),
    "a surrogate": ({"name": "\ud800"}, InvalidJob),
    "no attempt": ({"attempts": 0}, InvalidJob),
    "too many attempts": ({"attempts": 2**32}, InvalidJob),
    "a negative delay": ({"delay": -1}, InvalidJob),
    "a long delay": ({"delay": timedelta(days=31)}, InvalidJob),
    "a set": ({"data": {1}}, EncodeError),
    "large data": ({"data": "x" * 1_048_576}, PayloadTooLarge),
    "another backoff": ({"backoff": 5}, InvalidJob),
}


def test_what_cannot_be_stored_is_refused(images: ChasquiQueue, raw: Raw, subtests: pytest.Subtests) -> None:
    for what, (options, error) in BAD.items():
        with subtests.test(what=what), pytest.raises(error):
            images.add(**{"name": "x", **options})
    with pytest.raises(EncodeError):  # all or none of what was not sent
        images.add_many([ChasquiJob("x", 1), ChasquiJob("x", {1})])  # type: ignore[arg-type]
    assert raw.keys() == set()


def test_the_longest_delay_is_an_option(url: str) -> None:
    with ChasquiQueue("images", url, max_delay=HOUR) as queue:
        queue.add("x", delay=HOUR)
        with pytest.raises(InvalidJob, match="longer than max_delay"):
            queue.add("x", delay=HOUR * 2)


def test_a_stream_can_be_kept_whole(url: str, raw: Raw) -> None:
    with ChasquiQueue("images", url, max_waiting=10) as queue:
        queue.add_many([ChasquiJob("x")] * 500)
        assert len(raw.stream()) < 500
        raw.client.delete(raw.key("stream"))
    with ChasquiQueue("images", url, max_waiting=None) as queue:
        queue.add_many([ChasquiJob("x")] * 500)
        assert len(raw.stream()) == 500


def test_whether_workers_of_chasquimq_can_run_is_known(images: ChasquiQueue, raw: Raw, url: str) -> None:
    info = raw.client.info("server")
    is_full = "valkey_version" not in info and tuple(map(int, info["redis_version"].split(".")[:2])) >= (8, 6)
    assert images.serves_chasquimq() == is_full
    with ChasquiQueue("images", url, require_chasquimq=True) as queue:
        if is_full:
            queue.add("x")
        else:
            with pytest.raises(ConfigurationError, match=r"need Redis 8\.6 or newer\. Fix:"):
                queue.add("x")
            assert raw.keys() == set()


def test_the_twin_does_the_same(url: str, raw: Raw) -> None:
    async def use() -> list[Any]:
        async with AsyncChasquiQueue("images", url) as queue:
            await queue.add("x", 1, job_id="a")
            await queue.add("x", 2, job_id="a")
            return [await queue.counts(), [event async for event in queue.events(idle_timeout=0.01)]]

    counts, events = asyncio.run(use())
    assert (counts.waiting, events, len(raw.stream())) == (1, [], 1)
