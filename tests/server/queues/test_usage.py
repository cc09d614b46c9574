"""What jobs used: reports, sums, budgets."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Queue
from glidemq_orchestrate.errors import ConfigurationError, InvalidJob, JobNotFound
from glidemq_orchestrate.jobs.usage import Usage

if TYPE_CHECKING:
    from tests.server.conftest import Clients, Dump

P = "glide:{etl}:"
MINUTE = 1_700_000_040_000
FIRST = Usage(
    model="m",
    provider="p",
    tokens={"input": 100, "output": 20.5},
    costs={"input": 0.1},
    cost_unit="USD",
    latency=timedelta(seconds=1.5),
    cached=True,
)


class Still:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = MINUTE + 5

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()


@pytest.fixture
def clock() -> Still:
    return Still()


def test_a_report_is_written_as_glide_mq_writes_it(clients: Clients, clock: Still, redis_client: Any) -> None:
    queue = clients.queue(clock=clock)
    job_id = queue.add("a")
    assert queue.usage(job_id) is None
    queue.report_usage(job_id, FIRST)
    stored = redis_client.hgetall(f"{P}job:{job_id}")
    assert {name: value for name, value in stored.items() if name.startswith("usage:")} == {
        "usage:model": "m",
        "usage:provider": "p",
        "usage:tokens": '{"input":100,"output":20.5}',
        "usage:totalTokens": "120.5",
        "usage:costs": '{"input":0.1}',
        "usage:totalCost": "0.1",
        "usage:costUnit": "USD",
        "usage:latencyMs": "1500",
        "usage:cached": "1",
        "usage:bucketTs": str(MINUTE),
    }
    assert redis_client.hgetall(f"{P}usage:{MINUTE}") == {
        "jobCount": "1",
        "totalTokens": "120.5",
        "totalCost": "0.1",
        "costUnit": "USD",
        "models:m": "1",
        "tokens:input": "100",
        "tokens:output": "20.5",
        "costs:input": "0.1",
    }
    assert 0 < redis_client.ttl(f"{P}usage:{MINUTE}") <= 2_592_000
    assert redis_client.smembers("glide:usage:queues") == {"etl"}
    (_, event) = redis_client.xrevrange(f"{P}events", count=1)[0]
    assert (event["event"], event["jobId"]) == ("usage", job_id)
    assert json.loads(event["data"]) == FIRST.to_wire()
    found = queue.usage(job_id)
    assert (found.tokens, found.total_tokens, found.cached) == (FIRST.tokens, 120.5, True)
    assert (found.latency, found.cost_unit) == (FIRST.latency, "USD")


def test_a_second_report_replaces_the_first_in_its_own_minute(
    url: str, clock: Still, redis_client: Any
) -> None:
    with Queue("etl", url, clock=clock) as queue:
        job_id = queue.add("a")
        queue.report_usage(job_id, FIRST)
        clock.now += 60_000
        queue.report_usage(job_id, Usage(total_tokens=7))
        counted = redis_client.hgetall(f"{P}usage:{MINUTE}")
        assert {value for name, value in counted.items() if name != "costUnit"} == {"0"}
        assert redis_client.hgetall(f"{P}usage:{MINUTE + 60_000}") == {"jobCount": "1", "totalTokens": "7"}
        assert queue.usage(job_id) == Usage(total_tokens=7)


def test_a_report_waits_while_a_node_client_writes_one(queue: Queue, redis_client: Any) -> None:
    job_id = queue.add("a")
    redis_client.set(f"{P}job:{job_id}:usage-lock", "token")
    timer = threading.Timer(0.1, redis_client.delete, [f"{P}job:{job_id}:usage-lock"])
    timer.start()
    queue.report_usage(job_id, FIRST)
    timer.join()
    assert queue.usage(job_id) is not None


def test_a_report_for_a_missing_job_is_refused(clients: Clients, dump: Dump) -> None:
    queue = clients.queue()
    before = dump()
    with pytest.raises(JobNotFound):
        queue.report_usage("99", FIRST)
    assert dump() == before


def test_an_invalid_usage_is_refused_by_name() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tokens": {"a": -1}}, "tokens.a"),
        ({"costs": {"a": float("inf")}}, "costs.a"),
        ({"tokens": {"": 1}}, "category of tokens"),
        ({"total_tokens": -1}, "total_tokens"),
        ({"total_cost": float("nan")}, "total_cost"),
        ({"model": ""}, "model"),
        ({"latency": timedelta(seconds=-1)}, "latency"),
    ]
    for wrong, expected in cases:
        with pytest.raises(InvalidJob, match=expected):
            Usage(**wrong)


def test_an_empty_usage_is_refused(clients: Clients) -> None:
    with pytest.raises(InvalidJob, match="usage is empty"):
        clients.queue().report_usage("1", Usage())


class TestSummary:
    def test_the_minutes_asked_for_are_summed_over_queues(self, clients: Clients, clock: Still) -> None:
        for name, usage in (("etl", FIRST), ("etl", Usage(model="n", total_tokens=7)), ("spark", FIRST)):
            queue = clients.queue(name, clock=clock)
            queue.report_usage(queue.add("a"), usage)
        clock.now += 3_600_000 - 10
        found = clients.queue(clock=clock).usage_summary()
        assert (found.jobs, found.total_tokens, found.models) == (3, 248, {"m": 2, "n": 1})
        assert (found.tokens, found.cost_unit) == ({"input": 200, "output": 41}, "USD")
        assert found.total_cost == pytest.approx(0.2)
        assert found.by_queue["spark"].jobs == 1
        assert found.by_queue["spark"].costs == {"input": 0.1}
        alone = clients.queue(clock=clock).usage_summary(queues=["spark"])
        assert (alone.jobs, list(alone.by_queue)) == (1, ["spark"])

    def test_what_is_outside_the_time_does_not_count(self, url: str, clock: Still) -> None:
        with Queue("etl", url, clock=clock) as queue:
            queue.report_usage(queue.add("a"), FIRST)
            clock.now += 7_200_000
            assert queue.usage_summary().jobs == 0
            start = datetime.fromtimestamp(MINUTE / 1000, UTC)
            assert queue.usage_summary(start=start).jobs == 1
            assert queue.usage_summary(start=start, end=start + timedelta(minutes=1)).jobs == 1

    @pytest.mark.parametrize("hours", [0, 12, -12])
    def test_the_end_of_all_time_is_a_time(self, queue: Queue, hours: int) -> None:
        last = datetime.max.replace(tzinfo=timezone(timedelta(hours=hours)))
        found = queue.usage_summary(start=last, end=last)
        assert found.jobs == 0
        assert found.end <= datetime.max.replace(tzinfo=UTC)

    def test_an_invalid_time_is_refused(self, clients: Clients) -> None:
        queue, now = clients.queue(), datetime.now(UTC)
        for wrong, expected in (
            ({"start": now.replace(tzinfo=None)}, "start must have a time zone"),
            ({"start": now, "end": now - timedelta(minutes=1)}, "start must not be after end"),
            ({"start": now - timedelta(days=30), "queues": ["a", "b", "c"]}, "buckets"),
        ):
            with pytest.raises(ConfigurationError, match=expected):
                queue.usage_summary(**wrong)


def test_the_budget_of_a_flow_is_read(clients: Clients, redis_client: Any) -> None:
    queue = clients.queue()
    assert queue.flow_budget("7") is None
    stored = {
        "usedTokens": "5.5",
        "usedCost": "0",
        "exceeded": "1",
        "onExceeded": "pause",
        "maxTotalTokens": "100",
        "maxCosts": '{"a":1}',
        "costUnit": "USD",
    }
    redis_client.hset(f"{P}budget:7", mapping=stored)
    budget = queue.flow_budget("7")
    assert (budget.used_tokens, budget.max_total_tokens, budget.exceeded) == (5.5, 100, True)
    assert (budget.on_exceeded, budget.max_costs, budget.max_total_cost) == ("pause", {"a": 1}, None)
