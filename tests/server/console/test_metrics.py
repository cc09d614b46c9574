"""What Prometheus reads of the console."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobState,
    NewJob,
    Queue,
    Schedule,
)
from glidemq_orchestrate.clients.schedules import Schedules
from glidemq_orchestrate.foundation.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker

TOKEN = "a-token"
CALLS_OF_A_QUEUE = 24
CALLS_OF_THE_REST = 8

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(console: TestClient) -> Samples:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  optional

    reply = console.get("/metrics")
    assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    found = [one for family in text_string_to_metric_families(reply.text) for one in family.samples]
    samples = {(one.name, frozenset(one.labels.items())): one.value for one in found}
    assert len(samples) == len(found), "no sample is there twice"
    return samples


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"glidemq_{name}", frozenset(labels.items())))


class Earlier(SystemClock):
    """An hour ago."""

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000


def load(ctx: Context) -> int:
    if ctx.data == "bad" or (ctx.data == "later" and ctx.attempt == 1):
        raise ValueError(ctx.data)
    time.sleep(0.005)
    return 1


def test_a_scrape_tells_of_queues_jobs_and_flows(
    console: TestClient,
    queue: Queue,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
) -> None:
    queue.set_dead_letter_queue("letters")
    queue.add_many([NewJob("load", "ok"), NewJob("load", "bad"), NewJob("load", "later", attempts=2)])
    flow = flows.submit(FlowSpec("n", [ArrayNode("each", job="load", over=range(5), queue="etl")]))
    worker = run_worker(["etl"], {"load": load})
    flow.wait(timeout=30)
    eventually(lambda: queue.counts()[JobState.FAILED] == 1 and queue.counts()[JobState.COMPLETED] == 3)
    assert value(scrape(console), "queue_workers", queue="etl") == 1
    worker.stop()
    queue.pause()
    queue.add_many([NewJob("load", number) for number in range(3)])
    queue.add("load", delay=60)
    flows.submit(FlowSpec("n", [FlowNode("a", job="load", queue="etl")]))
    with Schedules("etl", queue._settings, clock=Earlier()) as schedules:
        schedules.upsert("often", Schedule(every=60))
        schedules.upsert("rarely", Schedule(every=7_200))
    time.sleep(0.1)

    found = scrape(console)
    assert value(found, "up") == value(found, "queue_up", queue="etl") == 1
    states = {"waiting": 4, "delayed": 1, "failed": 1, "active": 0}
    for state, count in states.items():
        assert value(found, "queue_jobs", queue="etl", state=state) == count, state
    assert 0.1 <= (value(found, "queue_oldest_waiting_seconds", queue="etl") or 0) < 30
    assert value(found, "queue_paused", queue="etl") == 1
    assert value(found, "queue_workers", queue="etl") == 0
    assert value(found, "queue_late_schedules", queue="etl") == 1
    assert value(found, "queue_dead_letters", queue="letters") == 1
    labels = {"queue": "etl", "handler": "load"}
    assert value(found, "jobs_total", **labels, outcome="completed") == 7
    assert value(found, "jobs_total", **labels, outcome="failed") == 1
    assert value(found, "job_retries_total", **labels) == 1
    assert value(found, "job_running_seconds_count", **labels) == 7
    assert value(found, "job_running_seconds_bucket", **labels, le="1.0") == 7
    assert value(found, "job_running_seconds_bucket", **labels, le="0.004") == 0
    assert 0.035 <= (value(found, "job_running_seconds_sum", **labels) or 0) < 7
    assert value(found, "flows", queue="etl", state="completed") == 1
    assert value(found, "flows", queue="etl", state="running") == 1
    memory = {labels: number for (name, labels), number in found.items() if "memory_used" in name}
    assert memory
    assert all(number > 100_000 for number in memory.values()), "each primary"
    assert 0 < (value(found, "scrape_duration_seconds") or 0) < 8


def test_a_scrape_makes_few_calls_however_many_jobs_there_are(
    open_console: Callable[..., TestClient], queue: Queue, redis_client: Any
) -> None:
    console = open_console()
    queue.add_many([NewJob("load", number, priority=number % 3) for number in range(6)])
    scrape(console)
    few = calls_of(redis_client, lambda: scrape(console))
    queue.add_many([NewJob("load", number, priority=number % 3) for number in range(3_000)])
    many = calls_of(redis_client, lambda: scrape(console))
    assert many <= few + 4, "a page of priorities each"
    assert many <= CALLS_OF_A_QUEUE + CALLS_OF_THE_REST, many
    for name in ("b", "c"):
        with Queue(name, queue._settings) as other:
            other.add("load")
    console = open_console()
    scrape(console)
    assert calls_of(redis_client, lambda: scrape(console)) <= 3 * CALLS_OF_A_QUEUE + CALLS_OF_THE_REST


def calls_of(client: Any, act: Callable[[], object]) -> int:
    def count() -> int:
        stats = client.info("commandstats")
        return sum(
            one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_time")
        )

    def scans() -> list[int]:
        stats = client.info("commandstats")
        return [stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("scan", "keys")]

    scanned = scans()
    before = count()
    act()
    made = count() - before + 1  # INFO of its memory
    assert scans() == scanned
    return made


def test_a_broken_queue_does_not_break_the_others(
    console: TestClient, queue: Queue, redis_client: Any
) -> None:
    queue.add("load")
    redis_client.set("glide:{bad}:scheduled", "no sorted set")
    found = scrape(console)
    assert value(found, "queue_up", queue="bad") == 0
    assert value(found, "queue_jobs", queue="bad", state="waiting") is None
    assert value(found, "queue_jobs", queue="etl", state="waiting") == 1
    assert value(found, "scrape_errors_total", part="queue") == 1
    assert value(scrape(console), "scrape_errors_total", part="queue") == 2


def test_a_slow_server_does_not_hold_a_scrape(
    console: TestClient, queue: Queue, redis_client: Any, monkeypatch: Any
) -> None:
    from glidemq_orchestrate.console import metrics  # noqa: PLC0415  optional

    queue.add("load")
    scrape(console)
    monkeypatch.setattr(metrics, "PART_SECONDS", 0.2)
    redis_client.client_pause(1_200)
    begun = time.monotonic()
    found = scrape(console)
    assert time.monotonic() - begun < 1.1
    assert (value(found, "up"), value(found, "queue_up", queue="etl")) == (0, 0)
    redis_client.ping()
    assert value(scrape(console), "up") == 1


def test_without_a_server_it_says_so() -> None:
    from starlette.testclient import TestClient  # noqa: PLC0415  optional

    from glidemq_orchestrate.console import create_app  # noqa: PLC0415

    with TestClient(create_app("valkey://127.0.0.1:1"), base_url="http://localhost") as console:
        found = scrape(console)
    assert value(found, "up") == 0
    assert value(found, "scrape_errors_total", part="memory") == 1


def test_it_needs_the_token(open_console: Callable[..., TestClient]) -> None:
    console = open_console(token=TOKEN)
    assert console.get("/metrics").status_code == 401
    assert console.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_it_is_for_those_who_may_see_queues(open_console: Callable[..., TestClient]) -> None:
    from glidemq_orchestrate.console import Guard  # noqa: PLC0415  optional

    class Strict(Guard):
        async def sees_queues(self, request: Any) -> bool:
            return False

    assert open_console(guard=Strict()).get("/metrics").status_code == 403
