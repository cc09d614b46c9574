"""Nothing of a queue grows for ever: what gmo_cleanup removes, when, and what it leaves."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Deduplication, JobOptions, Ordering, RateLimit
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.attempts.upkeep import clean_up
from glidemq_orchestrate.errors import JobSkipped
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.changes import retry_jobs
from glidemq_orchestrate.jobs.option_values import TokenBucket
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import limits as admin
from glidemq_orchestrate.queues import metrics
from glidemq_orchestrate.queues.removal import drain
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000


def add(bench: Bench, **options: Any) -> str:
    return bench.hand.run(add_job(ETL, NewJob("work", options=JobOptions(**options)), bench.now))


def later(bench: Bench, ms: int) -> None:
    """So much later, a worker does its upkeep."""
    bench.now += ms
    bench.hand.run(clean_up([ETL], bench))


def run_all(bench: Bench) -> None:
    while begun := bench.exchange(wanted=100).fetched:
        bench.exchange(*[Outcome(attempt, Kind.DONE, "1") for attempt in begun])


def window(seconds: int) -> Deduplication:
    return Deduplication("d", "throttle", timedelta(seconds=seconds))


def known(bench: Bench) -> dict[str, str]:
    return dict(bench.client.hgetall(ETL.key("dedup")))


def keys_in_use(bench: Bench) -> set[str]:
    return {group.key for group in bench.hand.run(admin.groups(ETL))}


# --- metrics ---


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
def test_a_slow_queue_keeps_the_minutes_of_a_day(bench: Bench, state: JobState) -> None:
    for hour in range(60):
        bench.now = hour * 60 * MINUTE
        add(bench)
        kind = Kind.DONE if state is JobState.COMPLETED else Kind.FAIL
        bench.hand_in(Outcome(bench.begin(), kind, "1", "", 1, 0))
    points = bench.hand.run(metrics.metrics([ETL], state))
    assert len(points) == 25
    later(bench, DAY + 2 * MINUTE)
    assert bench.hand.run(metrics.metrics([ETL], state)) == [], "an idle queue as well"


def test_a_history_of_months_goes_in_slices(bench: Bench) -> None:
    key, minutes = ETL.metrics("completed"), 10_000
    fields = {f"m:{minute * MINUTE}:{kind}": 1 for minute in range(minutes) for kind in "cd"}
    bench.client.hset(key, mapping=fields)
    bench.now = minutes * MINUTE
    slices = 0
    while bench.raw("gmo_cleanup", [ETL.key("stream")], bench.now):
        slices += 1
        assert bench.client.hlen(key) >= len(fields) - 500 * slices
    assert bench.client.hlen(key) == 2 * 1_440


# --- deduplication ids ---


def test_a_deduplication_id_goes_after_its_window(bench: Bench) -> None:
    add(bench, deduplication=window(60), remove_on_complete=True)
    run_all(bench)
    later(bench, 59 * SECOND)
    with pytest.raises(JobSkipped):
        add(bench, deduplication=window(60))
    later(bench, 2 * SECOND)
    assert known(bench) == {}
    assert bench.client.exists(ETL.key("gmo:dedup")) == 0


def test_the_longest_window_that_a_caller_has_named_counts(bench: Bench) -> None:
    add(bench, deduplication=window(10), remove_on_complete=True)
    run_all(bench)
    bench.now += 5 * SECOND
    with pytest.raises(JobSkipped):
        add(bench, deduplication=window(3_600))
    later(bench, 3_500 * SECOND)
    with pytest.raises(JobSkipped):
        add(bench, deduplication=window(3_600))
    later(bench, 101 * SECOND)
    assert known(bench) == {}


@pytest.mark.parametrize("removed", [True, False])
def test_without_a_window_it_goes_when_its_job_has_ended(bench: Bench, *, removed: bool) -> None:
    mark = Deduplication("d")
    add(bench, deduplication=mark, remove_on_complete=removed)
    for _ in range(20):
        later(bench, 3 * SECOND)
        with pytest.raises(JobSkipped):
            add(bench, deduplication=mark)
    run_all(bench)
    later(bench, 2 * MINUTE)
    assert known(bench) == {}


def test_many_ids_that_are_over_go_in_one_upkeep_and_the_others_stay(bench: Bench) -> None:
    for number in range(300):
        bench.client.hset(ETL.key("dedup"), f"old-{number}", f"gone-{number}:1")
        bench.client.zadd(ETL.key("gmo:dedup"), {f"old-{number}": 1})
    add(bench, deduplication=window(600))
    later(bench, SECOND)
    assert set(known(bench)) == {"d"}


def test_ids_of_another_library_go_too_after_the_windows_of_their_jobs(bench: Bench) -> None:
    add(bench, deduplication=window(600))
    run_all(bench)
    bench.client.delete(ETL.key("gmo:dedup"))  # as upstream's library leaves it
    bench.client.hset(ETL.key("dedup"), "lost", f"gone:{bench.now}")
    later(bench, 300 * SECOND)
    with pytest.raises(JobSkipped):
        add(bench, deduplication=window(600))
    for _ in range(3):
        later(bench, 301 * SECOND)
    assert set(known(bench)) == {"lost"}, "its window is not known any more"
    later(bench, 31 * DAY)
    assert known(bench) == {}


# --- ordering keys ---


def test_an_ordering_key_goes_when_nothing_of_it_waits_or_runs(bench: Bench) -> None:
    for number in range(120):
        add(bench, ordering=Ordering(f"k{number}"), remove_on_complete=True)
    add(bench, ordering=Ordering("waits"), delay=timedelta(hours=1))
    later(bench, SECOND)
    assert len(keys_in_use(bench)) == 121, "their jobs wait"
    run_all(bench)
    later(bench, 2 * SECOND)
    assert keys_in_use(bench) == {"waits"}
    assert bench.client.keys("glide:{etl}:group*") == ["glide:{etl}:group:waits"]
    run_all(bench)


@pytest.mark.parametrize("holding", ["active", "retry", "suspended"])
def test_a_key_with_a_job_that_holds_a_place_stays(bench: Bench, holding: str) -> None:
    add(bench, ordering=Ordering("k"), attempts=2)
    attempt = bench.begin()
    if holding == "retry":
        bench.fail(attempt, attempts=2, backoff_ms=DAY)
    elif holding == "suspended":
        bench.hand_in(Outcome(attempt, Kind.SUSPEND, "", "", 0, 0))
    later(bench, 2 * SECOND)
    assert keys_in_use(bench) == {"k"}


@pytest.mark.parametrize(
    ("options", "used_up_for"),
    [
        ({"rate_limit": RateLimit(1, timedelta(minutes=1))}, 60),
        ({"token_bucket": TokenBucket(2, 0.1)}, 10),
    ],
)
def test_a_limit_that_is_used_up_is_not_forgotten(bench: Bench, options: Any, used_up_for: int) -> None:
    add(bench, ordering=Ordering("k", 1, **options))
    run_all(bench)
    later(bench, (used_up_for - 2) * SECOND)
    assert keys_in_use(bench) == {"k"}
    later(bench, 4 * SECOND)
    assert keys_in_use(bench) == set()


def test_a_pause_of_a_key_is_not_forgotten(bench: Bench) -> None:
    add(bench, ordering=Ordering("k"))
    run_all(bench)
    pause = admin.rate_limit_group(ETL, "k", timedelta(minutes=1), bench.now, extend=False)
    bench.hand.run(pause)
    later(bench, 50 * SECOND)
    assert keys_in_use(bench) == {"k"}


def test_a_key_that_comes_again_keeps_its_order_and_its_limit(bench: Bench) -> None:
    for _ in range(5):
        add(bench, ordering=Ordering("k"))
    run_all(bench)
    later(bench, 2 * SECOND)
    assert keys_in_use(bench) == set()
    ids = [add(bench, ordering=Ordering("k")) for _ in range(3)]
    for job_id in ids:
        (attempt,) = bench.exchange(wanted=10).fetched
        assert attempt.job_id == job_id
        bench.finish(attempt)


@pytest.mark.parametrize("has_come_again", [True, False])
def test_a_failed_job_comes_back_to_a_key_that_was_removed(bench: Bench, *, has_come_again: bool) -> None:
    for _ in range(3):
        add(bench, ordering=Ordering("k"))
    run_all(bench)
    failed = add(bench, ordering=Ordering("k"))
    bench.fail(bench.begin())
    later(bench, 2 * SECOND)
    assert keys_in_use(bench) == {"k"}, "upstream's library needs the numbers of failed jobs"
    for key in ("ordering", "group:k"):  # as if 200 others had failed since
        bench.client.delete(f"glide:{{etl}}:{key}")
    bench.client.set(ETL.key("gmo:ordering"), 4)
    others = [add(bench, ordering=Ordering("k")) for _ in range(2 * has_come_again)]
    assert bench.call(retry_jobs(ETL, [failed], bench.now)) == ["retried"]
    others += [add(bench, ordering=Ordering("k"))]
    ran = []
    while begun := bench.exchange(wanted=10).fetched:
        (attempt,) = begun  # one at a time
        ran.append(attempt.job_id)
        bench.finish(attempt)
    assert sorted(ran) == sorted([failed, *others])
    assert [job_id for job_id in ran if job_id != failed] == others
    later(bench, 2 * SECOND)
    assert keys_in_use(bench) == set()


def test_the_budget_of_a_flow_of_node_goes_with_its_root(bench: Bench) -> None:
    job_id = add(bench)
    bench.client.hset(ETL.budget(job_id), "usedTokens", 0)
    bench.hand.run(drain(ETL, delayed=True, now_ms=bench.now))
    assert bench.client.exists(ETL.budget(job_id)) == 0


def test_the_work_is_done_once_in_a_second_however_many_workers_ask(bench: Bench) -> None:
    later(bench, SECOND)
    bench.client.hset(ETL.key("dedup"), "d", "gone:1")
    bench.client.zadd(ETL.key("gmo:dedup"), {"d": 1})
    later(bench, 999)
    assert set(known(bench)) == {"d"}
    later(bench, 1)
    assert known(bench) == {}
