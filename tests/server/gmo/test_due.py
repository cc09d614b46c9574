"""What falls due is done by the call that wakes for it; many priorities make no call slower."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions
from glidemq_orchestrate.attempts.exchange import Answer, Kind, Outcome
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.home import expire_due
from glidemq_orchestrate.flows.staged.submit import advance_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.option_values import Ordering, RateLimit, TokenBucket
from glidemq_orchestrate.wire.trips import Trips

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

P = "glide:{etl}:"
SHIFT = 2**42
SECOND = timedelta(seconds=1)


def add(bench: Bench, options: JobOptions | None = None) -> str:
    return str(bench.call(add_job_call(bench.etl, "work", "1", options or JobOptions(), bench.now)))


def wake(bench: Bench, last: Answer, *outcomes: Outcome) -> Answer:
    """The next call, at the time that the last one named."""
    assert last.due_ms > bench.now, "nothing is due later"
    bench.now = last.due_ms
    return bench.exchange(*outcomes, wanted=9)


def scans(bench: Bench) -> int:
    stats = bench.client.info("commandstats").get("cmdstat_zrangebyscore", {"calls": 0})
    return int(stats["calls"])


class TestOnTime:
    """No upkeep runs here: only the calls of a worker that sleeps until the time in the last reply."""

    @pytest.mark.parametrize(
        "limit", [{"rate_limit": RateLimit(1, SECOND / 10)}, {"token_bucket": TokenBucket(1, 10)}]
    )
    def test_jobs_of_a_limited_key(self, bench: Bench, limit: dict[str, RateLimit]) -> None:
        ids = [add(bench, JobOptions(ordering=Ordering("k", **limit))) for _ in range(5)]  # type: ignore[arg-type]
        started, begin = [], bench.now
        answer = bench.exchange(wanted=9)
        while True:
            started += [attempt.job_id for attempt in answer.fetched]
            outcomes = [Outcome(attempt, Kind.DONE, "1") for attempt in answer.fetched]
            answer = bench.exchange(*outcomes, wanted=9)
            assert not answer.fetched
            if len(started) == len(ids):
                break
            answer = wake(bench, answer)
        assert started == ids
        assert bench.now - begin == 400

    def test_a_suspended_job_that_nobody_signals(self, bench: Bench) -> None:
        bench.submit(
            FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl", job="work", after=["a"])
        )
        answer = bench.exchange(Outcome(bench.begin(), Kind.SUSPEND, "", first=500), wanted=9)
        start = bench.now
        wake(bench, answer)
        assert bench.now - start == 500
        assert bench.job("f~a")["failedReason"] == "Suspend timeout exceeded"
        assert bench.record()["state"] == "failed"
        assert bench.job("f~b")["failedReason"] == "upstream failed: a"

    def test_one_that_leaves_a_dead_letter(self, bench: Bench) -> None:
        bench.client.hset(P + "meta", "deadLetterQueueName", "spark")
        job_id = add(bench)
        wake(bench, bench.exchange(Outcome(bench.begin(), Kind.SUSPEND, "", first=500), wanted=9))
        assert bench.client.hkeys(P + "gmo:letters") == [job_id]

    def test_the_deadline_of_a_flow(self, bench: Bench) -> None:
        checked = check_flow(FlowSpec("n", [FlowNode("a", queue="etl", job="work")], deadline=SECOND))
        bench.hand.run(submit_flow("glide", checked, "f", "attach", bench))
        bench.begin()
        start = bench.now
        wake(bench, bench.exchange(wanted=9))
        assert bench.now - start == 1000
        assert bench.record()["state"] == "failed"

    def test_what_a_deadline_stops_ends_at_it_even_by_a_call_made_before_it(self, bench: Bench) -> None:
        nodes = [FlowNode(f"n{number}", queue="etl", job="work") for number in range(60)]
        checked = check_flow(FlowSpec("n", nodes, deadline=SECOND))
        bench.hand.run(submit_flow("glide", checked, "f", "attach", bench))
        made_before = advance_flow(bench.etl, "f", bench.now)
        bench.now += 1000
        bench.call(expire_due(bench.etl, bench.now))
        assert bench.record()["state"] == "running"
        bench.call(made_before)
        assert bench.record()["finished_at"] == str(bench.now)
        assert {bench.job(f"f~{node.name}")["finishedOn"] for node in nodes} == {str(bench.now)}

    def test_a_deadline_counts_from_the_start_and_not_from_the_staging(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Trips, "LONGEST", 2)
        nodes = [FlowNode(f"n{number}", queue="etl", job="work") for number in range(220)]
        checked = check_flow(FlowSpec("n", nodes, deadline=SECOND))
        for _ in bench.hand.steps(submit_flow("glide", checked, "f", "attach", bench)):
            bench.now += 100
        record = bench.record()
        assert int(record["started_at"]) - int(record["created_at"]) >= 200
        due = bench.client.zscore(P + "gmo:due", "flow\nf")
        assert due == int(record["started_at"]) + 1000

    def test_a_queue_timeout_in_another_queue(self, bench: Bench) -> None:
        unserved = FlowNode("b", queue="spark", job="work", queue_timeout=SECOND / 2)
        bench.submit(FlowNode("a", queue="etl", job="work"), unserved)
        start = bench.now
        wake(bench, bench.exchange(wanted=9))
        assert bench.now - start == 500
        assert bench.job("f~b", "spark")["state"] == "failed"

    def test_a_large_group_is_released_in_parts(self, bench: Bench) -> None:
        many = Ordering("k", concurrency=150, rate_limit=RateLimit(150, SECOND))
        for _ in range(300):
            add(bench, JobOptions(ordering=many))
        for wanted in (100, 50):
            done = bench.exchange(wanted=wanted).fetched
            bench.exchange(*(Outcome(attempt, Kind.DONE, "1") for attempt in done))
        answer = bench.exchange(wanted=100)
        assert not answer.fetched
        bench.now = answer.due_ms
        assert len(bench.exchange(wanted=100).fetched) == 100
        assert len(bench.exchange(wanted=100).fetched) == 50


class TestManyPriorities:
    def delay(self, bench: Bench, count: int) -> None:
        """Jobs that are due in an hour, each with a priority of its own."""
        pipe = bench.client.pipeline(transaction=False)
        for priority in range(1, count + 1):
            options = JobOptions(priority=priority, delay=timedelta(hours=1))
            pipe.execute_command(*add_job_call(bench.etl, "work", "1", options, bench.now).words)
        pipe.execute()

    def test_a_call_costs_the_same_with_a_thousand_as_with_twenty(self, bench: Bench) -> None:
        cost = []
        for count in (20, 1_000):
            self.delay(bench, count)
            before = scans(bench)
            bench.exchange(wanted=1)
            add(bench)
            bench.exchange(wanted=1)
            cost.append(scans(bench) - before)
        assert cost[0] == cost[1] < 100

    def test_upkeep_visits_a_part_of_them(self, bench: Bench) -> None:
        self.delay(bench, 700)
        before = scans(bench)
        bench.call(expire_due(bench.etl, bench.now))
        assert scans(bench) - before < 560

    def test_one_that_is_due_behind_many_starts_in_time(self, bench: Bench) -> None:
        self.delay(bench, 40)
        late = add(bench, JobOptions(priority=900, delay=SECOND))
        answer = wake(bench, bench.exchange(wanted=1))
        assert [attempt.job_id for attempt in answer.fetched] == [late]
        assert answer.due_ms == 1_000_000 + 3_600_000

    def test_the_first_priority_starts_first(self, bench: Bench) -> None:
        self.delay(bench, 40)
        ids = {priority: add(bench, JobOptions(priority=priority)) for priority in (900, 70, 2000, 800)}
        begun = [attempt.job_id for attempt in bench.exchange(wanted=9).fetched]
        assert begun == [ids[priority] for priority in sorted(ids)]

    def test_a_retry_is_found(self, bench: Bench) -> None:
        self.delay(bench, 40)
        add(bench, JobOptions(priority=900))
        answer = bench.exchange(Outcome(bench.begin(), Kind.FAIL, "x", "", 3, 700), wanted=9)
        assert [attempt.attempts_made for attempt in wake(bench, answer).fetched] == [1]

    def test_removed_jobs_leave_nothing(self, bench: Bench) -> None:
        self.delay(bench, 40)
        bench.client.delete(P + "scheduled")
        bench.call(expire_due(bench.etl, bench.now))
        assert not bench.client.exists(P + "gmo:priorities")

    def test_removed_jobs_wake_a_worker_once(self, bench: Bench) -> None:
        self.delay(bench, 1)
        bench.client.zrem(P + "scheduled", "1")
        add(bench, JobOptions(priority=2, delay=timedelta(hours=2)))
        answer = wake(bench, bench.exchange(wanted=9))
        assert not answer.fetched
        assert answer.due_ms == 1_000_000 + 2 * 3_600_000

    def test_upkeep_finds_what_upstreams_library_has_scheduled(self, bench: Bench) -> None:
        """It knows nothing of the index."""
        self.delay(bench, 700)
        bench.client.delete(P + "gmo:priorities")
        late = add(bench, JobOptions(priority=650, delay=SECOND))
        bench.client.delete(P + "gmo:priorities")
        bench.now += 1_000
        assert not bench.exchange(wanted=9).fetched
        for _ in range(2):  # 500 priorities a time
            bench.call(expire_due(bench.etl, bench.now))
        assert [attempt.job_id for attempt in bench.exchange(wanted=9).fetched] == [late]

    def test_an_endless_priority_is_no_obstacle(self, bench: Bench) -> None:
        self.delay(bench, 40)
        ready = add(bench, JobOptions(priority=45))
        job_id = add(bench)
        bench.client.zadd(P + "scheduled", {job_id: "inf"})
        bench.call(expire_due(bench.etl, bench.now))
        begun = [attempt.job_id for attempt in bench.exchange(wanted=9).fetched]
        assert ready in begun
        assert not bench.client.zrangebyscore(P + "scheduled", "inf", "inf")
