"""gmo_finish_and_fetch: what it takes, what it gives, and what a lost reply or a rival leaves behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import redis

from glidemq_orchestrate import FlowSpec
from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts.exchange import Answer, Held, Kind, Outcome, Request
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.option_values import Ordering
from glidemq_orchestrate.jobs.options import JobOptions

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

P = "glide:{etl}:"


class Worker:
    """A consumer that exchanges with the queue."""

    def __init__(self, bench: Bench, name: str = "w") -> None:
        self.bench, self.name, self.token = bench, name, 0

    def __call__(self, *outcomes: Outcome, wanted: int = 0, again: bool = False, **kw: Any) -> Answer:
        self.token += not again
        request = Request(outcomes, wanted, f"{self.name}{self.token}", again, **kw)
        call = exchange.finish_and_fetch(self.bench.etl, self.name, request, self.bench.now)
        answer: Answer = self.bench.call(call)
        return answer


def add(bench: Bench, **kw: Any) -> str:
    keys = [P + key for key in ("id", "stream", "scheduled", "events")]
    place = (bench.now, kw.get("delay", 0), kw.get("priority", 0), "", 0)
    order = ("", 0, 0, 0, 0, 0, 0, kw.get("ttl", 0), "", int(kw.get("lifo", False)), "", "", 0)
    args = ("work", str(kw.get("data", 1)), "{}", *place, *order)
    job_id: str = bench.client.fcall("glidemq_addJob", 4, *keys, *args)
    return job_id


@pytest.fixture
def worker(bench: Bench) -> Worker:
    return Worker(bench)


def done(attempt: Attempt, text: str = "1") -> Outcome:
    return Outcome(attempt, Kind.DONE, text)


def fail(attempt: Attempt, attempts: int = 1, backoff: int = 0) -> Outcome:
    return Outcome(attempt, Kind.FAIL, "broken", "", attempts, backoff)


class TestOneCall:
    def test_it_takes_outcomes_and_gives_jobs(self, bench: Bench, worker: Worker) -> None:
        ids = [add(bench, data=number) for number in range(5)]
        first = worker(wanted=3)
        assert [attempt.job_id for attempt in first.fetched] == ids[:3]
        assert [attempt.data for attempt in first.fetched] == ["0", "1", "2"]
        assert (first.verdicts, first.positions) == ([], None)
        one, two, three = first.fetched
        second = worker(done(one, '"x"'), fail(two, 3, 500), Outcome(three, Kind.BACK), wanted=9)
        assert second.verdicts == ["ok", "retrying", "ok"]
        assert [attempt.job_id for attempt in second.fetched] == [*ids[3:], ids[2]]
        assert second.positions is not None
        assert second.due_ms == bench.now + 500
        assert bench.job(ids[0])["returnvalue"] == '"x"'
        assert bench.job(ids[1])["state"] == "delayed"
        assert bench.pending() == 3

    def test_it_asks_little_of_a_queue_with_nothing_but_ready_jobs(
        self, bench: Bench, worker: Worker
    ) -> None:
        def looks(wanted: int) -> tuple[int, dict[str, int]]:
            bench.client.config_resetstat()
            fetched = len(worker(wanted=wanted).fetched)
            stats = bench.client.info("commandstats")
            names = ("exists", "zrange", "zrangebyscore")
            return fetched, {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names}

        worker(wanted=1)
        add(bench)
        assert looks(1) == (1, {"exists": 1, "zrange": 0, "zrangebyscore": 0})
        assert looks(1) == (0, {"exists": 2, "zrange": 0, "zrangebyscore": 0})

    def test_it_gives_what_the_library_of_glide_mq_would_leave(self, bench: Bench, worker: Worker) -> None:
        """The whole keyspace after one job, next to glidemq_moveToActive and glidemq_complete."""
        add(bench)
        worker(done(worker(wanted=1).fetched[0], "null"))
        ours = bench.dump()
        bench.client.flushall()
        add(bench)
        keys = [P + "stream", P + "completed", P + "events", P + "job:1", P + "metrics:completed"]
        bench.client.xgroup_create(P + "stream", "workers", "0")
        entry = bench.client.xreadgroup("workers", "w", {P + "stream": ">"})[0][1][0][0]
        bench.client.fcall(
            "glidemq_moveToActive", 2, P + "job:1", P + "stream", bench.now, entry, "workers", "1"
        )
        bench.client.fcall(
            "glidemq_complete", 5, *keys, "1", entry, "null", bench.now, "workers", 0, 0, 0, "", ""
        )
        theirs = bench.dump()
        for dump in (ours, theirs):
            dump.pop("glide:{spark}:stream", None)
            dump[P + "events"] = [fields for _, fields in dump[P + "events"]]
            for ours_only in ("gmo:token", "gmo:entry", "gmo:epoch"):
                dump[P + "job:1"].pop(ours_only, None)
        assert ours == theirs

    def test_each_activation_has_a_larger_number_which_a_repeat_tells_again(
        self, bench: Bench, worker: Worker
    ) -> None:
        add(bench)
        first = worker(wanted=1).fetched[0]
        assert worker(wanted=1, again=True).fetched[0].epoch == first.epoch
        bench.now -= 500_000  # a worker that has read its clock long ago
        worker(Outcome(first, Kind.BACK))
        second = worker(wanted=1).fetched[0]
        assert time.time() * 1000 - 60_000 < first.epoch < second.epoch < time.time() * 1000 + 60_000

    @pytest.mark.parametrize(
        ("last", "is_next"),
        [("8000000000000", True), ("9007199254740991", False), ("1.5", False), ("x", False), ("-4", False)],
    )
    def test_a_number_that_is_ahead_grows_by_one_and_an_odd_one_is_none(
        self, bench: Bench, worker: Worker, last: str, *, is_next: bool
    ) -> None:
        job_id = add(bench)
        bench.client.hset(f"{P}job:{job_id}", "gmo:epoch", last)
        epoch = worker(wanted=1).fetched[0].epoch
        assert epoch == 8_000_000_000_001 if is_next else abs(epoch - time.time() * 1000) < 60_000

    def test_who_may_not_ask_for_the_time_goes_by_the_clock_of_the_worker(
        self, bench: Bench, worker: Worker
    ) -> None:
        add(bench)
        bench.client.acl_setuser(
            "timeless", enabled=True, nopass=True, keys=["*"], channels=["*"], categories=["+@all"],
            commands=["-time"],
        )  # fmt: skip
        place = {key: bench.client.get_connection_kwargs()[key] for key in ("port", "db")}
        words = exchange.finish_and_fetch(bench.etl, "w", Request((), 1, "t", again=False), bench.now).words
        try:
            with redis.Redis(**place, username="timeless", password="any", decode_responses=True) as client:
                reply: Any = client.execute_command(*words)
        finally:
            bench.client.acl_deluser("timeless")
        assert reply[2][0][-3] == str(bench.now)

    def test_a_delayed_job_that_is_due_comes_with_the_next_call(self, bench: Bench, worker: Worker) -> None:
        job_id = add(bench, delay=1_000)
        early = worker(wanted=1)
        assert (early.fetched, early.due_ms) == ([], bench.now + 1_000)
        bench.now += 1_000
        assert [attempt.job_id for attempt in worker(wanted=1).fetched] == [job_id]

    def test_an_expired_and_a_revoked_job_are_ended_and_not_given(self, bench: Bench, worker: Worker) -> None:
        for kind in ({}, {"lifo": True}):
            expired, revoked, fine = add(bench, ttl=5, **kind), add(bench, **kind), add(bench, **kind)
            bench.client.hset(f"{P}job:{revoked}", "revoked", "1")
            bench.now += 10
            answer = worker(wanted=5)
            assert [attempt.job_id for attempt in answer.fetched] == [fine]
            assert bench.job(expired)["failedReason"] == "expired"
            assert bench.job(revoked)["failedReason"] == "revoked"
            worker(done(answer.fetched[0]))
        assert bench.client.get(P + "list-active") == "0"

    def test_a_job_with_as_many_fields_as_a_new_one_is_examined_too(
        self, bench: Bench, worker: Worker
    ) -> None:
        for missing in ("id", "timestamp", "delay", "maxAttempts", "priority"):
            plain, revoked = add(bench), add(bench)
            bench.client.hdel(f"{P}job:{revoked}", missing)
            bench.client.hset(f"{P}job:{revoked}", "revoked", "1")
            assert bench.client.hlen(f"{P}job:{revoked}") == bench.client.hlen(f"{P}job:{plain}") == 10
            assert [attempt.job_id for attempt in worker(wanted=9).fetched] == [plain]
            assert bench.job(revoked)["failedReason"] == "revoked"

    def test_new_jobs_and_others_come_in_their_order(self, bench: Bench, worker: Worker) -> None:
        ids = [add(bench, data=number, ttl=number % 2 * 5_000) for number in range(4)]
        attempts = worker(wanted=9).fetched
        assert [(attempt.job_id, attempt.data, attempt.name) for attempt in attempts] == [
            (job_id, str(number), "work") for number, job_id in enumerate(ids)
        ]
        assert len({attempt.epoch for attempt in attempts}) == 1

    def test_a_job_whose_group_is_full_waits_for_one_of_the_group_to_end(
        self, bench: Bench, worker: Worker
    ) -> None:
        options = JobOptions(ordering=Ordering("k", concurrency=2))
        ids = [bench.call(add_job_call(bench.etl, "work", "1", options, bench.now)) for _ in range(4)]
        first, second = worker(wanted=9).fetched
        assert bench.pending() == 2
        (third,) = worker(done(first), wanted=9).fetched
        (fourth,) = worker(fail(second), wanted=9).fetched
        assert [attempt.job_id for attempt in (first, second, third, fourth)] == ids
        answer = worker(done(third), done(fourth), wanted=9)
        assert (answer.verdicts, answer.fetched, bench.pending()) == (["ok", "ok"], [], 0)

    def test_a_database_that_was_emptied_gets_its_group_again(self, bench: Bench, worker: Worker) -> None:
        bench.client.flushall()
        assert worker(wanted=1).fetched == []
        add(bench)
        assert len(worker(wanted=1).fetched) == 1

    @pytest.mark.parametrize(
        "wrong", [["x"], [1, "workers", "w", 1, "t", "", 0, 0, "done"]], ids=["now", "short"]
    )
    def test_an_invalid_call_changes_nothing(self, bench: Bench, wrong: list[Any]) -> None:
        add(bench)
        before = bench.dump()
        with pytest.raises(Exception, match="GMO_BAD_CALL"):
            bench.client.fcall("gmo_finish_and_fetch", 1, P + "stream", *wrong)
        assert bench.dump() == before


class TestTheFence:
    def test_a_second_finish_is_refused_and_changes_nothing(self, bench: Bench, worker: Worker) -> None:
        add(bench)
        (attempt,) = worker(wanted=1).fetched
        assert worker(done(attempt)).verdicts == ["ok"]
        before = bench.dump()
        (verdict,) = worker(done(attempt, "2")).verdicts
        assert verdict == "stale this attempt no longer owns job 1, which is completed"
        assert bench.dump() == before

    @pytest.mark.parametrize("kind", list(Kind))
    def test_nothing_is_taken_from_a_worker_that_lost_its_lease(
        self, bench: Bench, worker: Worker, kind: Kind
    ) -> None:
        add(bench)
        (late,) = worker(wanted=1).fetched
        bench.now += 60_000
        bench.reclaim(lock_ms=1_000)
        (fresh,) = Worker(bench, "other")(wanted=1).fetched
        assert fresh.job_id == late.job_id
        before = bench.dump()
        (verdict,) = worker(Outcome(late, kind, "late")).verdicts
        assert verdict.startswith("stale ")
        assert bench.dump() == before

    def test_nothing_is_taken_once_a_node_worker_has_the_job(self, bench: Bench, worker: Worker) -> None:
        """It rewrites processedOn and leaves our token there: the token alone would let the late one in."""
        add(bench)
        (late,) = worker(wanted=1).fetched
        bench.now += 60_000
        bench.client.fcall(
            "glidemq_reclaimStalled", 2, P + "stream", P + "events",
            "workers", "node", 0, 3, bench.now, P + "failed", 0, 1_000,
        )  # fmt: skip
        entry = bench.client.xreadgroup("workers", "node", {P + "stream": ">"})[0][1][0][0]
        bench.client.fcall(
            "glidemq_moveToActive", 2, P + "job:1", P + "stream", bench.now, entry, "workers", "1"
        )
        assert bench.job("1")["gmo:token"] == late.token
        before = bench.dump()
        assert worker(done(late)).verdicts[0].startswith("stale ")
        assert bench.call(exchange.heartbeats(bench.etl, [late], bench.now)) == [-1]
        assert bench.dump() == before

    def test_a_heartbeat_returns_the_state_of_each_attempt(self, bench: Bench, worker: Worker) -> None:
        for _ in range(3):
            add(bench)
        one, two, three = worker(wanted=3).fetched
        worker(done(one))
        bench.client.hset(P + "job:2", "revoked", "1")
        bench.now += 5
        assert bench.call(exchange.heartbeats(bench.etl, [one, two, three], bench.now)) == [-1, 0, 1]
        assert bench.job("3")["lastActive"] == str(bench.now)


class TestWhatALostReplyLeaves:
    @pytest.mark.parametrize("lifo", [False, True])
    def test_the_jobs_it_announced_are_given_again(self, bench: Bench, worker: Worker, lifo: bool) -> None:  # noqa: FBT001
        ids = {add(bench, lifo=lifo) for _ in range(3)}
        held = worker(wanted=1)
        lost = worker(wanted=5)
        assert len(lost.fetched) == 2
        bench.now += 50
        found = worker(wanted=5, again=True)
        assert {attempt.job_id for attempt in found.fetched} == ids - {held.fetched[0].job_id}
        assert found.positions is None
        assert worker(*map(done, found.fetched)).verdicts == ["ok", "ok"]

    def test_the_outcomes_it_took_are_refused(self, bench: Bench, worker: Worker) -> None:
        add(bench)
        (attempt,) = worker(wanted=1).fetched
        worker(done(attempt))
        assert worker(done(attempt), again=True).verdicts[0].startswith("stale ")

    @pytest.mark.parametrize("kind", [{}, {"lifo": True}, {"priority": 2}], ids=str)
    def test_the_jobs_of_a_worker_that_dies_come_back(
        self, bench: Bench, worker: Worker, kind: dict[str, Any]
    ) -> None:
        job_id = add(bench, **kind)
        assert len(worker(wanted=1).fetched) == 1
        bench.now += 500
        bench.reclaim(lock_ms=1_000)
        assert bench.job(job_id)["state"] == "active", "it may still be alive"
        bench.now += 5_000
        bench.reclaim(lock_ms=1_000)
        assert bench.job(job_id)["state"] == "waiting"
        assert bench.job(job_id)["stalledCount"] == "1"
        (attempt,) = Worker(bench, "other")(wanted=1).fetched
        assert attempt.job_id == job_id
        assert Worker(bench, "other")(done(attempt)).verdicts == ["ok"]
        assert int(bench.client.get(P + "list-active") or 0) == 0
        assert not bench.client.exists(P + "gmo:list-held")

    def test_a_job_of_a_list_that_lives_on_is_left_alone(self, bench: Bench, worker: Worker) -> None:
        add(bench, lifo=True)
        (attempt,) = worker(wanted=1).fetched
        for _ in range(5):
            bench.now += 900
            bench.call(exchange.heartbeats(bench.etl, [attempt], bench.now))
            bench.reclaim(lock_ms=1_000)
        assert worker(done(attempt)).verdicts == ["ok"]

    def test_a_job_of_a_list_that_is_lost_too_often_fails(self, bench: Bench, worker: Worker) -> None:
        job_id = add(bench, lifo=True)
        for _ in range(2):
            bench.begin()
            bench.now += 5_000
            bench.reclaim(lock_ms=1_000, max_stalled=1)
        assert bench.job(job_id)["state"] == "failed"
        assert bench.client.get(P + "list-active") == "0"


class TestLimits:
    def test_a_paused_queue_gives_nothing_and_takes_outcomes(self, bench: Bench, worker: Worker) -> None:
        add(bench)
        add(bench)
        (attempt,) = worker(wanted=1).fetched
        bench.client.hset(P + "meta", "paused", "1")
        answer = worker(done(attempt), wanted=1)
        assert (answer.verdicts, answer.fetched, answer.held) == (["ok"], [], Held.PAUSED)

    def test_the_queues_concurrency_counts_every_kind_of_active_job(
        self, bench: Bench, worker: Worker
    ) -> None:
        bench.client.hset(P + "meta", "globalConcurrency", "3")
        for kind in ({}, {"lifo": True}, {"priority": 1}, {}, {}):
            add(bench, **kind)
        first = worker(wanted=9)
        assert (len(first.fetched), first.held) == (3, Held.CONCURRENCY)
        assert worker(wanted=9).fetched == []
        assert len(worker(done(first.fetched[0]), wanted=9).fetched) == 1

    def test_a_window_lets_so_many_start(self, bench: Bench, worker: Worker) -> None:
        for _ in range(9):
            add(bench)
        first = worker(wanted=9, limit=(4, 1_000))
        assert (len(first.fetched), first.held, first.due_ms) == (4, Held.RATE, bench.now + 1_000)
        bench.now += 999
        assert worker(wanted=9, limit=(4, 1_000)).fetched == []
        bench.now += 1
        assert len(worker(wanted=2, limit=(4, 1_000)).fetched) == 2
        bench.client.hset(P + "meta", mapping={"rateLimitMax": 3, "rateLimitDuration": 1_000})
        assert len(worker(wanted=9, limit=(4, 1_000)).fetched) == 1, "the queue's own limit goes before"

    def test_many_dependents_are_notified_in_more_than_one_call(self, bench: Bench, node: Any) -> None:
        roots = [f"r{number}" for number in range(9)]
        joins = [node(f"j{number}", *roots) for number in range(50)]
        bench.submit(*(node(root) for root in roots), *joins)
        worker = Worker(bench)
        begun = worker(wanted=9).fetched
        answer = worker(*map(done, begun))
        assert "again" in answer.verdicts
        rounds = 1
        left = [
            attempt for attempt, verdict in zip(begun, answer.verdicts, strict=True) if verdict == "again"
        ]
        while left:
            verdicts = worker(*map(done, left)).verdicts
            left = [attempt for attempt, verdict in zip(left, verdicts, strict=True) if verdict == "again"]
            rounds += 1
        assert rounds == 3
        assert len(worker(wanted=99).fetched) == 50


class TestManyNodesOfAFlow:
    def test_their_ends_are_counted_together(self, bench: Bench, worker: Worker, node: Any) -> None:
        bench.submit(*(node(f"n{n}") for n in range(5)))
        answer = worker(*map(done, worker(wanted=5).fetched))
        assert answer.verdicts == ["ok"] * 5
        record = bench.record()
        assert (record["state"], record["completed"]) == ("completed", "5")
        assert bench.events().count(("flow.completed", "f")) == 1

    def test_one_that_fails_fast_ends_none_that_completed_in_the_same_call(
        self, bench: Bench, worker: Worker, node: Any
    ) -> None:
        nodes = [node(name) for name in ("a", "b", "c")]
        flow = check_flow(FlowSpec("n", nodes, fail_fast=True))
        bench.hand.run(submit_flow("glide", flow, "f", "attach", bench))
        a, b, c = sorted(worker(wanted=3).fetched, key=lambda attempt: str(attempt.node))
        assert worker(done(a), fail(b), done(c)).verdicts[:2] == ["ok", "failed"]
        record = bench.record()
        assert (record["state"], record["completed"], record["failed"]) == ("failed", "1", "2")
        assert [bench.job(f"f~{name}")["state"] for name in "abc"] == ["completed", "failed", "failed"]


class TestInputs:
    def test_results_of_dependencies_come_with_the_job(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b"), node("c", "a", "b"))
        worker = Worker(bench)
        begun = worker(wanted=9).fetched
        assert [attempt.inputs for attempt in begun] == [{}, {}]
        answer = worker(*(done(attempt, f'"{attempt.node}"') for attempt in begun), wanted=1)
        assert answer.fetched[0].inputs == {"a": '"a"', "b": '"b"'}

    def test_results_that_are_many_or_large_are_left_to_be_read(self, bench: Bench, node: Any) -> None:
        many = [f"n{number}" for number in range(25)]
        bench.submit(*map(node, many), node("large"), node("join", *many), node("one", "large"))
        worker = Worker(bench)
        begun = worker(wanted=99).fetched
        answer = worker(
            *(done(a, '"' + "x" * (300_000 if a.node == "large" else 1) + '"') for a in begun), wanted=9
        )
        assert {attempt.node: attempt.inputs for attempt in answer.fetched} == {"join": None, "one": None}


def test_a_broken_list_of_completed_jobs_harms_no_other_outcome(bench: Bench, worker: Worker) -> None:
    ids = [add(bench) for _ in range(4)]
    attempts = worker(wanted=4).fetched
    bench.client.set(P + "completed", "no such thing")
    first, second, third, fourth = attempts
    kept = Outcome(third, Kind.DONE, "1", "count 1 0")
    verdicts = worker(done(first), fail(second), kept, done(fourth)).verdicts
    assert verdicts[1] == "failed"
    assert all(verdicts[n].startswith("error ") for n in (0, 2, 3))
    assert bench.pending() == 0
    assert [bench.job(job_id)["state"] for job_id in ids] == ["completed", "failed", "completed", "completed"]
