"""The functions for jobs of portable flows: what they end or run again, and what a later round protects."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.flows.generation import flow_status
from glidemq_orchestrate.flows.portable import node_jobs
from glidemq_orchestrate.flows.portable.node_jobs import gate, open_gate
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
JOB = "glide:{etl}:job:j"


@pytest.fixture
def blocked(bench: Bench) -> Bench:
    """A job that a gate holds back."""
    keys = [ETL.key(name) for name in ("id", "stream", "scheduled", "events")]
    bench.raw("glidemq_addFlow", keys, "work", "1", "{}", bench.now, 0, 0, 0, 0, "j", 1, gate(ETL, 0))
    return bench


def end(bench: Bench, how: str, number: int = 0) -> Any:
    return bench.call(node_jobs.end_node(ETL, "j", number, how, "why", bench.now))


def unchanged(bench: Bench, how: str, number: int = 0) -> bool:
    return bool(bench.unchanged(node_jobs.end_node(ETL, "j", number, how, "why", bench.now)) == 0)


class TestEnding:
    def test_one_that_waits_fails(self, blocked: Bench) -> None:
        assert end(blocked, "failed") == 1
        assert (blocked.job("j")["state"], blocked.job("j")["failedReason"]) == ("failed", "why")
        assert blocked.client.zscore("glide:{etl}:failed", "j") == blocked.now
        assert blocked.events()[-1] == ("failed", "j")
        assert unchanged(blocked, "failed")

    def test_one_that_waits_is_skipped(self, blocked: Bench) -> None:
        assert end(blocked, "skipped") == 1
        assert (blocked.job("j")["state"], blocked.job("j")["gmo:skipped"]) == ("completed", "why")
        assert blocked.client.zscore("glide:{etl}:completed", "j") == blocked.now
        assert unchanged(blocked, "cancelled")

    @pytest.mark.parametrize("how", ["failed", "skipped"])
    def test_one_that_was_released_meanwhile_is_left_alone(self, blocked: Bench, how: str) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        assert blocked.job("j")["state"] == "waiting"
        assert unchanged(blocked, how)

    def test_a_cancelled_one_is_taken_out_of_where_it_could_start_from(self, blocked: Bench) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        assert end(blocked, "cancelled") == 1
        assert (blocked.job("j")["state"], blocked.job("j")["revoked"]) == ("failed", "1")
        assert blocked.exchange(wanted=1).fetched == []

    def test_a_cancelled_one_that_runs_loses_its_lease(self, blocked: Bench) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        attempt = blocked.begin()
        assert end(blocked, "cancelled") == 1
        assert blocked.job("j")["state"] == "failed"
        verdict, _ = blocked.hand_in(Outcome(attempt, Kind.DONE, "1"))
        assert verdict.startswith("stale")

    def test_only_one_that_no_worker_has_begun_is_ended_as_unstarted(self, blocked: Bench) -> None:
        assert unchanged(blocked, "unstarted")
        blocked.call(open_gate(ETL, "j", 0))
        attempt = blocked.begin()
        assert unchanged(blocked, "unstarted")
        blocked.exchange(Outcome(attempt, Kind.LATER, first=blocked.now + 1_000, second=UNBEGUN))
        blocked.now += 1_000
        blocked.exchange(Outcome(blocked.begin(), Kind.BACK))
        assert end(blocked, "unstarted") == 1
        assert blocked.job("j")["failedReason"] == "why"

    def test_one_that_was_begun_stays_so_when_another_worker_gives_it_back(self, blocked: Bench) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        blocked.exchange(Outcome(blocked.begin(), Kind.LATER, first=blocked.now + 1_000))
        assert unchanged(blocked, "unstarted")
        blocked.now += 1_000
        blocked.exchange(Outcome(blocked.begin(), Kind.BACK))
        assert unchanged(blocked, "unstarted")

    def test_one_that_waits_for_its_time_is_cancelled(self, bench: Bench) -> None:
        later = JobOptions(job_id="j", delay=timedelta(seconds=60))
        bench.call(add_job_call(ETL, "work", "1", later, bench.now))
        assert end(bench, "cancelled") == 1
        assert bench.client.zcard("glide:{etl}:scheduled") == 0

    def test_one_that_runs_may_be_left_alone(self, blocked: Bench) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        attempt = blocked.begin()
        assert blocked.unchanged(node_jobs.run_again(ETL, "j", 1, 5, only="idle")) == 0
        blocked.client.hset("glide:{etl}:job:j", "gmo:token", f"{attempt.token}+")  # fetched ahead
        assert blocked.call(node_jobs.run_again(ETL, "j", 1, 5, only="idle")) == 1

    def test_a_missing_one_is_not_made(self, bench: Bench) -> None:
        assert unchanged(bench, "failed")


class TestRunningAgain:
    def test_it_waits_behind_the_gate_of_the_round(self, blocked: Bench) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        blocked.finish(blocked.begin())
        assert blocked.call(node_jobs.run_again(ETL, "j", 1, 5)) == 1
        assert (blocked.job("j")["state"], blocked.job("j")["gmo:round"]) == ("waiting-children", "1")
        assert "returnvalue" not in blocked.job("j")
        assert blocked.client.exists("glide:{etl}:completed") == 0
        assert blocked.unchanged(node_jobs.run_again(ETL, "j", 1, 5)) == 1
        blocked.call(open_gate(ETL, "j", 1))
        assert blocked.job("j")["state"] == "waiting"

    @pytest.mark.parametrize("how", ["failed", "skipped", "cancelled"])
    def test_a_decision_of_an_earlier_round_comes_too_late(self, blocked: Bench, how: str) -> None:
        end(blocked, "failed")
        assert blocked.call(node_jobs.run_again(ETL, "j", 2, 5)) == 1
        assert unchanged(blocked, how, 1)
        assert blocked.unchanged(node_jobs.run_again(ETL, "j", 1, 5)) == 1
        assert end(blocked, how, 2) == 1

    def test_one_that_runs_is_taken_from_its_worker(self, blocked: Bench) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        attempt = blocked.begin()
        assert blocked.call(node_jobs.run_again(ETL, "j", 1, 5, request="r", only="open")) == 1
        assert (blocked.job("j")["state"], blocked.job("j")["gmo:requests"]) == ("waiting-children", "r")
        assert blocked.client.xlen("glide:{etl}:stream") == 0
        assert blocked.stale(Outcome(attempt, Kind.DONE, "1"))
        assert blocked.call(node_jobs.end_node(ETL, "j", 1, "completed", '"by hand"', 6)) == 1
        assert blocked.job("j")["returnvalue"] == '"by hand"'
        assert blocked.unchanged(node_jobs.run_again(ETL, "j", 2, 7, only="open")) == 0

    def test_one_that_runs_may_be_left_alone(self, blocked: Bench) -> None:
        blocked.call(open_gate(ETL, "j", 0))
        attempt = blocked.begin()
        assert blocked.unchanged(node_jobs.run_again(ETL, "j", 1, 5, only="idle")) == 0
        blocked.client.hset("glide:{etl}:job:j", "gmo:token", f"{attempt.token}+")  # fetched ahead
        assert blocked.call(node_jobs.run_again(ETL, "j", 1, 5, only="idle")) == 1

    def test_a_missing_one_is_not_made(self, bench: Bench) -> None:
        assert bench.unchanged(node_jobs.run_again(ETL, "j", 1, 5)) == 0


def test_a_client_that_still_names_the_claim_is_refused(bench: Bench, node: Any) -> None:
    call = bench.stage(node("a"))
    keys = ["glide:gmo:home:{f}", *(str(key) for key in call.words[3:5])]
    before = bench.dump()
    with pytest.raises(Exception, match="older than this library"):
        bench.raw("gmo_stage_flow", keys, *call.words[5:])
    assert bench.dump() == before
    assert bench.call(call) == "staging"
    assert bench.call(flow_status(ETL, "f")).state == "staging"
