"""Schedules run when they are due, also one that was just written, or that waits for the end of a run."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobOptions, JobState, JobTemplate, NewJob, Queue, Schedule, Schedulers

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
    with Schedulers("etl", url) as schedulers:
        began = time.monotonic()
        schedulers.upsert("beat", schedule, JobTemplate(options=JobOptions(priority=1)))
        eventually(lambda: len(ran) == 4)
    assert ran[0] - began < 1.2
    assert ran[3] - began < 1.8
