"""In a cluster: bytes that are not UTF-8 find their slot, and one call that fails leaves those elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import JobState, Queue
from glidemq_orchestrate.errors import EncodeError, OutcomeUnknown
from glidemq_orchestrate.io.aio import AsyncDriver
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask_each, command
from tests.conftest import Eventually, RunWorker
from tests.server.connections.topologies import Primaries, running_primaries

QUEUES = ("b", "c", "q")  # one for each primary
LATIN = b"caf\xe9"


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primaries]:
    with running_primaries(tmp_path_factory.mktemp("primaries")) as running:
        yield running


@pytest.fixture
def url(primaries: Primaries) -> str:
    for server in primaries.servers:
        server.client.flushall()
    return primaries.url


class Driven:
    """A driver of either kind."""

    def __init__(self, url: str, kind: str) -> None:
        settings = ConnectionSettings.resolve(url)
        self.runner = asyncio.Runner() if kind == "async" else None
        self.driver: Any = AsyncDriver(settings) if self.runner else SyncDriver(settings)

    def run(self, op: Op[Any]) -> Any:
        return self.runner.run(self.driver.run(op)) if self.runner else self.driver.run(op)

    def close(self) -> None:
        if self.runner:
            self.runner.run(self.driver.aclose())
            self.runner.close()
        else:
            self.driver.close()


@pytest.fixture(params=["sync", "async"])
def driven(request: pytest.FixtureRequest, url: str) -> Iterator[Driven]:
    made = Driven(url, request.param)
    yield made
    made.close()


def calls(*words: str) -> list[Call[Any]]:
    return [
        command("SET", f"glide:{{{queue}}}:x", word, decode=replies.anything)
        for queue, word in zip(QUEUES, words, strict=True)
    ]


def test_a_word_that_cannot_be_sent_is_refused_in_its_place(driven: Driven, primaries: Primaries) -> None:
    first, refused, last = driven.run(ask_each(calls("1", "\ud83d", "3")))
    assert (first, last) == (None, None)
    assert isinstance(refused, EncodeError)
    assert "SET of queue c" in str(refused)
    stored = [primaries.owner(queue).client.get(f"glide:{{{queue}}}:x") for queue in QUEUES]
    assert [bool(text) for text in stored] == [True, False, True]
    assert driven.run(ask_each(calls("\ud83d", "\udfff0\ud800", "\ud83d")))[1].where == "SET of queue c"


def test_a_key_of_any_bytes_finds_its_slot(driven: Driven) -> None:
    name = b"glide:{\xff\xfe}:x".decode("utf-8", "surrogateescape")
    written, read = driven.run(
        ask_each(
            [command("SET", name, name, decode=replies.anything), command("GET", name, decode=replies.text)]
        )
    )
    assert (written, read) == (None, name)


def test_after_a_dropped_connection_reads_are_repeated_and_writes_not(
    driven: Driven, primaries: Primaries
) -> None:
    driven.run(ask_each(calls("1", "2", "3")))
    reads = [command("GET", f"glide:{{{queue}}}:x", decode=replies.text) for queue in QUEUES]
    primaries.owner("c").client.client_kill_filter(_type="normal", skipme=True)
    assert driven.run(ask_each(reads)) == ["1", "2", "3"]
    primaries.owner("c").client.client_kill_filter(_type="normal", skipme=True)
    first, lost, last = driven.run(ask_each(calls("4", "5", "6")))
    assert (first, last) == (None, None)
    assert lost is None or isinstance(lost, OutcomeUnknown)


def test_odd_jobs_of_one_slot_leave_the_others(
    url: str, primaries: Primaries, run_worker: RunWorker, eventually: Eventually
) -> None:
    queues = {name: Queue(name, url) for name in QUEUES}
    bad, good = {}, {}
    for name, queue in queues.items():
        bad[name], good[name] = queue.add("work", 1), queue.add("work", 2)
        odd = {"name": LATIN, "attemptsMade": "x", "opts": '{"gmo":{"flow":"\\ud83d","node":"n"}}'}
        primaries.owner(name).client.hset(f"glide:{{{name}}}:job:{bad[name]}", mapping=odd)
    running = run_worker(QUEUES, {"work": lambda ctx: ctx.data}, url=url)
    for name, queue in queues.items():
        eventually(lambda name=name, queue=queue: queue.get_job(good[name]).state is JobState.COMPLETED)  # type: ignore[misc]
        eventually(lambda queue=queue: [job.id for job in queue.get_jobs(JobState.FAILED)])  # type: ignore[misc]
        assert queue.add_and_wait("work", 3, timeout=timedelta(seconds=5)) == 3
        queue.close()
    assert running.error is None
