"""Flows behind assets of a real Dagster: runs that fail, are ended, retried, re-executed; a backfill."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from glidemq_orchestrate import FlowProducer, FlowState
from tests.system.real_dagster import DagsterStack

pytestmark = [pytest.mark.system, pytest.mark.long]

NODES = ["extract", "left", "right", "report"]


@dataclass
class Place:
    """The folder of one test: files that tell the handlers what to do, and what they noted."""

    path: Path

    @property
    def tags(self) -> dict[str, str]:
        return {"test/place": str(self.path)}

    def mark(self, name: str) -> Path:
        file = self.path / name
        file.touch()
        return file

    def runs(self) -> Counter[str]:
        file = self.path / "runs"
        return Counter(file.read_text().split() if file.exists() else [])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def wait_for(predicate: Callable[[], object], timeout: float = 60) -> None:
    until = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.1)


def materialized(dagster: DagsterStack, run_id: str, prefix: str = "etl") -> set[str]:
    return {node for node in NODES if dagster.materializations(f"{prefix}/{node}", run_id)}


def failed_run(dagster: DagsterStack, place: Place) -> str:
    """A run whose node ``right`` has failed; it would not any more."""
    broken = place.mark("fail-right")
    run_id = dagster.launch("etl_job", tags=place.tags)
    assert dagster.wait_for_run(run_id) == "FAILURE", dagster.story(run_id)
    assert materialized(dagster, run_id) == {"extract", "left"}
    assert "right is broken" in dagster.story(run_id)
    broken.unlink()
    return run_id


@pytest.mark.parametrize("strategy", ["FROM_FAILURE", "FROM_ASSET_FAILURE"])
def test_a_re_execution_from_failure_runs_only_what_did_not_complete(
    dagster: DagsterStack, place: Place, strategy: str
) -> None:
    first = failed_run(dagster, place)
    again = dagster.reexecute(first, strategy)
    assert dagster.wait_for_run(again) == "SUCCESS", dagster.story(again)
    assert {"right", "report"} <= materialized(dagster, again)
    assert place.runs() == Counter({"extract": 1, "left": 1, "right": 2, "report": 1})


def test_a_re_execution_of_all_steps_runs_everything_again(dagster: DagsterStack, place: Place) -> None:
    first = failed_run(dagster, place)
    again = dagster.reexecute(first, "ALL_STEPS")
    assert dagster.wait_for_run(again) == "SUCCESS", dagster.story(again)
    assert materialized(dagster, again) == set(NODES)
    assert place.runs() == Counter({"extract": 2, "left": 2, "right": 2, "report": 1})


def test_the_daemon_retries_a_failed_run(dagster: DagsterStack, place: Place) -> None:
    place.mark("fail-once-right")
    first = dagster.launch("etl_job", tags={**place.tags, "dagster/max_retries": "1"})
    assert dagster.wait_for_run(first) == "FAILURE", dagster.story(first)
    retry = dagster.wait_for_retry(first)
    assert dagster.wait_for_run(retry) == "SUCCESS", dagster.story(retry)
    assert place.runs() == Counter({"extract": 1, "left": 1, "right": 2, "report": 1})


def test_terminating_a_run_cancels_its_flow(
    dagster: DagsterStack, place: Place, dagster_flows: FlowProducer
) -> None:
    place.mark("hold-extract")
    run_id = dagster.launch("etl_job", tags=place.tags)
    wait_for(lambda: place.runs()["extract"], 120)
    dagster.terminate(run_id)
    assert dagster.wait_for_run(run_id) == "CANCELED", dagster.story(run_id)
    wait_for((place.path / "held-extract").exists)
    wait_for((place.path / "held-extract").read_text)
    assert (place.path / "held-extract").read_text() == "cancelled"
    assert place.runs() == Counter(["extract"])
    said = " ".join(entry.user_message for entry in dagster.events(run_id))
    flow_id = next(word for word in said.split() if word.startswith("dg-"))
    assert dagster_flows.get(flow_id).status().state is FlowState.CANCELLED


def test_some_assets_of_a_flow_can_be_materialized(dagster: DagsterStack, place: Place) -> None:
    run_id = dagster.launch(assets=["etl/left"], tags=place.tags)
    assert dagster.wait_for_run(run_id) == "SUCCESS", dagster.story(run_id)
    assert materialized(dagster, run_id) == {"left"}
    assert place.runs() == Counter(["extract", "left"])


def test_a_backfill_materializes_each_partition_and_names_the_failed_one(
    dagster: DagsterStack, place: Place
) -> None:
    place.mark("fail-right-b")
    backfill = dagster.backfill([f"daily/{node}" for node in NODES], ["a", "b", "c"], place.tags)
    assert dagster.wait_for_backfill(backfill) == "COMPLETED_FAILED"
    found = {
        node: {one.partition for one in dagster.materializations(f"daily/{node}")}
        for node in ("left", "report")
    }
    assert found == {"left": {"a", "b", "c"}, "report": {"a", "c"}}
    runs = dagster.runs({"dagster/backfill": backfill})
    assert sorted(dagster.run_status(run) for run in runs) == ["FAILURE", "SUCCESS", "SUCCESS"]


def test_a_killed_daemon_and_webserver_come_back_with_what_they_knew(
    dagster: DagsterStack, place: Place
) -> None:
    run_id = dagster.launch(assets=["etl/extract"], tags=place.tags)
    assert dagster.wait_for_run(run_id) == "SUCCESS", dagster.story(run_id)
    for component in ("daemon", "webserver"):
        dagster.kill(component)
        dagster.start_again(component)
    assert dagster.run_status(run_id) == "SUCCESS"
    events = dagster.events(run_id, dg.DagsterEventType.ASSET_MATERIALIZATION)
    keys = [entry.dagster_event.asset_key for entry in events if entry.dagster_event]
    assert keys == [dg.AssetKey(["etl", "extract"])]
