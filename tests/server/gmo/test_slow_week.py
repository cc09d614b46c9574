"""A slow week in simulated time: every key is in the table of lifetimes, and none outlives it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Deduplication,
    FlowNode,
    FlowSpec,
    JobOptions,
    JobTemplate,
    Keep,
    Ordering,
    Owner,
    RateLimit,
    Schedule,
)
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.broadcasts.messages import (
    Result,
    Subscription,
    open_subscription,
    publish,
    report,
    take,
    upkeep,
)
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.jobs import changes, output, usage
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.option_values import TokenBucket
from glidemq_orchestrate.jobs.output import add_log
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.queues import dead_letters
from glidemq_orchestrate.queues import limits as admin
from glidemq_orchestrate.schedules import ops as schedulers
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.lifetimes import Lives, life_of
from tests.profile import IS_LONG
from tests.server.conftest import REACHES, Dump, Hand
from tests.server.gmo.conftest import Bench

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt

ETL, NEWS, DEAD = QueueKeys("glide", "etl"), QueueKeys("glide", "spark"), QueueKeys("glide", "dead")
HOUR, DAY, START = 3_600_000, 86_400_000, 1_700_000_000_000
DAY_OF_WORK = range(0, 24, 2) if IS_LONG else (0,)
SOON = Keep(age=timedelta(hours=1))
SLOW = {"events", "id", "gmo:ordering", "gmo:expiring", "gmo:portable:expiring", "gmo:owners"}
"""Bounded by a number, numbers themselves, or kept for the 30 days of tombstones and the 14 of owners."""
NAMED = {
    "meta",
    "schedulers",
    "gmo:schedulers",
    "gmo:schedulers:last",
    "gmo:schedulers:paused",
    "gmo:schedulers:finished",
    "gmo:schedulers:finished:at",
    "gmo:kept:<state>:<count>",
}
SIZES = {"list": "LLEN", "set": "SCARD", "zset": "ZCARD", "hash": "HLEN", "stream": "XLEN"}


class Week:
    """Everything that a queue can be asked for, at least once in a day; what is kept, is kept for an hour."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.subs = [Subscription(NEWS, name, "0", ()) for name in ("a", "b")]
        self.run(dead_letters.set_queue(ETL, "dead"), dead_letters.set_queue(NEWS, "dead"))
        self.run(*(open_subscription(sub) for sub in self.subs))
        hourly = Schedule(every=timedelta(hours=1))
        template = JobTemplate("work", options=JobOptions(remove_on_complete=True))
        self.run(schedulers.upsert(ETL, "hourly", hourly, template, bench.now))
        self.run(schedulers.upsert(ETL, "later", hourly, template, bench.now))
        self.run(schedulers.pause(ETL, "later", bench.now))
        once = Schedule(every=timedelta(hours=1), limit=1, catch_up="all")
        self.run(schedulers.upsert(ETL, "once", once, template, bench.now))

    def run(self, *ops: Op[Any]) -> Any:
        return [self.bench.hand.run(op) for op in ops][-1]

    def add(self, name: str = "work", **options: Any) -> str:
        kept = {"remove_on_complete": True, "remove_on_fail": True} | options
        return str(self.run(add_job(ETL, NewJob(name, {"x": 1}, options=JobOptions(**kept)), self.bench.now)))

    def produce(self, hour: int) -> None:
        self.add("fails", attempts=2)
        self.add("work", remove_on_complete=SOON)
        self.add("fails", remove_on_fail=SOON)
        self.add("work", remove_on_complete=Keep(count=3, age=timedelta(hours=1)))
        self.add("waits")
        self.add(deduplication=Deduplication(f"t{hour}", "throttle", timedelta(hours=2)))
        self.add(deduplication=Deduplication(f"s{hour}"))
        limit = RateLimit(5, timedelta(minutes=1))
        self.add(ordering=Ordering(f"k{hour}", 1, limit, TokenBucket(2, 1)))
        self.add("fails", ordering=Ordering(f"k{hour}"), remove_on_fail=SOON)
        self.add(priority=hour % 7 + 1, delay=timedelta(minutes=10))
        self.add(lifo=True)
        self.add(ttl=timedelta(minutes=1), delay=timedelta(minutes=5))
        self.run(admin.rate_limit_group(ETL, f"p{hour}", timedelta(minutes=1), self.bench.now, extend=False))
        if hour % 6 == 0:
            for path in REACHES:
                self.submit(f"{path}-{hour}", path)
        for number in range(3):
            made = JobOptions(attempts=2, remove_on_complete=number == 0, remove_on_fail=number == 0)
            subject = "fails" if number < 2 else "news"
            self.run(publish(NEWS, subject, number, made, self.bench.now, 5))

    def submit(self, flow_id: str, path: str) -> None:
        nodes = [
            FlowNode("a", queue="etl", job="work"),
            FlowNode("b", queue="etl", job="fails" if "12" in flow_id else "work", after=["a"]),
        ]
        spec = FlowSpec("n", nodes, labels={"day": flow_id}, retention=timedelta(hours=2))
        submitting = submit_flow(
            "glide", check_flow(spec), flow_id, "attach", self.bench, reach=REACHES[path]
        )
        ref = self.run(submitting)
        owner = Owner(f"o-{flow_id}", lease=timedelta(minutes=5))
        self.run(backend.backend_of(ref).own(ref, owner, self.bench))

    def work(self) -> None:
        while begun := self.bench.exchange(wanted=50).fetched:
            for attempt in begun:
                self.talk(attempt)
                self.bench.exchange(self.outcome(attempt))

    def talk(self, attempt: Attempt) -> None:
        self.run(
            add_log(ETL, attempt.job_id, "line"),
            changes.update(ETL, attempt.job_id, "progress", 1, self.bench.now),
            output.add_output(ETL, attempt.job_id, {"chunk": "1"}),
            usage.report(ETL, attempt.job_id, Usage(tokens={"in": 1}), self.bench),
        )
        self.bench.call(output.write_messages(attempt, ETL, 1, ["m"], self.bench.now))

    def outcome(self, attempt: Attempt) -> Outcome:
        options = attempt.options
        if attempt.name == "waits":
            return Outcome(attempt, Kind.SUSPEND, "", "", 60_000)
        if attempt.name == "fails":
            return Outcome(attempt, Kind.FAIL, "boom", options.remove_on_fail, 2, 1_000)
        return Outcome(attempt, Kind.DONE, "1", options.remove_on_complete)

    def listen(self) -> None:
        for sub in self.subs:
            begun = self.run(
                take(
                    sub,
                    f"gmo-{self.bench.now}",
                    room=50,
                    block_ms=1,
                    again=False,
                    held=set(),
                    clock=self.bench,
                )
            )
            for attempt in begun:
                fails = attempt.name == "fails" and sub.group == "a"
                result = Result(attempt.entry_id, attempt.job_id, "fail" if fails else "done", "1", 2, 1_000)
                self.run(report(sub, f"gmo-{self.bench.now}", result, self.bench))

    def tend(self, worker: str = "gmo-worker-") -> None:
        """A worker that is killed before the next hour, or a supervisor."""
        if worker:
            worker += str(self.bench.now)
            self.run(workers.announce([ETL, NEWS], worker, {}, 30_000, self.bench.now))
        for queue in (ETL, NEWS):
            watch = supervise.Supervision(queue, worker or "supervisor")
            self.run(supervise.tick(watch, self.bench), supervise.resign(watch))
        self.run(schedulers.tick(ETL, self.bench))
        self.run(*(upkeep(sub, 30_000, self.bench) for sub in self.subs))
        for queue in (ETL, NEWS):
            for letter in self.run(dead_letters.dead_letters(queue, 0, 100)):
                self.run(dead_letters.remove(queue, letter.id, self.bench.now))

    def hour(self, number: int) -> None:
        self.produce(number)
        for minutes in (1, 12, 47):
            self.work()
            self.listen()
            self.bench.now += minutes * 60_000
            self.tend()

    def keys(self) -> dict[str, int]:
        """Every key with its number of elements."""
        client = self.bench.client
        found = {}
        for key in client.keys("*"):
            kind = client.type(key)
            found[key] = 1 if kind == "string" else client.execute_command(SIZES[kind], key)
        return found


