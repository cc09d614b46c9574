"""Every job that fails for good gets its dead letter, once, whichever process dies on the way."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, JobOptions
from glidemq_orchestrate.attempts import dead_letters as dead_letters_ops
from glidemq_orchestrate.attempts import upkeep
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.queues import dead_letters
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL, SPARK = QueueKeys("glide", "etl"), QueueKeys("glide", "spark")
NOTES = "glide:{etl}:gmo:letters"


@pytest.fixture(autouse=True)
def wanted(bench: Bench) -> None:
    """The dead letters of ``etl`` go to ``spark``."""
    bench.hand.run(dead_letters.set_queue(ETL, "spark"))


def add(bench: Bench, data: Any = None, **options: Any) -> JobId:
    return bench.hand.run(add_job(ETL, NewJob("work", data, options=JobOptions(**options)), bench.now))


def someone_reclaims(bench: Bench) -> None:
    bench.hand.run(upkeep.reclaim(ETL, "other", lock_ms=1000, max_stalled=0, clock=bench))


def letters(bench: Bench) -> list[dict[str, Any]]:
    entries = bench.client.xrange("glide:{spark}:stream")
    return [
        json.loads(bench.client.hget(f"glide:{{spark}}:job:{fields['jobId']}", "data"))
        for _, fields in entries
    ]


def expected(job_id: str, reason: str, attempts: int = 1, data: Any = None) -> dict[str, Any]:
    return {
        "originalQueue": "etl",
        "originalJobId": job_id,
        "data": data,
        "failedReason": reason,
        "attemptsMade": attempts,
    }


def test_a_worker_that_dies_right_after_reporting_loses_no_letter(bench: Bench) -> None:
    job_id = add(bench, {"n": 1})
    assert bench.fail(bench.begin())[0] == "failed"
    someone_reclaims(bench)
    assert letters(bench) == [expected(job_id, "boom", data={"n": 1})]
    assert not bench.client.exists(NOTES)


def test_a_job_that_kills_its_worker_gets_a_letter(bench: Bench) -> None:
    job_id = add(bench)
    bench.begin()
    bench.now += 10_000
    assert bench.reclaim(max_stalled=0) == []
    someone_reclaims(bench)
    assert letters(bench) == [expected(job_id, "job stalled more than maxStalledCount", attempts=0)]


def test_a_job_of_a_list_that_kills_its_worker_gets_a_letter(bench: Bench) -> None:
    job_id = add(bench, lifo=True)
    bench.begin()
    bench.now += 10_000
    someone_reclaims(bench)
    assert [letter["originalJobId"] for letter in letters(bench)] == [job_id]


def test_a_job_that_is_removed_as_it_fails_gets_a_letter(bench: Bench) -> None:
    job_id = add(bench, {"n": 1})
    outcome = Outcome(bench.begin(), Kind.FAIL, "boom", "true 0 0", 1, 0)
    assert bench.hand_in(outcome)[0] == "failed"
    assert bench.job(job_id) == {}
    someone_reclaims(bench)
    assert letters(bench) == [expected(job_id, "boom", data={"n": 1})]


def test_a_job_that_its_retention_removes_gets_a_letter(bench: Bench) -> None:
    first, second = add(bench, 1), add(bench, 2)
    for _ in range(2):
        bench.now += 1
        bench.hand_in(Outcome(bench.begin(), Kind.FAIL, "boom", "count 1 0", 1, 0))
    assert (bench.job(first), bench.job(second)["state"]) == ({}, "failed")
    someone_reclaims(bench)
    assert sorted(letter["data"] for letter in letters(bench)) == [1, 2]


def test_a_large_job_gets_a_letter(bench: Bench) -> None:
    add(bench, "x" * 100_000)
    bench.fail(bench.begin())
    assert len(bench.client.hget(NOTES, "1")) < 100
    someone_reclaims(bench)
    assert [letter["data"] for letter in letters(bench)] == ["x" * 100_000]


@pytest.mark.parametrize("delay", [0, 1])
def test_a_job_that_expires_gets_a_letter(bench: Bench, delay: int) -> None:
    add(bench, ttl=timedelta(milliseconds=5), delay=timedelta(milliseconds=delay))
    bench.now += 10_000
    assert bench.exchange(wanted=1).fetched == []
    someone_reclaims(bench)
    assert [letter["failedReason"] for letter in letters(bench)] == ["expired"]


def test_a_node_that_is_not_begun_in_time_alone_gets_a_letter(bench: Bench, node: Any) -> None:
    bench.submit(FlowNode("a", queue="etl", job="work", queue_timeout=timedelta(seconds=1)), node("b", "a"))
    bench.now += 10_000
    bench.hand.run(upkeep.upkeep([ETL], bench))
    someone_reclaims(bench)
    assert [letter["originalJobId"] for letter in letters(bench)] == ["f~a"]
    assert bench.record()["state"] == "failed"


def test_a_suspended_job_whose_time_has_passed_gets_a_letter(bench: Bench) -> None:
    job_id = add(bench)
    assert bench.hand_in(Outcome(bench.begin(), Kind.SUSPEND, "wait", first=5))[0] == "ok"
    bench.now += 10_000
    bench.hand.run(upkeep.upkeep([ETL], bench))
    someone_reclaims(bench)
    assert [letter["originalJobId"] for letter in letters(bench)] == [job_id]


def test_a_failure_with_a_retry_left_gets_no_letter(bench: Bench) -> None:
    add(bench, attempts=2)
    assert bench.fail(bench.begin(), attempts=2)[0] == "retrying"
    assert not bench.client.exists(NOTES)


def test_a_job_that_was_retried_gets_none_and_its_next_failure_one(bench: Bench) -> None:
    job_id = add(bench)
    bench.fail(bench.begin())
    bench.raw("gmo_retry_jobs", [ETL.key("id")], bench.now, job_id)
    someone_reclaims(bench)
    assert (letters(bench), bench.client.exists(NOTES)) == ([], 0)
    for _ in range(2):
        bench.now += 1
        bench.fail(bench.begin())
        someone_reclaims(bench)
        bench.raw("gmo_retry_jobs", [ETL.key("id")], bench.now, job_id)
    assert len(letters(bench)) == 2


def test_a_letter_whose_writing_is_cut_off_anywhere_is_written_once(bench: Bench) -> None:
    for n in range(3):
        add(bench, n)
        bench.fail(bench.begin())
    for calls in range(1, 20):
        bench.hand.run_until(dead_letters_ops.write_noted([ETL], bench), calls)
    bench.hand.run(dead_letters_ops.write_noted([ETL], bench))
    assert sorted(letter["data"] for letter in letters(bench)) == [0, 1, 2]
    assert not bench.client.exists(NOTES)


def test_letters_that_cannot_be_written_wait(bench: Bench) -> None:
    job_id = add(bench)
    bench.fail(bench.begin())
    bench.client.rename("glide:{spark}:stream", "glide:{etl}:log:aside")
    bench.client.set("glide:{spark}:stream", "no stream")
    with pytest.raises(GlideMQError):
        someone_reclaims(bench)
    assert bench.client.hkeys(NOTES) == [job_id]


def test_data_that_is_not_json_is_left_out_and_holds_up_no_other(bench: Bench) -> None:
    broken, fine = add(bench, 1), add(bench, 2)
    bench.fail(bench.begin())
    bench.fail(bench.begin())
    bench.client.hset(f"glide:{{etl}}:job:{broken}", "data", "{")
    bench.client.hset(f"glide:{{etl}}:job:{broken}", "attemptsMade", "9" * 5000)
    someone_reclaims(bench)
    found = {letter["originalJobId"]: letter["data"] for letter in letters(bench)}
    assert found == {broken: None, fine: 2}


def test_a_queue_that_wants_no_letters_any_more_keeps_no_notes(bench: Bench) -> None:
    add(bench)
    bench.fail(bench.begin())
    bench.hand.run(dead_letters.set_queue(ETL, None))
    someone_reclaims(bench)
    assert (letters(bench), bench.client.exists(NOTES)) == ([], 0)
    add(bench)
    bench.fail(bench.begin())
    assert not bench.client.exists(NOTES)


def test_a_key_that_holds_something_else_stops_no_failure(bench: Bench, node: Any) -> None:
    bench.submit(node("a"), node("b", "a"))
    bench.client.set(NOTES, "no hash")
    assert bench.fail(bench.begin())[0] == "failed"
    assert (bench.record()["state"], bench.record()["failed"]) == ("failed", "2")
