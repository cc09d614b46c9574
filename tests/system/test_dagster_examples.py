"""The examples in ``dags/dagster`` in a real Dagster, with the worker that their text asks for."""

from __future__ import annotations

import random
import time
from typing import Any

import dagster as dg
import pytest

from glidemq_orchestrate import EmbeddedServer, JobState, Queue
from glidemq_orchestrate.jobs import Job
from tests.system.real_dagster import DagsterStack

pytestmark = [pytest.mark.system, pytest.mark.long]

REGIONS = ["north", "east", "south", "west"]
ASSETS = [f"orders/{node}" for node in (*REGIONS, "check", "report")]


def totals(day: str) -> dict[str, int]:
    """What the report should say."""
    found = {}
    for region in REGIONS:
        chance = random.Random(f"{day} {region}")
        found[region] = sum([chance.randint(1, 100) for _ in range(chance.randint(5, 20))])
    return found


def report(dagster: DagsterStack, day: str) -> Any:
    """The newest report of a day."""
    found = [one for one in dagster.materializations("orders/report") if one.partition == day]
    return found[0].metadata["glidemq/result"].value if found else None


def test_a_backfill_materializes_days_with_their_checks(dagster: DagsterStack) -> None:
    days = ["2026-01-01", "2026-01-02"]
    backfill = dagster.backfill(ASSETS, days)
    assert dagster.wait_for_backfill(backfill) == "COMPLETED_SUCCESS"
    assert {day: report(dagster, day) for day in days} == {day: totals(day) for day in days}
    runs = dagster.runs({"dagster/backfill": backfill})
    assert len(runs) == 2
    for run_id in runs:
        (quality,) = dagster.checks("orders/check", "quality", run_id)
        assert quality.passed
        (workers,) = dagster.checks("orders/report", "workers", run_id)
        assert workers.passed, workers.description


def test_a_corrected_day_is_materialized_again(dagster: DagsterStack, dagster_server: EmbeddedServer) -> None:
    day = "2026-01-03"
    dagster.start_sensor("orders_corrected")
    dagster.wait_for_tick("orders_corrected", lambda tick: bool(tick["cursor"]))
    with Queue("shop", dagster_server.url) as queue:
        queue.add_and_wait("python", {"callable": "orders_steps:correct", "arguments": {"day": day}})
    tick = dagster.wait_for_tick("orders_corrected", lambda tick: bool(tick["runIds"]))
    dagster.stop_sensor("orders_corrected")
    assert dagster.wait_for_run(tick["runIds"][0]) == "SUCCESS", dagster.story(tick["runIds"][0])
    assert report(dagster, day) == totals(day)


def test_a_failed_day_is_observed_at_its_report(
    dagster: DagsterStack, dagster_server: EmbeddedServer
) -> None:
    dagster.start_sensor("orders_failed")
    dagster.wait_for_tick("orders_failed", lambda tick: bool(tick["cursor"]))
    with Queue("orders", dagster_server.url) as queue:
        queue.pause()
        run_id = dagster.launch("orders_job", partition="2026-01-04")
        dagster.wait_for_step(run_id, dg.DagsterEventType.STEP_START)
        jobs: list[Job] = []
        until = time.monotonic() + 120
        while not jobs:
            assert time.monotonic() < until, dagster.story(run_id)
            jobs = queue.search(state=JobState.WAITING, name="python")
            time.sleep(0.2)
        queue.revoke(jobs[0].id)
        queue.resume()
    assert dagster.wait_for_run(run_id) == "FAILURE", dagster.story(run_id)
    key = dg.AssetKey(["orders", "report"])
    found: list[Any] = []
    until = time.monotonic() + 120
    while not found:
        assert time.monotonic() < until, dagster.ticks("orders_failed")
        found = list(dagster.instance.fetch_observations(key, limit=10).records)
        time.sleep(0.2)
    dagster.stop_sensor("orders_failed")
    assert found[0].partition_key == "2026-01-04"


def test_the_schedule_can_be_turned_on(dagster: DagsterStack) -> None:
    dagster.start_schedule("nightly")
