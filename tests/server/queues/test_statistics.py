"""Statistics of the jobs of a day, as workers report them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import (
    AsyncQueue,
    Backoff,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    JobState,
    NewJob,
    Queue,
)
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.queues import recent, statistics
from glidemq_orchestrate.queues.statistics import DAY_MS, MAX_HANDLERS, HandlerTally
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

KEYS = QueueKeys("glide", "etl")


def fail(_: Context) -> None:
    raise ValueError("no")


def rest(_: Context) -> None:
    time.sleep(0.02)


def run_all(queue: Queue, run_worker: RunWorker, eventually: Eventually, ended: int) -> None:
    """Run a worker until this many jobs have ended, and stop it."""
    running = run_worker(["etl"], {"fail": fail, "rest": rest}, concurrency=2)

    def is_over() -> bool:
        counts = queue.counts()
        return counts[JobState.COMPLETED] + counts[JobState.FAILED] == ended

    eventually(is_over, 30)
    running.stop()


def test_a_worker_reports_what_its_jobs_took(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    assert queue.statistics().handlers == ()
    queue.add_many([NewJob("rest") for _ in range(10)])
    queue.add("fail", options=JobOptions(attempts=2, backoff=Backoff(delay=timedelta(milliseconds=1))))
    time.sleep(0.05)
    run_all(queue, run_worker, eventually, 11)
    found = queue.statistics()
    by_name = {one.handler: one for one in found.handlers}
    assert (found.running.count, found.failures, found.retries) == (10, 1, 1)
    assert (by_name["fail"].running.count, by_name["fail"].failures, by_name["fail"].waiting.count) == (
        0,
        1,
        2,
    )
    assert (by_name["rest"].running.mean or timedelta(0)) > timedelta(milliseconds=19)
    last = queue.recent_statistics()
    assert (last.completed, last.failed, last.retries) == (10, 1, 1)
    assert (last.running, last.waiting) == (found.running, found.waiting)
    assert by_name["rest"].waiting.count == sum(one.count for one in by_name["rest"].waiting.buckets) == 10
    assert (by_name["rest"].waiting.mean or timedelta(0)) > timedelta(milliseconds=49)


def test_nodes_of_flows_are_counted_under_their_jobs(
    queue: Queue, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    nodes = [FlowNode("a", queue="etl", job="rest"), FlowNode("b", queue="etl", job="rest", after=["a"])]
    flows.submit(FlowSpec("two", nodes), flow_id="f")
    run_all(queue, run_worker, eventually, 2)
    (one,) = queue.statistics().handlers
    assert (one.handler, one.running.count, one.waiting.count) == ("rest", 2, 2)


def test_running_workers_report_too(queue: Queue, run_worker: RunWorker, eventually: Eventually) -> None:
    run_worker(["etl"], {"rest": rest})
    queue.add("rest")
    eventually(lambda: queue.statistics().running.count == 1, 30)


def tally(*milliseconds: int) -> HandlerTally:
    one = HandlerTally(failures=1)
    for value in milliseconds:
        one.running.add([value])
    return one


def test_reports_are_merged_exactly(hand: Hand, redis_client: Any) -> None:
    now_ms = int(time.time() * 1_000)
    for part in (range(7), range(7, 20)):
        hand.run(ask(statistics.record(KEYS, {"a:b": tally(*(1_000 * n for n in part))}, now_ms)))
    key = KEYS.statistics(now_ms // DAY_MS)
    fields = redis_client.hgetall(key)
    assert (fields["r:count:a:b"], fields["c:failures:a:b"], fields["r:s19:a:b"]) == ("20", "2", "1")
    assert float(fields["r:mean:a:b"]) == pytest.approx(9_500, rel=1e-14)
    assert float(fields["r:squares:a:b"]) == pytest.approx(19 * 5_916.079783099**2, rel=1e-11)
    assert 30 * 86_400 < redis_client.ttl(key) <= 31 * 86_400


MINUTE, HOUR, NOON = 60_000, 3_600_000, 1_799_971_200_000


class At:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return NOON + 5 * MINUTE

    def monotonic_ms(self) -> int:
        return self.now_ms()


def test_the_last_hour_and_day_have_rates_and_percentiles(url: str, hand: Hand, redis_client: Any) -> None:
    seen = ((-25 * 60, 9_000), (-23 * 60, 8_000), (-66, 7_000), (-58, 1_000), (-4, 2_000), (4, 3_000))
    for minutes, took in seen:
        at = NOON + minutes * MINUTE
        hand.run(ask(recent.record(KEYS, {"load": tally(took), "save": tally(took)}, at)))
        redis_client.hset("glide:{etl}:metrics:completed", mapping={f"m:{at}:c": 60, f"m:{at}:d": 5})
        redis_client.hset("glide:{etl}:metrics:failed", mapping={f"m:{at}:c": 6})
    with Queue("etl", url, clock=At()) as queue:
        hour, day = queue.recent_statistics(), queue.recent_statistics(timedelta(days=1))
        assert queue.recent_statistics(60).completed == 60, "the last minute"
    assert (hour.since, hour.until) == (time_of(NOON - 55 * MINUTE), time_of(NOON + 5 * MINUTE))
    assert (hour.completed, hour.failed, hour.completed_per_minute, hour.failed_per_minute) == (
        120,
        12,
        2,
        0.2,
    )
    assert hour.durations_since == time_of(NOON - 60 * MINUTE)
    assert (hour.running.count, hour.running.mean, hour.retries) == (6, timedelta(seconds=2), 0)
    assert hour.running.percentile(100) == timedelta(seconds=3.25)
    assert (day.completed, day.running.count, day.waiting.count) == (300, 10, 0)
    ttl = redis_client.ttl(KEYS.recent_statistics(NOON // HOUR))
    assert 25 * 3_600 < ttl <= 26 * 3_600


def time_of(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)


def test_a_period_is_from_a_minute_to_a_day(queue: Queue) -> None:
    for period in (0, 59, 86_401, -1):
        with pytest.raises(ConfigurationError, match="period must"):
            queue.recent_statistics(period)


def test_handlers_beyond_the_limit_share_a_row(hand: Hand, queue: Queue) -> None:
    now_ms = int(time.time() * 1_000)
    for _ in range(2):
        names = {f"handler {number}": tally(1) for number in range(MAX_HANDLERS + 50)}
        hand.run(ask(statistics.record(KEYS, names, now_ms)))
    found = queue.statistics()
    rows = {one.handler: one.running.count for one in found.handlers}
    assert (len(rows), rows[""], found.running.count) == (MAX_HANDLERS + 1, 100, 2 * (MAX_HANDLERS + 50))


def test_obliterate_removes_them(queue: Queue, hand: Hand, redis_client: Any) -> None:
    queue.add("rest")
    hand.run(ask(statistics.record(KEYS, {"rest": tally(1)}, int(time.time() * 1_000))))
    hand.run(ask(recent.record(KEYS, {"rest": tally(1)}, int(time.time() * 1_000))))
    queue.obliterate(force=True)
    assert redis_client.keys("*:qx:*") == []


async def test_the_asyncio_client_reads_them(url: str, hand: Hand) -> None:
    hand.run(ask(statistics.record(KEYS, {"rest": tally(1)}, int(time.time() * 1_000))))
    async with AsyncQueue("etl", url) as queue:
        assert (await queue.statistics()).failures == 1


def test_the_command_shows_them(url: str, hand: Hand) -> None:
    hand.run(ask(statistics.record(KEYS, {"rest": tally(1, 20, 1_500, 90_000)}, int(time.time() * 1_000))))

    def typed(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["queue", *words], env={"GLIDEMQ_URL": url})
        assert done.exit_code == code, done.output
        return done.output

    shown = typed("statistics", "etl")
    assert "1.5 s to 1.75 s" in shown
    assert "1 min to 2 min" in shown
    found = json.loads(typed("statistics", "etl", "--json"))
    assert (found["running"]["count"], found["handlers"][0]["handler"]) == (4, "rest")
    assert found["running"]["buckets"][-1] == {"from": 60.0, "to": 120.0, "count": 1}
    unknown = typed("statistics", "etl", "--handler", "rset", code=1)
    assert "HandlerNotFound: queue etl has no statistics of handler 'rset' on" in unknown
    assert "did you mean 'rest'?" in unknown
    assert "are gone" in typed("statistics", "etl", "--day", "2020-01-01", code=2)
    assert "No job has run in queue other" in typed("statistics", "other")
    nothing = json.loads(typed("statistics", "other", "--json"))["running"]
    assert [nothing[name] for name in ("count", "mean", "deviation", "p50")] == [0, None, None, None]
    assert "p99" in typed("show", "etl")
