"""Each function about attempts by itself: what it does, what it refuses, and that a repeat does no harm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts import upkeep
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.flows.staged.changes import cancel_flow
from glidemq_orchestrate.flows.staged.submit import advance_flow, retry_flow
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
STREAM = "glide:{etl}:stream"


def a_job(bench: Bench, job_id: str = "j", **options: Any) -> str:
    options_ = JobOptions(job_id=job_id, **options)
    return str(bench.call(add_job_call(ETL, "work", "1", options_, bench.now)))


class TestBeginning:
    def test_it_begins_an_attempt_and_a_repeat_returns_the_same(self, bench: Bench) -> None:
        a_job(bench)
        attempt = bench.begin()
        assert (attempt.job_id, attempt.processed_on, attempt.data) == ("j", "1000000", "1")
        assert bench.job("j")["state"] == "active"
        before = bench.dump()
        assert bench.exchange(wanted=1, again=True).fetched == [attempt]
        assert bench.dump() == before

    @pytest.mark.parametrize("lifo", [False, True])
    def test_another_token_does_not_get_a_held_job(self, bench: Bench, lifo: bool) -> None:  # noqa: FBT001
        a_job(bench, lifo=lifo)
        bench.begin()
        before = bench.dump()
        assert bench.exchange(wanted=1).fetched == []
        assert bench.exchange(wanted=1, again=True).fetched == []
        assert bench.dump() == before

    def test_the_entry_of_a_held_job_that_is_delivered_again_is_left_alone(self, bench: Bench) -> None:
        """As after another client has made the group again."""
        a_job(bench)
        attempt = bench.begin()
        bench.client.xgroup_destroy(STREAM, GROUP)
        bench.client.xgroup_create(STREAM, GROUP, "0")
        before = bench.job("j")
        assert bench.exchange(wanted=1).fetched == []
        assert (bench.job("j"), bench.pending(), bench.client.xlen(STREAM)) == (before, 1, 1)
        bench.finish(attempt)
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 0)

    @pytest.mark.parametrize("earlier", [None, "1-1"])
    def test_the_entry_of_a_job_that_a_node_worker_runs_is_left_alone(
        self, bench: Bench, earlier: str | None
    ) -> None:
        a_job(bench)
        bench.client.hset("glide:{etl}:job:j", mapping={"state": "active", "processedOn": 1})
        if earlier:
            bench.client.hset("glide:{etl}:job:j", "gmo:entry", earlier)
        before = bench.job("j")
        assert bench.exchange(wanted=1).fetched == []
        assert bench.job("j") == before
        assert (bench.pending(), bench.client.xlen(STREAM)) == (1, 1)

    @pytest.mark.parametrize("lifo", [False, True])
    def test_a_second_entry_of_a_job_that_runs_is_thrown_away(self, bench: Bench, lifo: bool) -> None:  # noqa: FBT001
        a_job(bench, lifo=lifo)
        attempt = bench.begin()
        own = int(not lifo)  # what comes from a list has no entry
        bench.client.xadd(STREAM, {"jobId": "j", "name": "work"})
        answer = bench.exchange(wanted=1)
        assert (answer.fetched, answer.troubles) == ([], [])
        assert (bench.pending(), bench.client.xlen(STREAM)) == (own, own)
        assert bench.finish(attempt) == []

    def test_a_missing_job_leaves_no_entry(self, bench: Bench) -> None:
        a_job(bench)
        bench.client.delete("glide:{etl}:job:j")
        assert bench.exchange(wanted=1).fetched == []
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 0)
        assert not bench.client.exists("glide:{etl}:job:j")

    @pytest.mark.parametrize("state", ["completed", "failed", "delayed", "waiting-children"])
    def test_a_stray_entry_starts_nothing(self, bench: Bench, state: str) -> None:
        a_job(bench)
        bench.client.hset("glide:{etl}:job:j", "state", state)
        before = bench.job("j")
        assert bench.exchange(wanted=1).fetched == []
        assert bench.job("j") == before
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 0)

    def test_an_entry_that_was_taken_back_is_replaced_by_one(self, bench: Bench) -> None:
        a_job(bench)
        old = bench.take()
        assert bench.reclaim() == []
        answer = bench.exchange(wanted=2)
        assert [attempt.job_id for attempt in answer.fetched] == ["j"]
        assert answer.fetched[0].entry_id != old
        assert (bench.pending(), bench.client.xlen(STREAM)) == (1, 1)

    def test_an_entry_that_a_node_worker_holds_is_not_begun(self, bench: Bench) -> None:
        a_job(bench)
        bench.take()
        before = bench.dump()
        assert bench.exchange(wanted=1).fetched == []
        assert bench.dump() == before

    def test_a_revoked_job_fails(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"))
        bench.client.hset("glide:{etl}:job:f~a", "revoked", "1")
        assert bench.exchange(wanted=1).fetched == []
        assert bench.job("f~a")["failedReason"] == "revoked"
        assert bench.job("f~b")["failedReason"] == "upstream failed: a"
        assert bench.record()["state"] == "failed"
        assert bench.pending() == 0

    def test_an_expired_job_fails(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"))
        bench.client.hset("glide:{etl}:job:f~a", "expireAt", bench.now - 1)
        assert bench.exchange(wanted=1).fetched == []
        assert bench.job("f~a")["failedReason"] == "expired"
        assert bench.job("f~b")["failedReason"] == "upstream failed: a"
        assert bench.record()["state"] == "failed"
        assert bench.pending() == 0


class TestFinishing:
    def test_a_result_is_taken_once_and_releases_what_waited(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"), node("c", "a", queue="spark"), node("d", "b", "c"))
        attempt = bench.begin()
        bench.now += 500
        assert bench.finish(attempt, '{"x":1}') == []
        job = bench.job("f~a")
        assert (job["state"], job["returnvalue"], job["finishedOn"]) == ("completed", '{"x":1}', "1000500")
        assert (bench.job("f~b")["state"], bench.job("f~c", "spark")["state"]) == ("waiting", "waiting")
        assert bench.job("f~d")["state"] == "waiting-children"
        assert bench.record()["completed"] == "1"
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 1)
        assert bench.client.zscore("glide:{etl}:completed", "f~a") == bench.now
        assert ("completed", "f~a") in bench.events()
        assert bench.stale(Outcome(attempt, Kind.DONE, '{"x":1}'))

    def test_the_last_result_ends_the_flow(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"))
        bench.finish(bench.begin())
        assert (bench.record()["state"], bench.events()[-1]) == ("completed", ("flow.completed", "f"))

    @pytest.mark.parametrize(
        "change", [{"gmo:token": "x"}, {"processedOn": "7"}, {"state": "waiting"}, {"state": "failed"}]
    )
    def test_a_worker_that_does_not_own_the_job_is_refused(
        self, bench: Bench, change: dict[str, str]
    ) -> None:
        a_job(bench)
        attempt = bench.begin()
        bench.client.hset("glide:{etl}:job:j", mapping=change)
        assert bench.stale(*(Outcome(attempt, kind, "1", "", 1) for kind in Kind))
        before = bench.dump()
        assert bench.heartbeat(attempt) == -1
        assert bench.dump() == before
        assert bench.refused(attempt_calls.progress(attempt, ETL, "1", bench.now)) == "GMO_STALE"

    def test_a_missing_job_is_refused(self, bench: Bench) -> None:
        a_job(bench)
        attempt = bench.begin()
        bench.client.delete("glide:{etl}:job:j")
        assert bench.stale(Outcome(attempt, Kind.DONE, "1"))


class TestFailing:
    def test_a_failure_with_attempts_left_is_tried_again_later(self, bench: Bench) -> None:
        a_job(bench, attempts=2)
        attempt = bench.begin()
        assert bench.fail(attempt, 2, 300) == ("retrying", [])
        job = bench.job("j")
        assert (job["state"], job["attemptsMade"], job["failedReason"]) == ("delayed", "1", "boom")
        assert bench.client.zscore("glide:{etl}:scheduled", "j") == bench.now + 300
        assert "gmo:entry" not in job
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 0)
        assert bench.stale(Outcome(attempt, Kind.FAIL, "boom", "", 2, 300))
        bench.now += 300
        assert bench.fail(bench.begin(), 2, 300) == ("failed", [])
        assert bench.job("j")["attemptsMade"] == "2"

    def test_a_final_failure_reaches_every_dependent(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"), node("c", "b", queue="spark"), node("x"))
        attempts = {attempt.node: attempt for attempt in (bench.begin(), bench.begin())}
        word, unsettled = bench.fail(attempts["a"])
        assert word == "failed"
        for flow in unsettled:
            while bench.call(advance_flow(ETL, flow, bench.now)):
                pass
        assert (
            bench.job("f~b")["failedReason"]
            == bench.job("f~c", "spark")["failedReason"]
            == "upstream failed: a"
        )
        record = bench.record()
        assert (record["state"], record["failed"], record["reason"]) == ("running", "3", "a: boom")
        bench.finish(attempts["x"])
        assert (bench.record()["state"], bench.events()[-1]) == ("failed", ("flow.failed", "f"))

    def test_a_wide_failure_is_continued_by_advancing(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), *(node(f"n{n}", "a") for n in range(250)))
        assert bench.fail(bench.begin()) == ("failed", ["f"])
        assert int(bench.record()["failed"]) < 150  # a slice
        assert 1 <= self.rounds(bench) <= 10
        assert (bench.record()["state"], bench.record()["failed"]) == ("failed", "251")

    def test_a_wide_fan_out_is_released_slice_by_slice(self, bench: Bench, node: Any) -> None:
        names = [f"n{n}" for n in range(250)]
        bench.submit(node("a"), *(node(name, "a") for name in names), node("end", *names))
        assert bench.finish(bench.begin()) == ["f"]
        assert bench.client.xlen(STREAM) < 150  # nothing yet, or a slice
        assert 2 <= self.rounds(bench) <= 10
        assert bench.client.xlen(STREAM) == 250
        assert bench.job("f~end")["state"] == "waiting-children"
        assert not bench.client.exists("glide:{etl}:gmo:flow:f:notifying")

    def test_a_cancel_and_a_retry_in_the_middle_of_a_wide_release_lose_no_node(
        self, bench: Bench, node: Any
    ) -> None:
        bench.submit(node("a"), *(node(f"n{n}", "a") for n in range(250)))
        bench.finish(bench.begin())
        bench.call(advance_flow(ETL, "f", bench.now))
        bench.call(cancel_flow(ETL, "f", "stop", bench.now))
        self.rounds(bench)
        assert (bench.record()["state"], bench.client.xlen(STREAM)) == ("cancelled", 0)

        bench.call(retry_flow(ETL, "f", bench.now))
        self.rounds(bench)
        assert {bench.job(f"f~n{n}")["state"] for n in range(250)} == {"waiting"}
        assert bench.client.xlen(STREAM) == 250

    def test_a_failure_that_was_undone_blocks_no_dependent_later(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), *(node(f"n{n}", "a") for n in range(250)))
        bench.fail(bench.begin())
        bench.call(cancel_flow(ETL, "f", "stop", bench.now))
        self.rounds(bench)
        bench.call(retry_flow(ETL, "f", bench.now))
        self.rounds(bench)
        bench.finish(bench.begin())
        self.rounds(bench)
        assert {bench.job(f"f~n{n}")["state"] for n in range(250)} == {"waiting"}

    @staticmethod
    def rounds(bench: Bench) -> int:
        """Advance until nothing is left; how many calls that took."""
        count = 1
        while bench.call(advance_flow(ETL, "f", bench.now)):
            count += 1
        return count


class TestHolding:
    def test_a_sign_of_life_is_kept_and_returns_a_revocation(self, bench: Bench) -> None:
        a_job(bench)
        attempt = bench.begin()
        assert bench.heartbeat(attempt, 7) == 1
        assert bench.job("j")["lastActive"] == "1000007"
        bench.client.hset("glide:{etl}:job:j", "revoked", "1")
        assert bench.heartbeat(attempt, 8) == 0

    def test_progress_is_kept_and_emitted(self, bench: Bench) -> None:
        a_job(bench)
        attempt = bench.begin()
        assert bench.call(attempt_calls.progress(attempt, ETL, "[1]", bench.now + 7)) == 1
        job = bench.job("j")
        assert (job["progress"], job["lastActive"]) == ("[1]", "1000007")
        assert bench.events()[-1] == ("progress", "j")

    def test_a_job_that_is_given_back_waits_as_before(self, bench: Bench) -> None:
        a_job(bench)
        before = bench.job("j")
        attempt = bench.begin()
        back = Outcome(attempt, Kind.BACK)
        assert bench.hand_in(back) == ("ok", [])
        assert bench.job("j") == before | {"gmo:epoch": str(attempt.epoch)}
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 1)
        assert bench.stale(back)
        assert bench.begin().attempts_made == 0


class TestReclaiming:
    def test_a_job_without_a_sign_of_life_waits_again(self, bench: Bench) -> None:
        a_job(bench)
        attempt = bench.begin()
        bench.now += 1000
        assert bench.reclaim() == []
        job = bench.job("j")
        assert (job["state"], job["stalledCount"], job["attemptsMade"]) == ("waiting", "1", "0")
        assert bench.events()[-1] == ("stalled", "j")
        assert bench.stale(Outcome(attempt, Kind.DONE, "1"))
        assert bench.begin().attempts_made == 0

    def test_a_job_with_a_sign_of_life_is_left_alone(self, bench: Bench) -> None:
        a_job(bench)
        attempt = bench.begin()
        bench.now += 999
        bench.reclaim()
        assert bench.job("j")["state"] == "active"
        assert bench.heartbeat(attempt) == 1
        bench.now += 999
        bench.reclaim()
        assert bench.finish(attempt) == []
        assert bench.pending() == 0

    def test_a_node_that_is_lost_too_often_fails_with_its_dependents(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"))
        for _ in range(2):
            bench.begin()
            bench.now += 1000
            assert bench.reclaim(max_stalled=2) == []
        bench.begin()
        bench.now += 1000
        assert bench.reclaim(max_stalled=2) == []
        assert bench.job("f~a")["failedReason"] == "job stalled more than maxStalledCount"
        assert bench.job("f~b")["failedReason"] == "upstream failed: a"
        assert bench.record()["state"] == "failed"
        assert bench.pending() == 0

    @pytest.mark.parametrize("state", ["completed", "failed"])
    def test_a_job_that_has_ended_is_not_brought_back(self, bench: Bench, state: str) -> None:
        a_job(bench)
        bench.take()
        bench.client.hset("glide:{etl}:job:j", "state", state)
        bench.now += 10_000
        bench.reclaim()
        assert bench.job("j")["state"] == state
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 0)

    @pytest.mark.parametrize("state", ["delayed", "waiting-children"])
    def test_a_job_that_waits_for_something_else_is_not_started_early(self, bench: Bench, state: str) -> None:
        a_job(bench)
        bench.take()
        bench.client.hset("glide:{etl}:job:j", "state", state)
        bench.now += 10_000
        bench.reclaim()
        assert bench.job("j")["state"] == state
        assert (bench.pending(), bench.client.xlen(STREAM)) == (0, 0)

    def test_it_needs_a_group(self, bench: Bench) -> None:
        bench.client.delete(STREAM)
        call: Any = upkeep.reclaim_jobs(ETL, "w", lock_ms=1, max_stalled=1, now_ms=bench.now)
        assert "NOGROUP" in str(bench.hand.answer(call))
