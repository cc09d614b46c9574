"""Large results go into the events stream too: it is bounded by bytes, and a full server drains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from glidemq_orchestrate import EventReader, Handlers, JobOptions, JobState, Queue
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES
from tests.conftest import Eventually, RunWorker
from tests.server.lua.servers import load_libraries, running, valkey_binary

T = 1_700_000_000_000
LARGE = MAX_PAYLOAD_BYTES - 2  # with its quotation marks
MAX = 16 * 2**20
SMALL_SERVER = ("--maxmemory", "256mb", "--maxmemory-policy", "noeviction")


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[int]:
    with running(valkey_binary(), tmp_path, *SMALL_SERVER) as port:
        load_libraries(port)
        yield port


def complete(client: Any, function: str, job_id: str, result: str, mode: str = "true") -> None:
    """Add, take and complete a job as a Node worker does."""
    keys = [f"glide:{{q}}:{name}" for name in ("id", "stream", "scheduled", "events")]
    client.fcall("glidemq_addJob", 4, *keys, "n", "{}", "{}", T, 0, 0, "", 0, 0)
    ((_, ((entry, fields),)),) = client.xreadgroup("workers", "c", {keys[1]: ">"}, count=1)
    assert fields["jobId"] == job_id
    done = [f"glide:{{q}}:{name}" for name in ("stream", "completed", "events", f"job:{job_id}")]
    args: list[Any] = [job_id, entry, result, T, "workers"]
    args += ["c", mode, 0, 0] if function.endswith("Next") else [mode, 0, 0]
    client.fcall(function, 5, *done, "glide:{q}:metrics:completed", *args)


def open_jobs(queue: Queue) -> int:
    counts = queue.counts(indexed_only=True)
    return counts[JobState.WAITING] + counts[JobState.ACTIVE]


def held(client: Any) -> int:
    entries = client.xrange("glide:{q}:events")
    return sum(len(value) for _, fields in entries for value in fields.values())


@pytest.mark.parametrize("function", ["glidemq_complete", "glidemq_completeAndFetchNext"])
def test_large_results_bound_the_events_by_bytes(redis_client: Any, url: str, function: str) -> None:
    with Queue("q", url=url) as queue:
        queue.pause()  # the libraries are loaded
    redis_client.xgroup_create("glide:{q}:stream", "workers", "0", mkstream=True)
    for number in range(1, 41):
        complete(redis_client, function, str(number), f'"{number:0{LARGE}}"')
    events = redis_client.xrange("glide:{q}:events")
    results = [fields["returnvalue"] for _, fields in events if fields["event"] == "completed"]
    # The newest are whole, as readers of the wire expect; what is between them is still there.
    assert [int(text[-9:-1]) for text in results] == list(range(26, 41))
    assert {len(text) for text in results} == {MAX_PAYLOAD_BYTES}
    assert held(redis_client) < MAX + 2**20
    assert sum(fields["event"] == "added" for _, fields in events) == 15


def test_large_events_forget_what_the_count_has_trimmed(redis_client: Any, url: str) -> None:
    with Queue("q", url=url) as queue:
        queue.pause()
        redis_client.xgroup_create("glide:{q}:stream", "workers", "0", mkstream=True)
        for number in range(1, 13):
            complete(redis_client, "glidemq_complete", str(number), f'"{number:0{LARGE}}"')
        for _ in range(1300):
            queue.pause()
        assert held(redis_client) < 2**20
        for number in range(13, 60):
            complete(redis_client, "glidemq_complete", str(number), f'"{number:0{LARGE}}"')
    assert redis_client.llen("glide:{q}:gmo:large-events") <= 17
    assert MAX - 2**20 < held(redis_client) < MAX + 2**20


def test_results_of_a_kilobyte_are_kept_as_many_as_ever(redis_client: Any, url: str) -> None:
    with Queue("q", url=url) as queue:
        queue.pause()
    redis_client.xgroup_create("glide:{q}:stream", "workers", "0", mkstream=True)
    for number in range(1, 1201):
        complete(redis_client, "glidemq_complete", str(number), '"' + "x" * 1000 + '"')
    assert redis_client.xlen("glide:{q}:events") >= 1000
    assert redis_client.exists("glide:{q}:gmo:large-events") == 0


def test_reader_that_missed_trimmed_results_gets_a_gap(redis_client: Any, url: str) -> None:
    with Queue("q", url=url) as queue:
        queue.pause()
    redis_client.xgroup_create("glide:{q}:stream", "workers", "0", mkstream=True)
    with EventReader("q", url=url) as reader:
        reader.start()
        for number in range(1, 31):
            complete(redis_client, "glidemq_complete", str(number), f'"{number:0{LARGE}}"')
        assert reader.read()[0].is_gap


@pytest.mark.long
def test_small_server_takes_and_drains_after_400_large_results(
    small_server: int, run_worker: RunWorker, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"valkey://127.0.0.1:{small_server}"
    handlers = Handlers()

    @handlers.handler("grow")
    def grow(_: object) -> str:
        return "x" * LARGE

    run_worker(["q"], handlers, url, concurrency=4)
    with Queue("q", url=url) as queue, redis.Redis(port=small_server) as client:
        for _ in range(4):
            for _ in range(100):
                queue.add("grow", options=JobOptions(remove_on_complete=True))
            eventually(lambda: not open_jobs(queue), timeout=60)
        memory: Any = client.info("memory")
        assert memory["used_memory"] < 100 * 2**20
        assert len(str(queue.add_and_wait("grow", None))) == LARGE
    warned = [record for record in caplog.records if getattr(record, "action", "") == "large_result"]
    assert [record.levelname for record in warned] == ["WARNING"]  # once, not for each of 400
    assert "return their location" in warned[0].getMessage()