@pytest.fixture
def week(hand: Hand, redis_client: Any, dump: Dump) -> Week:
    bench = Bench(hand, redis_client, dump, is_held=False)
    bench.now = START
    return Week(bench)


def by_pattern(keys: dict[str, int]) -> Counter[str]:
    """The elements of all keys of each pattern."""
    found = Counter[str]()
    for key, size in keys.items():
        life = life_of(key)
        assert life is not None
        if life.name not in SLOW:
            found[life.name] += size
    return found


def strange(keys: dict[str, int]) -> list[str]:
    return [key for key in keys if life_of(key) is None]


@pytest.mark.long
def test_nothing_grows_in_a_slow_week_and_all_is_gone_after_it(week: Week) -> None:
    client, sizes = week.bench.client, list[Counter[str]]()
    for day in range(7):
        for hour in DAY_OF_WORK:
            week.bench.now = START + day * DAY + hour * HOUR
            week.hour(24 * day + hour)
        kept = {key: size for key, size in week.keys().items() if client.ttl(key) < 0}
        assert strange(kept) == []
        sizes.append(by_pattern(kept))
    assert +(sizes[-1] - sizes[2]) == {}, "a week keeps what three days keep"
    week.run(schedulers.remove(ETL, "hourly", week.bench.now))
    for hours in (1, 2, 24, 5 * 24, 31 * 24):
        week.bench.now += hours * HOUR
        week.work()
        week.listen()
        week.tend()
    for _ in range(2):
        week.bench.now += 2 * 60_000
        week.tend(worker="")
    left = week.keys()
    assert strange(left) == []
    outlived = [f"{key} ({size})" for key, size in left.items() if outlives(client, key, size)]
    assert outlived == []


def outlives(client: Any, key: str, size: int) -> bool:
    life = life_of(key)
    assert life is not None
    if life.lives is Lives.TIMED or (life.lives is Lives.FLOW and client.ttl(key) > 0):
        return bool(client.ttl(key) <= 0)
    if life.name == "gmo:expiring":  # tombstones end by the clock of the server
        return bool(size > len(client.keys("*:gmo:flow:*")))
    if life.lives is Lives.USER:
        return life.name not in NAMED | {"<prefix>:usage:queues"}
    if key.endswith("{spark}:stream"):  # a broadcast with a bound
        return size > 5
    if key.startswith("glide:{spark}:") and life.lives is Lives.JOB:
        return bool(client.xlen(NEWS.key("stream")) > 5)
    return life.lives is not Lives.QUEUE or size > (life.max_elements or 0)
