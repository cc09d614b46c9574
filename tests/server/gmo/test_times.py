"""How long the last run of a job took, whatever ended it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.flows.node_table import flow_nodes
from glidemq_orchestrate.flows.portable import node_jobs
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.job import Job, job_fields
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.status import NodeStatus
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")


def read_node(bench: Bench) -> NodeStatus:
    ((_, found),) = bench.call(flow_nodes(ETL, "f", "0"))[1]
    status: NodeStatus = found
    return status


def read_job(bench: Bench, job_id: str) -> Job:
    return Job.from_wire("etl", bench.call(job_fields(ETL, job_id)))


def lasted(bench: Bench, job_id: str) -> timedelta | None:
    job = read_job(bench, job_id)
    return None if job.started_at is None or job.finished_at is None else job.finished_at - job.started_at


@pytest.mark.parametrize("kind", [Kind.DONE, Kind.SKIP, Kind.FAIL])
def test_an_ended_node_keeps_its_start(bench: Bench, node: Any, kind: Kind) -> None:
    bench.submit(node("a"))
    attempt = bench.begin()
    bench.now += 2000
    bench.hand_in(Outcome(attempt, kind, "1"))
    assert read_node(bench).seconds == 2
    assert lasted(bench, attempt.job_id) == timedelta(seconds=2)


def test_the_last_run_counts(bench: Bench, node: Any) -> None:
    bench.submit(node("a"))
    attempt = bench.begin()
    bench.now += 2000
    assert bench.fail(attempt, attempts=2, backoff_ms=60_000)[0] == "retrying"
    assert read_node(bench).seconds is None
    assert read_job(bench, attempt.job_id).finished_at is None
    bench.now += 60_000
    again = bench.begin()
    bench.now += 3000
    bench.fail(again, attempts=2)
    assert read_node(bench).seconds == 3


def test_a_node_that_stalled_too_often_keeps_its_start(bench: Bench, node: Any) -> None:
    bench.submit(node("a"))
    bench.begin()
    bench.now += 5000
    bench.reclaim(max_stalled=0)
    assert read_node(bench).seconds == 5


def test_what_never_ran_took_no_time(bench: Bench) -> None:
    revoked = bench.hand.run(add_job(ETL, NewJob("work"), bench.now))
    bench.client.hset(ETL.job(revoked), "revoked", "1")
    assert bench.exchange(wanted=1).fetched == []
    ended = bench.hand.run(add_job(ETL, NewJob("work"), bench.now))
    bench.call(node_jobs.fail(ETL, ended, "upstream failed: a", bench.now))  # as on the portable path
    for job_id in (revoked, ended):
        job = read_job(bench, job_id)
        assert (job.state, job.started_at) == ("failed", None)
        assert job.finished_at is not None


def test_the_start_is_not_known_of_a_job_that_failed_with_a_node_worker(bench: Bench) -> None:
    job_id = bench.hand.run(add_job(ETL, NewJob("work"), bench.now))
    entry = bench.take()
    keys = [ETL.job(job_id), ETL.key("stream")]
    bench.raw("glidemq_moveToActive", keys, bench.now, entry, "workers", job_id, "")
    assert bench.job(job_id)["state"] == "active"
    bench.now += 2000
    bench.call(node_jobs.fail(ETL, job_id, "boom", bench.now))
    assert lasted(bench, job_id) is None


def test_a_run_shorter_than_the_clock_is_one(bench: Bench, node: Any) -> None:
    bench.submit(node("a"))
    bench.fail(bench.begin())
    assert read_node(bench).seconds == 0
