"""Schedules run when they are due, also one that was just written, or that waits for the end of a run."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobOptions, JobState, JobTemplate, NewJob, Queue, Schedule
from glidemq_orchestrate.clients import Schedules

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

MS = timedelta(milliseconds=1)
EVERY = Schedule(every=200 * MS, limit=4)


@pytest.mark.parametrize(
    ("schedule", "backlog"),
    [
        (EVERY, 0),
        (EVERY, 600),
        (Schedule(repeat_after_complete=50 * MS, limit=4), 0),
        (Schedule(every=20 * MS, overlap=False, limit=4), 0),
    ],
)
def test_runs_are_not_late(  # noqa: PLR0917  fixtures
    schedule: Schedule, backlog: int, url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    ran: list[float] = []

    def beat(ctx: Any) -> None:
        ran.append(time.monotonic())
        time.sleep(0.05)

    run_worker(["etl"], {"beat": beat, "other": lambda ctx: time.sleep(0.01)}, concurrency=2)
    queue.add("other", {})
    eventually(lambda: queue.counts()[JobState.COMPLETED] > 0)  # it has looked at the schedules
    queue.add_many([NewJob("other", {})] * backlog)
    with Schedules("etl", url) as schedulers:
        began = time.monotonic()
        schedulers.upsert("beat", schedule, JobTemplate(options=JobOptions(priority=1)))
        eventually(lambda: len(ran) == 4)
    assert ran[0] - began < 1.2
    assert ran[3] - began < 1.8


def test_a_write_and_a_run_cost_the_same_beside_a_thousand_others(
    url: str, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    far = '{"every":86400000,"iterationCount":0,"template":{"data":"%s"},"nextRun":9999999999999}' % (
        "x" * 99
    )
    redis_client.hset("glide:{etl}:schedulers", mapping={f"node{n}": far for n in range(1_000)})
    ran: list[int] = []
    for _ in range(2):
        run_worker(["etl"], {"beat": lambda ctx: ran.append(1)})
    eventually(lambda: redis_client.zcard("glide:{etl}:gmo:schedulers:due") == 1_000)
    with Schedules("etl", url) as schedulers:
        schedulers.upsert("beat", Schedule(every=20 * MS, overlap=False))
        eventually(lambda: ran)
        sent, begun = redis_client.info("stats")["total_net_output_bytes"], len(ran)
        for n in range(20):
            schedulers.upsert(f"own{n}", Schedule(every=timedelta(days=1), logical_time=True))
        eventually(lambda: len(ran) >= begun + 20)
        sent = redis_client.info("stats")["total_net_output_bytes"] - sent
    assert sent < 400_000  # a look at all of them is 200,000
