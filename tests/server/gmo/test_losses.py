"""A lost worker: what was only fetched goes back at no cost; of those that had begun the guilty is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, Request
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.attempt import OURS, token_of, worker_id
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
LISTED = [{}, {"priority": 3}, {"lifo": True}]


def add(bench: Bench, count: int, **options: Any) -> list[str]:
    new = NewJob("work", options=JobOptions(**options))
    return [bench.hand.run(add_job(ETL, new, bench.now)) for _ in range(count)]


def fetch(bench: Bench, wanted: int, starts: int, *outcomes: Outcome, worker: str = "w") -> list[Attempt]:
    bench.tokens += 1
    request = Request(outcomes, wanted, token_of(worker, f"t{bench.tokens}"), immediate=starts)
    begun: list[Attempt] = bench.call(exchange.finish_and_fetch(ETL, worker, request, bench.now)).fetched
    return begun


def begin(bench: Bench, *attempts: Attempt) -> None:
    verdicts = bench.exchange(*(Outcome(attempt, Kind.BEGUN) for attempt in attempts)).verdicts
    assert set(verdicts) == {"ok"}


def lose(bench: Bench, max_stalled: int = 3) -> None:
    bench.now += 1000
    bench.reclaim(max_stalled=max_stalled)


def stalls(bench: Bench, ids: list[str]) -> list[str | None]:
    return [bench.job(job_id).get("stalledCount") for job_id in ids]


@pytest.mark.parametrize("options", LISTED)
def test_what_was_only_fetched_goes_back_at_no_cost(bench: Bench, options: dict[str, Any]) -> None:
    ids = add(bench, 6, **options)
    attempts = fetch(bench, 6, 2)
    assert [attempt.is_ahead for attempt in attempts] == [False] * 2 + [True] * 4
    begin(bench, attempts[2])
    lose(bench, max_stalled=0)
    states = {attempt.job_id: bench.job(attempt.job_id)["state"] for attempt in attempts}
    assert list(states.values()) == ["failed"] * 3 + ["waiting"] * 3
    ((worker, held, begun, *some),) = bench.lost
    assert (worker, held, begun) == ("w", 6, 3)
    assert sorted(some) == sorted(attempt.job_id for attempt in attempts[:3])
    assert (bench.pending(), sorted(states)) == (0, sorted(ids))
    assert bench.client.get("glide:{etl}:list-active") in (None, "0")
    for _ in range(5):  # however often
        again = fetch(bench, 6, 0)
        assert {attempt.job_id for attempt in again} == {attempt.job_id for attempt in attempts[3:]}
        assert {attempt.suspect for attempt in again} == {0}
        lose(bench, max_stalled=0)


@pytest.mark.parametrize("options", LISTED)
def test_a_lease_lasts_as_long_as_its_worker_says_whoever_looks(
    bench: Bench, options: dict[str, Any]
) -> None:
    """A worker with short leases took the jobs of one with long ones that was blocked for a moment."""
    long, short = worker_id(OURS, "1-a", 20_000), worker_id(OURS, "1-b", 1000)
    add(bench, 2, **options)
    (slow,), (quick,) = fetch(bench, 1, 1, worker=long), fetch(bench, 1, 1, worker=short)
    bench.now += 19_000
    bench.reclaim(max_stalled=3)
    assert [bench.job(one.job_id)["state"] for one in (slow, quick)] == ["active", "waiting"]
    bench.now += 1000
    bench.reclaim(max_stalled=3)
    assert bench.job(slow.job_id)["state"] == "waiting"


@pytest.mark.parametrize("options", LISTED)
def test_a_short_lease_lasts_as_long_as_that_of_the_worker_that_checks(
    bench: Bench, options: dict[str, Any]
) -> None:
    add(bench, 1, **options)
    (quick,) = fetch(bench, 1, 1, worker=worker_id(OURS, "1-b", 1000))
    bench.now += 19_000
    bench.reclaim(lock_ms=20_000)
    assert bench.job(quick.job_id)["state"] == "active"
    bench.now += 1000
    bench.reclaim(lock_ms=20_000)
    assert bench.job(quick.job_id)["state"] == "waiting"


@pytest.mark.parametrize("options", LISTED)
def test_a_silent_worker_is_told_of_while_its_leases_last(bench: Bench, options: dict[str, Any]) -> None:
    holder, began = worker_id(OURS, "t", 20_000), bench.now
    (own,) = add(bench, 1, lease=60, **options)
    add(bench, 2, **options)
    fetch(bench, 3, 3, worker=holder)
    bench.now += 4_000
    add(bench, 1)
    fetch(bench, 1, 1, worker=worker_id(OURS, "u", 20_000))
    fetch(bench, 1, 1, worker="node")
    bench.reclaim(silent_ms=5_000)
    assert bench.silent == []
    bench.now += 1_000
    bench.reclaim()
    assert bench.silent == [], "nobody has asked"
    bench.reclaim(silent_ms=5_000)
    assert bench.silent == [[holder, 3, began, began + 60_000]]
    bench.now = began + 20_000
    bench.reclaim(silent_ms=17_000)
    assert bench.silent == [[holder, 1, began, began + 60_000]]
    assert bench.job(own)["state"] == "active"


def test_after_a_loss_only_the_suspect_is_charged(bench: Bench) -> None:
    ids = add(bench, 3)
    fetch(bench, 3, 3)
    lose(bench)
    assert stalls(bench, ids) == ["1", "1", "1"]
    new = add(bench, 2)
    attempts = fetch(bench, 5, 5)
    assert [attempt.suspect for attempt in attempts] == [1, 1, 1, None, None]
    assert [attempt.is_ahead for attempt in attempts] == [True, True, True, False, False]
    begin(bench, attempts[1])  # one at a time
    lose(bench)
    assert stalls(bench, ids) == ["1", "2", "1"]
    assert stalls(bench, new) == [None, None]


def test_what_ran_beside_a_suspect_is_charged_once(bench: Bench) -> None:
    (innocent,) = add(bench, 1)
    fetch(bench, 1, 1)
    lose(bench)
    (guilty,) = add(bench, 1)
    first = {attempt.job_id: attempt for attempt in fetch(bench, 2, 2)}
    assert first[guilty].suspect is None
    begin(bench, first[innocent])
    lose(bench)
    second = {attempt.job_id: attempt for attempt in fetch(bench, 2, 2)}
    assert (second[innocent].suspect, second[guilty].suspect) == (2, 1)  # they run one at a time now
    begin(bench, second[guilty])
    lose(bench)
    assert stalls(bench, [innocent, guilty]) == ["2", "1"]


def test_two_suspects_at_once_are_in_doubt_and_not_charged(bench: Bench) -> None:
    ids = add(bench, 2)
    fetch(bench, 2, 2)
    lose(bench)
    begin(bench, *fetch(bench, 2, 2))
    lose(bench)
    assert stalls(bench, ids) == ["1", "1"]
    assert [attempt.suspect for attempt in fetch(bench, 2, 2)] == [2, 2]


@pytest.mark.parametrize("kind", [Kind.FAIL, Kind.LATER])
def test_an_attempt_that_ended_well_clears_the_count(bench: Bench, kind: Kind) -> None:
    (job_id,) = add(bench, 1, attempts=3)
    fetch(bench, 1, 1)
    lose(bench)
    (attempt,) = fetch(bench, 1, 1)
    begin(bench, attempt)
    assert bench.exchange(Outcome(attempt, kind, "", "", 3, 0)).verdicts[0] in ("ok", "retrying")
    assert not {"stalledCount", "gmo:lost", "gmo:suspect"} & set(bench.job(job_id))


def test_one_that_ends_its_worker_before_that_is_known_is_found_out(bench: Bench) -> None:
    (job_id,) = add(bench, 1)
    fetch(bench, 1, 0)
    lose(bench, max_stalled=0)
    assert bench.job(job_id)["state"] == "waiting"
    (attempt,) = fetch(bench, 1, 1)
    assert (attempt.is_ahead, attempt.suspect) == (True, 0)  # its worker says first that it begins
    begin(bench, attempt)
    lose(bench, max_stalled=0)
    assert bench.job(job_id)["state"] == "failed"


def test_the_log_of_the_job_says_that_its_worker_was_lost(bench: Bench, node: Any) -> None:
    bench.submit(node("a"))
    fetch(bench, 1, 1)
    lose(bench)
    (line,) = bench.client.lrange("glide:{etl}:log:f~a", 0, -1)
    assert line == "worker w was lost while it ran attempt 1 of this job; that costs no attempt"


def test_a_stale_beginning_is_refused(bench: Bench) -> None:
    add(bench, 1)
    (attempt,) = fetch(bench, 1, 0)
    lose(bench)
    assert bench.stale(Outcome(attempt, Kind.BEGUN))


def test_the_jobs_of_a_lost_reply_are_given_as_they_were(bench: Bench) -> None:
    add(bench, 2)
    first = fetch(bench, 2, 1)
    request = Request((), 2, f"w/t{bench.tokens}", again=True)
    again = bench.call(exchange.finish_and_fetch(ETL, "w", request, bench.now)).fetched
    assert [(one.token, one.is_ahead) for one in again] == [(one.token, one.is_ahead) for one in first]


def test_an_entry_is_looked_at_again_when_its_lease_ends(bench: Bench) -> None:
    add(bench, 1)
    (attempt,) = fetch(bench, 1, 1)
    bench.now += 29_000
    bench.heartbeat(attempt)
    bench.now += 1_000
    bench.reclaim(lock_ms=30_000)
    (entry,) = bench.client.xpending_range(ETL.key("stream"), "workers", "-", "+", 1)
    assert entry["consumer"] == "w"  # it was 30 s without a word from the stream, but 1 s from its worker
    assert 1_000 <= entry["time_since_delivered"] < 20_000


@pytest.mark.parametrize("options", LISTED)
def test_another_process_renews_all_leases_of_a_worker(bench: Bench, options: dict[str, Any]) -> None:
    add(bench, 150, **options)
    held = [*fetch(bench, 80, 80), *fetch(bench, 70, 0)]
    bench.client.hset(ETL.job(held[0].job_id), "gmo:token", "other/1")
    bench.now += 500
    total, goes_on = 0, ""
    while True:
        count, goes_on = bench.raw("gmo_renew", [ETL.key("stream")], bench.now, "workers", "w", goes_on)
        total += count
        if not goes_on:
            break
    assert total == 149
    bench.now += 900
    bench.reclaim()
    assert [bench.job(held[0].job_id)["state"], bench.job(held[-1].job_id)["state"]] == ["waiting", "active"]
