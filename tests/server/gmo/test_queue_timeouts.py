"""A queue timeout concerns a node that no worker has begun."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from glidemq_orchestrate import FlowNode, JobOptions
from glidemq_orchestrate.attempts import upkeep
from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.flows.home import expire_due

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

REASON = "queue timeout: no worker of queue etl began it within 1 s"


def submit(bench: Bench, options: JobOptions | None = None) -> None:
    node = FlowNode(
        "a", queue="etl", job="work", options=options or JobOptions(), queue_timeout=timedelta(seconds=1)
    )
    bench.submit(node)


def expire(bench: Bench) -> None:
    bench.now += 1_000
    bench.call(expire_due(bench.etl, bench.now))


def test_one_that_was_begun_and_runs_on_later_has_met_it(bench: Bench) -> None:
    submit(bench)
    bench.exchange(Outcome(bench.begin(), Kind.LATER, first=bench.now + 10_000))
    expire(bench)
    assert bench.job("f~a")["state"] == "delayed"


def test_one_that_was_begun_has_met_it_whoever_gives_it_back(bench: Bench) -> None:
    submit(bench)
    bench.exchange(Outcome(bench.begin(), Kind.LATER, first=bench.now + 10))
    bench.now += 10
    bench.exchange(Outcome(bench.begin(), Kind.LATER, first=bench.now + 10_000, second=UNBEGUN))
    expire(bench)
    assert bench.job("f~a")["state"] == "delayed"


def test_one_that_a_worker_without_its_handler_has_given_back_has_not(bench: Bench) -> None:
    submit(bench)
    bench.exchange(Outcome(bench.begin(), Kind.LATER, first=bench.now + 10_000, second=UNBEGUN))
    expire(bench)
    assert bench.job("f~a")["failedReason"] == REASON


def test_one_whose_worker_died_has_met_it(bench: Bench) -> None:
    submit(bench, JobOptions(lifo=True))
    bench.begin()
    bench.now += 500
    bench.call(upkeep.reclaim_jobs(bench.etl, "w", lock_ms=100, max_stalled=3, now_ms=bench.now))
    assert bench.job("f~a")["state"] == "waiting"
    expire(bench)
    assert bench.job("f~a")["state"] == "waiting"


def test_one_that_was_given_back_has_not(bench: Bench) -> None:
    submit(bench)
    bench.exchange(Outcome(bench.begin(), Kind.BACK))
    expire(bench)
    assert bench.job("f~a")["failedReason"] == REASON
