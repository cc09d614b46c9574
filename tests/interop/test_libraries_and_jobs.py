"""Facts 1 to 13 of the client specification: libraries, payloads, options, ids, deduplication."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Backoff, Deduplication, EmbeddedServer, JobOptions, JobState, NewJob, Queue
from glidemq_orchestrate.clients.servers import source
from glidemq_orchestrate.errors import InvalidJob, JobSkipped, PayloadTooLarge

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.node import Node


def test_fact_1_a_node_client_finds_its_version_and_loads_nothing(node: Node) -> None:
    assert node.fcall("glidemq_version", []) == "93"


def test_fact_2_a_library_that_another_client_loaded_is_left_alone() -> None:
    from redis import Redis  # noqa: PLC0415

    theirs = source("glidemq") + "\n-- loaded by a Node client\n"
    with (
        EmbeddedServer() as server,
        Redis.from_url(server.url.replace("valkey://", "redis://"), decode_responses=True) as client,
        Queue("q", server.url) as queue,
    ):
        client.function_load(theirs)
        queue.add("work")
        (library,) = client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "glidemq", "WITHCODE")
        assert library["library_code"] == theirs


def test_fact_3_a_job_of_ours_is_what_a_node_worker_expects(node: Node, queue: Queue) -> None:
    job_id = queue.add("work", {"a": 1})
    taken = node.take()
    assert taken is not None
    assert (taken.id, json.loads(taken.fields["data"]), taken.fields["opts"]) == (job_id, {"a": 1}, "{}")
    assert taken.fields["attemptsMade"] == "0"


def test_fact_4_a_handler_without_a_result_stores_null(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    job_id = node.add()
    run_worker(["q"], {"work": lambda ctx: None})
    eventually(lambda: node.job(job_id).get("state") == "completed")
    assert node.job(job_id)["returnvalue"] == "null"


TRICKY = 'è "quoted" \n and \u2028 and 🛫'


def test_fact_5_texts_travel_both_ways(
    node: Node, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    ours = queue.add("work", {"text": TRICKY})
    taken = node.take()
    assert taken is not None
    assert json.loads(taken.fields["data"]) == {"text": TRICKY}
    assert "è" in taken.fields["data"], "compact JSON leaves it unescaped"
    node.complete(taken, json.dumps(TRICKY, ensure_ascii=False))
    assert queue.get_job(ours).result == TRICKY
    theirs = node.add(data=json.dumps(TRICKY, ensure_ascii=False))
    run_worker(["q"], {"work": lambda ctx: ctx.data})
    eventually(lambda: node.job(theirs).get("state") == "completed")
    assert json.loads(node.job(theirs)["returnvalue"]) == TRICKY


def test_fact_6_compressed_payloads_travel_both_ways(
    node: Node, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    packed = "gz:" + base64.b64encode(gzip.compress(b'{"a":1}')).decode()
    theirs = node.add(data=packed)
    run_worker(["q"], {"work": lambda ctx: ctx.data})
    eventually(lambda: node.job(theirs).get("state") == "completed")
    assert node.job(theirs)["returnvalue"] == '{"a":1}'
    with Queue("q", url, compression="gzip") as queue:
        ours = queue.add("other", {"b": 2}, options=JobOptions(delay=timedelta(hours=1)))
        stored = node.job(ours)["data"]
        assert stored.startswith("gz:")
        assert gzip.decompress(base64.b64decode(stored[3:])) == b'{"b":2}'
        assert queue.get_job(ours).data == {"b": 2}


def test_fact_7_a_payload_has_a_limit_to_the_byte(node: Node, queue: Queue) -> None:
    assert queue.add("work", "è" * 524_287)  # with its quotes 1,048,576 bytes
    before = sorted(node.client.keys("*"))
    with pytest.raises(PayloadTooLarge, match="1,048,577 bytes"):
        queue.add("work", "è" * 524_287 + "x")
    assert sorted(node.client.keys("*")) == before


def test_fact_8_a_node_worker_retries_a_job_of_ours(node: Node, queue: Queue) -> None:
    job_id = queue.add("work", options=JobOptions(attempts=3))
    answers = []
    for _ in range(3):
        taken = node.take()
        assert taken is not None
        answers.append(node.fail(taken))
        node.promote()
    assert answers == ["retrying", "retrying", "failed"]
    assert node.job(job_id)["attemptsMade"] == "3"


def test_fact_9_the_pause_between_attempts_doubles(
    node: Node, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Any) -> None:
        raise ValueError

    backoff = Backoff("exponential", timedelta(milliseconds=100))
    job_id = queue.add("work", options=JobOptions(attempts=4, backoff=backoff))
    run_worker(["q"], {"work": work})
    eventually(lambda: node.job(job_id)["state"] == "failed", timeout=20)
    assert [event["delay"] for event in node.events() if event["event"] == "retrying"] == [
        "100",
        "200",
        "400",
    ]


def test_fact_10_an_own_id_exists_once(node: Node, queue: Queue) -> None:
    assert node.add(opts={"jobId": "mine"}) == "mine"
    with pytest.raises(InvalidJob, match="'mine' already exists"):
        queue.add("work", options=JobOptions(job_id="mine"))
    assert queue.add("work", options=JobOptions(job_id="ours")) == "ours"
    assert node.add(opts={"jobId": "ours"}) == "duplicate"
    assert node.client.xlen("glide:{q}:stream") == 2


def test_fact_11_an_automatic_id_follows_the_largest_number(node: Node, queue: Queue) -> None:
    assert queue.add("work", options=JobOptions(job_id="500")) == "500"
    assert queue.add("work") == "501"
    assert queue.add_many([NewJob("work")]) == ["502"]
    assert node.add() == "503"


def test_fact_12_deduplication_ends_with_the_job(node: Node, queue: Queue) -> None:
    again = JobOptions(deduplication=Deduplication("D"))
    assert node.dedup("D", "simple") == "1"
    with pytest.raises(JobSkipped):
        queue.add("work", options=again)
    taken = node.take()
    assert taken is not None
    node.complete(taken)
    assert queue.add("work", options=again)
    assert node.dedup("D", "simple") == "skipped"


def test_fact_13_a_debounced_job_replaces_the_delayed_one(node: Node, queue: Queue) -> None:
    first = node.dedup("D", "debounce", opts={"delay": 60_000})
    delayed = JobOptions(delay=timedelta(minutes=1), deduplication=Deduplication("D", "debounce"))
    second = queue.add("work", {"new": True}, options=delayed)
    assert node.job(first) == {}
    assert {"event": "removed", "jobId": first} in node.events()
    assert node.client.zrange("glide:{q}:scheduled", 0, -1) == [second]
    assert queue.get_job(second).state is JobState.DELAYED
