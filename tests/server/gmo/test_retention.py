"""The retention that a job asks for concerns that job alone."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobOptions, Keep
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.flows.home import expire_due
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.changes import revoke_job

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench

P = "glide:{etl}:"
NOW = ["true 0 0", "count 1 0", "age_count 0 1", "age_count 1 1"]


def add(bench: Bench, job_id: str = "", parent: str = "") -> str:
    keys = [P + key for key in ("id", "stream", "scheduled", "events")] + (
        [P + f"deps:{parent}"] * bool(parent)
    )
    place = (bench.now, 0, 0, parent, 0, "", 0, 0, 0, 0, 0, 0, 0, job_id, 0, "etl" if parent else "", "", 0)
    made: str = bench.client.fcall("glidemq_addJob", len(keys), *keys, "work", "1", "{}", *place)
    return made


def end(bench: Bench, attempt: Attempt, retention: str = "", kind: Kind = Kind.DONE) -> None:
    bench.now += 1
    (verdict,) = bench.exchange(Outcome(attempt, kind, "1", retention)).verdicts
    assert verdict in {"ok", "failed"}


def run(bench: Bench, retention: str, kind: Kind = Kind.DONE) -> str:
    job_id = add(bench)
    end(bench, bench.begin(), retention, kind)
    return job_id


def left(bench: Bench, state: str = "completed") -> list[str]:
    found: list[str] = bench.client.zrange(P + state, 0, -1)
    assert all(bench.client.exists(P + f"job:{one}") for one in found)
    return found


def pass_ms(bench: Bench, ms: int) -> None:
    """Time passes on an idle queue, which some worker looks after."""
    bench.now += ms
    while bench.call(expire_due(bench.etl, bench.now))[0]:
        pass


@pytest.mark.parametrize("retention", NOW)
def test_it_takes_neither_kept_jobs_nor_nodes(bench: Bench, node: Any, retention: str) -> None:
    bench.submit(node("a"), node("b"), node("total", "a", "b"))
    first, second = bench.exchange(wanted=2).fetched
    end(bench, first)
    kept = run(bench, "")
    for _ in range(3):
        bench.now += 2000
        run(bench, retention)
    end(bench, second)
    (total,) = bench.exchange(wanted=1).fetched
    assert total.inputs == {"a": "1", "b": "1"}
    pass_ms(bench, 5000)
    assert {"f~a", "f~b", kept} <= {*left(bench)}
    assert len(left(bench)) == (4 if retention == "count 1 0" else 3)


def test_each_count_counts_those_that_asked_for_it(bench: Bench) -> None:
    many = [run(bench, "count 3 0") for _ in range(4)]
    few = [run(bench, "count 1 0") for _ in range(3)]
    assert left(bench) == [*many[1:], few[-1]]


def test_an_age_holds_on_an_idle_queue(bench: Bench) -> None:
    short, long = run(bench, "age_count 0 2"), run(bench, "age_count 0 60")
    pass_ms(bench, 1000)
    assert left(bench) == [short, long]
    pass_ms(bench, 1000)
    assert left(bench) == [long]
    pass_ms(bench, 60_000)
    assert left(bench) == []
    assert bench.client.exists(P + "gmo:leaving") == 0


def test_failed_jobs_are_counted_apart_and_a_retried_one_is_spared(bench: Bench) -> None:
    kept = [run(bench, "", Kind.FAIL) for _ in range(3)]
    first = run(bench, "count 1 0", Kind.FAIL)
    assert bench.raw("gmo_retry_jobs", [P + "id"], bench.now, first) == ["retried"]
    again = bench.begin()
    second = run(bench, "count 1 0", Kind.FAIL)
    assert left(bench, "failed") == [*kept, second]
    assert bench.job(first)["state"] == "active"
    end(bench, again, "age_count 0 1", Kind.FAIL)
    assert bench.raw("gmo_retry_jobs", [P + "id"], bench.now, first) == ["retried"]
    pass_ms(bench, 2000)
    assert bench.job(first)["state"] == "waiting"


@pytest.mark.parametrize(("kind", "state"), [(Kind.DONE, "completed"), (Kind.FAIL, "failed")])
def test_what_was_removed_or_retried_is_none_of_the_newest(bench: Bench, kind: Kind, state: str) -> None:
    options = JobOptions(remove_on_complete=2, remove_on_fail=2)

    def one() -> str:
        job_id = str(bench.call(add_job_call(bench.etl, "work", "1", options, bench.now)))
        end(bench, bench.begin(), "count 2 0", kind)
        return job_id

    first, second = one(), one()
    bench.raw("gmo_remove_jobs", [P + "id"], bench.now, "removed", second, "")
    third = one()
    assert left(bench, state) == [first, third]
    if kind is Kind.FAIL:
        bench.raw("gmo_retry_jobs", [P + "id"], bench.now, third)
        end(bench, bench.begin())
        fourth = one()
        assert left(bench, "failed") == [first, fourth]


@pytest.mark.parametrize("kind", [Kind.DONE, Kind.FAIL])
def test_cleaning_takes_no_child_whose_parent_waits(bench: Bench, kind: Kind) -> None:
    parent = add(bench)
    waiting = bench.begin()
    child = add(bench, parent=parent)
    assert bench.hand_in(Outcome(waiting, Kind.CHILDREN))[0] == "ok"
    end(bench, bench.begin(), kind=kind)
    clean = functools.partial(bench.raw, "gmo_remove_jobs", [P + "id"], bench.now)
    assert clean("cleaned", child, "") == [["child"], []]
    end(bench, bench.begin())
    assert clean("cleaned", child, "") == [["removed"], []]


def test_children_of_a_removed_job_wake_no_later_one_with_its_id(bench: Bench) -> None:
    begun = []
    for name in ("old", "new"):
        add(bench, "p")
        waiting = bench.begin()
        add(bench, name, parent="p")
        assert bench.hand_in(Outcome(waiting, Kind.CHILDREN))[0] == "ok"
        begun.append(bench.begin())
        if name == "old":
            bench.raw("gmo_remove_jobs", [P + "id"], bench.now, "removed", "p", "")
            assert bench.client.exists(P + "deps:p") == 0
    old, new = begun
    end(bench, old)
    assert bench.job("p")["state"] == "waiting-children"
    end(bench, new)
    assert bench.job("p")["state"] == "waiting"


@pytest.mark.parametrize("retention", NOW)
def test_a_child_stays_as_long_as_its_parent_waits(bench: Bench, retention: str) -> None:
    parent = add(bench)
    waiting = bench.begin()
    children = [add(bench, parent=parent) for _ in range(3)]
    assert bench.hand_in(Outcome(waiting, Kind.CHILDREN))[0] == "ok"
    for attempt in bench.exchange(wanted=3).fetched:
        end(bench, attempt, retention)
        pass_ms(bench, 5000)
    pass_ms(bench, 300_000)
    assert left(bench) == children
    end(bench, bench.begin(), "true 0 0")
    pass_ms(bench, 1_000_000)
    assert left(bench) == ([children[-1]] if retention == "count 1 0" else [])


class TestJobsThatTheServerFails:
    """Nobody reports an outcome of these: their options say how long they are kept."""

    def fail(self, bench: Bench, how: str, keep: Any) -> str:
        hour = timedelta(hours=1)
        ttl = timedelta(milliseconds=5) if how.startswith("expired") else None
        delay = timedelta(milliseconds=9) if how == "expired while it waits" else timedelta(0)
        options = JobOptions(remove_on_fail=keep, ttl=ttl, delay=delay)
        job_id = str(bench.call(add_job_call(bench.etl, "work", "1", options, bench.now)))
        if how == "revoked":
            bench.call(revoke_job(bench.etl, job_id, bench.now))
        elif how == "suspended":
            bench.exchange(Outcome(bench.begin(), Kind.SUSPEND, "", first=5))
        elif how == "lost":
            bench.begin()
            bench.now += int(hour / timedelta(milliseconds=1))
            bench.reclaim(max_stalled=0)
        bench.now += 10
        bench.exchange(wanted=1)
        return job_id

    @pytest.mark.parametrize("how", ["expired", "expired while it waits", "revoked", "suspended", "lost"])
    def test_they_go_as_they_asked(self, bench: Bench, how: str) -> None:
        self.fail(bench, how, keep=True)
        assert left(bench, "failed") == []
        ids = [self.fail(bench, how, keep=2) for _ in range(3)]
        assert left(bench, "failed") == ids[1:]
        self.fail(bench, how, keep=Keep(age=timedelta(seconds=1)))
        pass_ms(bench, 1_001)
        assert left(bench, "failed") == ids[1:]

    def test_a_large_one_waits_for_its_dead_letter(self, bench: Bench) -> None:
        bench.client.hset(P + "meta", "deadLetterQueueName", "spark")
        options = JobOptions(remove_on_fail=True, ttl=timedelta(milliseconds=5))
        large = '"' + "x" * 70_000 + '"'
        job_id = str(bench.call(add_job_call(bench.etl, "work", large, options, bench.now)))
        bench.now += 10
        bench.exchange(wanted=1)
        assert left(bench, "failed") == [job_id]
        pass_ms(bench, 60_000)
        assert left(bench, "failed") == []
