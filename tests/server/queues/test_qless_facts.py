"""The thirty facts of qless, by number, as they are here. Where we differ, the test says why."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    EventReader,
    JobOptions,
    JobState,
    JobTemplate,
    Keep,
    Queue,
    Schedule,
)
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, Request, finish_and_fetch, heartbeats
from glidemq_orchestrate.attempts.upkeep import reclaim_jobs
from glidemq_orchestrate.clients.schedules import Schedules
from glidemq_orchestrate.errors import HasDependents
from glidemq_orchestrate.jobs.attempt import Attempt, token_of
from glidemq_orchestrate.jobs.history import note
from glidemq_orchestrate.queues import statistics
from glidemq_orchestrate.queues.statistics import DAY_MS, HandlerTally
from glidemq_orchestrate.schedules import ops
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.server.schedules.conftest import At

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.conftest import Hand

ETL = QueueKeys("glide", "etl")
A, B = "gmo-worker-a-30000ms", "gmo-worker-b-30000ms"
START = 1_900_000_000_000


@dataclass
class World:
    """A queue and its workers, at a time that the test sets.

    Attributes:
        queue: Its client.
        hand: Sends what the workers send.
        clock: The time.
    """

    queue: Queue
    hand: Hand
    clock: At
    calls: int = field(default=0)

    def at(self, seconds: float) -> World:
        self.clock.now = START + int(seconds * 1000)
        return self

    def pop(self, count: int = 1, worker: str = A) -> list[Attempt]:
        self.calls += 1
        request = Request((), count, token_of(worker, str(self.calls)))
        fetched = self.hand.run(ask(finish_and_fetch(ETL, worker, request, self.clock.now))).fetched
        for attempt in fetched:
            if attempt.is_ahead:
                self.end(attempt, Kind.BEGUN)
        return list(fetched)

    def ids(self, count: int = 1) -> list[str]:
        return [attempt.job_id for attempt in self.pop(count)]

    def beat(self, attempt: Attempt) -> int:
        (kept,) = self.hand.run(ask(heartbeats(ETL, [attempt], self.clock.now)))
        return int(kept)

    def end(self, attempt: Attempt, kind: Kind = Kind.DONE, text: str = "1", **more: Any) -> str:
        outcome = Outcome(attempt, kind, text, **more)
        answer = self.hand.run(ask(finish_and_fetch(ETL, A, Request((outcome,), 0, ""), self.clock.now)))
        return answer.verdicts[0]

    def fail(self, attempt: Attempt, group: str = "g") -> str:
        return self.end(attempt, Kind.FAIL, "boom", first=1, group=group)

    def reclaim(self, max_stalled: int = 1) -> None:
        call = reclaim_jobs(ETL, "other", lock_ms=0, max_stalled=max_stalled, now_ms=self.clock.now)
        self.hand.run(ask(call))

    def state(self, job_id: str) -> JobState:
        return self.queue.get_job(job_id).state


@pytest.fixture
def world(url: str, hand: Hand) -> Iterator[World]:
    clock = At()
    clock.now = START
    with Queue("etl", url, clock=clock) as queue:
        yield World(queue, hand, clock)


def seconds(at: datetime | None) -> float:
    assert at is not None
    return at.timestamp() - START / 1000


def test_fact_01_a_heartbeat_renews_the_lease(world: World) -> None:
    job_id = world.queue.add("work")
    (attempt,) = world.pop()
    assert seconds(world.queue.get_job(job_id).lease_until) == 30
    assert world.at(20).beat(attempt) == 1
    assert seconds(world.queue.get_job(job_id).lease_until) == 50


def test_fact_02_what_a_worker_sends_after_its_job_has_gone_to_another_one_is_refused(world: World) -> None:
    """The refusal does not name B, but the job does."""
    job_id = world.queue.add("work")
    (old,) = world.pop()
    world.at(61).reclaim()
    world.pop(worker=B)
    assert world.beat(old) == -1
    for kind in (Kind.DONE, Kind.FAIL, Kind.LATER):
        assert world.end(old, kind).startswith("stale this attempt no longer owns job")
    assert world.queue.get_job(job_id).worker == B


def test_fact_03_a_lease_that_has_ended_is_renewed_if_nobody_took_the_job(world: World) -> None:
    world.queue.add("work")
    (attempt,) = world.pop()
    assert world.at(61).beat(attempt) == 1


def test_fact_04_the_grace_period_passes_between_notice_and_loss(world: World) -> None:
    """It belongs to ``take_back``: a worker whose lease has ended could not be told anyway."""
    job_id = world.queue.add("work")
    (attempt,) = world.pop()
    world.queue.take_back(job_id, grace=10)
    assert (world.at(9).beat(attempt), world.ids()) == (2, [])
    assert (world.at(10).beat(attempt), world.ids()) == (-1, [job_id])
    assert world.queue.get_job(job_id).attempts_made == 0  # unlike in qless, it costs no attempt


def test_fact_05_without_a_grace_period_the_job_is_taken_at_once(world: World) -> None:
    job_id = world.queue.add("work")
    (attempt,) = world.pop()
    world.queue.take_back(job_id)
    assert (world.ids(), world.beat(attempt)) == ([job_id], -1)


def test_fact_06_a_job_whose_workers_all_die_fails_in_the_end(world: World) -> None:
    """Losses have a limit of their own and use up no attempt: the job is rarely their cause."""
    job_id = world.queue.add("work", attempts=2)
    for second in (0, 100, 200):
        assert world.state(job_id) is JobState.WAITING
        world.at(second).pop()
        world.at(second + 61).reclaim(max_stalled=2)
    job = world.queue.get_job(job_id)
    assert (job.state, job.failed_reason) == (JobState.FAILED, "job stalled more than maxStalledCount")


def test_fact_07_jobs_run_by_priority_and_in_the_order_of_adding(world: World) -> None:
    """1 runs first and 0 last, as in glide-mq; in qless the highest number runs first."""
    last, first, second, third = (world.queue.add("work", priority=number) for number in (0, 1, 5, 5))
    assert [*world.ids(4), *world.ids(4)] == [first, second, third, last]


def test_fact_08_a_waiting_job_with_a_better_priority_is_next(world: World) -> None:
    added = [world.queue.add("work", priority=5) for _ in range(3)]
    world.queue.change_priority(added[2], 1)
    assert world.ids() == [added[2]]


def test_fact_09_a_delayed_job_is_not_early(world: World) -> None:
    job_id = world.at(5).queue.add("work", delay=100)
    assert world.at(104).ids() == []
    assert world.at(105).ids() == [job_id]


def test_fact_10_only_jobs_that_exist_are_waited_for(world: World) -> None:
    """An unknown one is reported, not ignored."""
    a, b = world.queue.add("work"), world.queue.add("work")
    assert world.queue.depends_on(b, [a, "unknown"]).unknown == ("unknown",)
    assert world.end(world.pop(2)[0]) == "ok"
    assert world.ids(2) == [b]


def test_fact_11_a_delay_counts_besides_the_dependencies(world: World) -> None:
    a, b = world.queue.add("work"), world.queue.add("work", delay=10)
    world.queue.depends_on(b, [a])
    world.end(world.at(1).pop()[0])
    assert (world.state(b), world.at(9).ids()) == (JobState.DELAYED, [])
    assert world.at(10).ids() == [b]


def test_fact_12_a_job_runs_when_its_last_dependency_is_off(world: World) -> None:
    """A job that waits to be started may then wait for others again; in qless it may not."""
    a, b, c, d = (world.queue.add("work") for _ in range(4))
    world.queue.depends_on(d, [a, b, c])
    world.queue.depends_off(d, [a, b])
    assert world.state(d) is JobState.WAITING_CHILDREN
    world.queue.depends_off(d, [c])
    assert world.state(d) is JobState.WAITING
    assert world.queue.depends_on(d, [a]).changed == (a,)


def test_fact_13_a_job_that_another_one_waits_for_is_not_cancelled_alone(world: World) -> None:
    """A cancelled job stays as failed, with the reason ``revoked``, until it is cleaned."""
    a, b = world.queue.add("work"), world.queue.add("work")
    world.queue.depends_on(b, [a])
    with pytest.raises(HasDependents):
        world.queue.cancel([a])
    assert world.state(a) is JobState.WAITING
    assert sorted(world.queue.cancel([a, b]).cancelled) == [a, b]


def test_fact_14_the_worker_of_a_cancelled_job_is_told(world: World, url: str) -> None:
    """The event is in the stream of the queue: workers have no channels."""
    job_id = world.queue.add("work")
    (attempt,) = world.pop()
    assert world.queue.cancel([job_id]).stopping == (job_id,)
    assert world.beat(attempt) == 0
    with EventReader("etl", url, position="0-0") as events:
        assert ("revoked", job_id) in [(event.kind, event.job_id) for event in events.read()]


def test_fact_15_a_completed_job_is_not_cancelled(world: World) -> None:
    job_id = world.queue.add("work")
    world.end(world.pop()[0])
    assert world.queue.cancel([job_id]).ended == (job_id,)
    assert world.state(job_id) is JobState.COMPLETED


def test_fact_16_failures_are_grouped_until_they_are_retried(world: World) -> None:
    job_id = world.queue.add("work")
    assert world.fail(world.pop()[0]) == "failed"
    (group,) = world.queue.failures()
    assert (group.group, group.count, group.samples[0].job_id) == ("g", 1, job_id)
    world.queue.retry(job_id)
    assert world.queue.failures() == []


def test_fact_17_the_oldest_of_a_group_are_retried(world: World) -> None:
    ids = [world.queue.add("work") for _ in range(3)]
    for second, attempt in enumerate(world.pop(3)):
        world.at(second).fail(attempt)
    assert world.queue.retry_failures("g", limit=2) == 2
    assert [world.state(job_id) for job_id in ids] == [JobState.WAITING, JobState.WAITING, JobState.FAILED]


def test_fact_18_a_retry_stores_its_reason(world: World) -> None:
    job_id = world.queue.add("work", attempts=3)
    assert world.end(world.pop()[0], Kind.FAIL, "boom", first=3, second=5000) == "retrying"
    job = world.queue.get_job(job_id)
    assert (job.state, job.failed_reason, job.attempts_made) == (JobState.DELAYED, "boom", 1)
    assert (world.at(4).ids(), world.at(5).ids()) == ([], [job_id])


def recorded(world: World, waiting: list[float], running: list[float]) -> None:
    tally = HandlerTally()
    for one in waiting:
        tally.waiting.add([one * 1000])
    for one in running:
        tally.running.add([one * 1000])
    world.hand.run(ask(statistics.record(ETL, {"work": tally}, world.clock.now)))


def test_fact_19_statistics_have_count_mean_deviation_and_histogram(world: World) -> None:
    recorded(world, list(range(20)), [])
    found = world.queue.statistics().waiting
    assert (found.count, found.mean) == (20, timedelta(seconds=9.5))
    assert found.deviation is not None
    assert found.deviation.total_seconds() == pytest.approx(5.916079783099, abs=1e-6)  # whole microseconds
    assert found.histogram == (*[1] * 20, *[0] * 128)


def test_fact_20_longer_times_are_in_buckets_of_minutes_and_hours(world: World) -> None:
    recorded(world, [100.5], [3899.5])
    found = world.queue.statistics()
    assert (found.waiting.histogram[60], found.waiting.mean) == (1, timedelta(seconds=100.5))
    assert found.running.histogram[119] == 1


def test_fact_21_a_failure_counts_on_its_day_for_good(world: World) -> None:
    """How many are failed at present is what ``failures`` counts, for all days."""
    world.hand.run(ask(statistics.record(ETL, {"work": HandlerTally(failures=1)}, START - DAY_MS)))
    today = datetime.fromtimestamp(START / 1000, UTC).date()
    assert world.queue.statistics(today - timedelta(days=1)).failures == 1
    assert world.queue.statistics(today).failures == 0
    assert isinstance(today, date)


def fire(world: World, url: str, schedule: Schedule, *at: float) -> list[list[str]]:
    """The nominal times of the jobs that a schedule adds at each of these times."""
    with Schedules("etl", url, clock=world.at(0).clock) as schedules:
        schedules.upsert("r", schedule, JobTemplate("work", data={}))
    fired = []
    for second in at:
        world.hand.run(ops.tick(ETL, world.at(second).clock))
        jobs = [world.queue.get_job(job_id) for job_id in world.ids(100)]
        fired.append([str(seconds(datetime.fromisoformat(job.data["logicalTime"]))) for job in jobs])
    return fired


def test_fact_22_each_recurring_job_has_its_nominal_time(world: World, url: str) -> None:
    """In its data; its id counts as that of any other job."""
    begin = datetime.fromtimestamp(START / 1000, UTC)
    schedule = Schedule(every=60, start=begin, catch_up="all", logical_time=True)
    fired = fire(world, url, schedule, 0, 59, 250)
    assert fired == [["0.0"], [], ["60.0", "120.0", "180.0", "240.0"]]


def test_fact_23_a_backlog_is_bounded(world: World, url: str) -> None:
    """A backlog of 2 is a ``catch_up_limit`` of 3; the limit is 100."""
    begin = datetime.fromtimestamp(START / 1000, UTC)
    schedule = Schedule(every=60, start=begin, catch_up="all", catch_up_limit=3, logical_time=True)
    assert fire(world, url, schedule, 600) == [["480.0", "540.0", "600.0"]]
    with Schedules("etl", url, clock=world.clock) as schedules:
        assert seconds(schedules.get("r").next_run) == 660


@pytest.mark.parametrize("keep", [Keep(count=2), Keep(age=10)], ids=str)
def test_fact_24_ended_jobs_are_removed_by_count_and_age(world: World, keep: Keep) -> None:
    """The retention is an option of the job."""
    options = JobOptions(remove_on_complete=keep, tags=["x"])
    ids = []
    for second in (0, 1, 9, 12):
        ids.append(world.at(second).queue.add("work", options=options))
        retention = "age_count 2 0" if keep.count else "age_count 0 10"
        world.end(world.pop()[0], retention=retention)
    assert [job.id for job in world.queue.get_jobs("completed")] == ids[2:]
    assert [job.id for job in world.queue.tagged("x")] == ids[2:]


def test_fact_25_a_history_keeps_its_first_entry_and_the_newest(world: World) -> None:
    """The limit is 100, and applies to what happens to the job: its log is apart."""
    job_id = world.queue.add("work", history=True)
    for number in range(1, 120):
        world.hand.run(ask(note(ETL, job_id, START + number, "delay-changed", str(number))))
    history = world.queue.history(job_id)
    assert (len(history), history[0].kind) == (100, "added")
    assert (history[1].detail, history[-1].detail) == ("21", "119")


def test_fact_26_no_more_jobs_run_than_the_queue_allows(world: World) -> None:
    world.queue.set_global_concurrency(2)
    for _ in range(5):
        world.queue.add("work")
    held = world.pop(5)
    assert (len(held), world.ids(5)) == (2, [])
    world.at(61).reclaim()
    assert len(world.ids(5)) == 2


def test_fact_27_a_paused_queue_starts_nothing(world: World) -> None:
    first, second = world.queue.add("work"), world.queue.add("work")
    (attempt,) = world.pop()
    world.queue.pause()
    assert world.ids() == []
    assert [job.id for job in world.queue.get_jobs("waiting")] == [second]
    assert world.end(attempt) == "ok"
    assert world.state(first) is JobState.COMPLETED


def test_fact_28_tags_count_the_jobs_that_have_them(world: World) -> None:
    """A tag of one job is listed, too, and no count is ever negative."""
    a, b = world.queue.add("work", tags=["x", "y"]), world.queue.add("work", tags=["x"])
    assert [(one.tag, one.count) for one in world.queue.tags()] == [("x", 2), ("y", 1)]
    assert world.queue.tagged("x").total == 2
    world.queue.untag(b, ["y", "z"])
    world.queue.untag(a, ["y"])
    assert [(one.tag, one.count) for one in world.queue.tags()] == [("x", 2)]


def test_fact_29_a_tracked_job_that_vanishes_is_listed_as_removed(world: World) -> None:
    job_id = world.queue.add("work")
    world.queue.track(job_id)
    world.queue.cancel([job_id])
    world.queue.remove(job_id)
    assert [(one.id, one.is_removed) for one in world.queue.tracked()] == [(job_id, True)]


def test_fact_30_it_is_seen_which_worker_holds_what_and_what_is_stalled(world: World) -> None:
    """By job: an active one names its worker and the end of its lease."""
    world.queue.add("work"), world.queue.add("work")
    world.pop(worker=A)
    world.at(30).pop(worker=B)
    now = world.at(31).queue.now()
    held = {job.worker: job.lease_until < now for job in world.queue.get_jobs("active") if job.lease_until}
    assert held == {A: True, B: False}
