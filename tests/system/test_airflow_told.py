"""What a real Airflow is told while flows run: lines of nodes, callbacks; and a triggerer that is silent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import Flow, FlowProducer
from glidemq_orchestrate.demo.airflow_stack import AirflowStackError
from tests.system.real_airflow import RELEASE, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("gated", "talks", "tells", "exits")
SILENCE: Final = 40  # seconds; Airflow gives a triggerer up after 30
MINUTE: Final = timedelta(minutes=1)


@pytest.fixture(scope="module")
def gates(place: Path) -> Path:
    folder = place / "gates"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def environment(place: Path, gates: Path) -> Mapping[str, str]:
    return {"GATES": str(gates), "TOLD_FILE": str(place / "told.txt")}


def until(predicate: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, predicate
        time.sleep(0.25)


def told(environment: Mapping[str, str], **wanted: Any) -> list[dict[str, Any]]:
    """What was written down, in order."""
    file = Path(environment["TOLD_FILE"])
    lines = file.read_text().splitlines() if file.exists() else []
    return [one for one in map(json.loads, lines) if wanted.items() <= one.items()]


def log_so_far(airflow: Airflow, dag_id: str, run_id: str) -> str:
    try:
        return airflow.task_log(dag_id, run_id, "flow")
    except AirflowStackError:
        return ""


def watched(airflow: Airflow, dag_id: str, run_id: str) -> bool:
    return "nodes completed" in log_so_far(airflow, dag_id, run_id)


def flow_of(flows: FlowProducer, dag_id: str, run_id: str) -> Flow:
    return flows.get(flow_id_for(dag_id, "flow", run_id))


def test_lines_of_a_node_are_in_the_log_while_the_task_is_deferred(
    airflow: Airflow, gates: Path, environment: Mapping[str, str]
) -> None:
    run_id = airflow.begin("talks", "talk")
    until(lambda: "[hold] before 2" in log_so_far(airflow, "talks", run_id))
    assert airflow.task_states("talks", run_id) == {"flow": "deferred"}
    (gates / run_id).touch()
    assert airflow.wait_for_run("talks", run_id) == "success", airflow.story("talks", run_id)
    log = airflow.logs("talks", run_id, "flow", 1)  # a scheduler that is late counts a try more
    for line in (*(f"[hold] before {number}" for number in range(3)), "[hold] after"):
        assert log.count(line) == 1, line
    kinds = [
        (one["kind"], one["state"]) for one in told(environment, flow_id=flow_id_for("talks", "flow", run_id))
    ]
    assert kinds[0] == ("submitted", "running")
    assert ("progress", "running") in kinds, "told by the triggerer"
    assert kinds[-1] == ("end", "completed")


def test_callbacks_of_airflow_find_the_flow_and_what_failed(
    airflow: Airflow, environment: Mapping[str, str]
) -> None:
    run_id = airflow.begin("tells", "tell")
    assert airflow.wait_for_run("tells", run_id) == "failed"
    failed = flow_id_for("tells", "fails", run_id)
    shown = {"error": "GlideMQFlowFailed", "flow_id": failed, "failed": ["clean", "report"]}
    assert told(environment, task="fails", error="GlideMQFlowFailed") == [
        {"kind": "retry", "task": "fails", **shown},
        {"kind": "failure", "task": "fails", **shown},
    ]
    (skipped,) = told(environment, task="skips", kind="skipped")
    assert skipped["error"] in ("AirflowSkipException", "NoneType")
    (succeeded,) = told(environment, task="succeeds", kind="success")
    assert succeeded["error"] == "NoneType"
    assert airflow.task_states("tells", run_id) == {
        "fails": "failed",
        "skips": "skipped",
        "succeeds": "success",
        "group.launch": "success",
        "group.works": "success",
        "group.skips": "skipped",
        "group.breaks": "failed",
    }
    for task, kind in (("works", "success"), ("skips", "skipped"), ("breaks", "failure")):
        assert len(told(environment, task=f"group.{task}", kind=kind)) == 1, task
    ends = [(one["try"], one["state"], one["failed"]) for one in told(environment, task="fails", kind="end")]
    assert ends == [(number, "failed", ["clean", "report"]) for number in (1, 2)]
    (end,) = told(environment, task="succeeds", kind="end")
    assert (end["state"], end["completed"]) == ("completed", 1)


def test_a_callback_that_exits_ends_no_triggerer(
    airflow: Airflow, gates: Path, environment: Mapping[str, str]
) -> None:
    run_id = airflow.begin("exits", "exits")
    flow_id = flow_id_for("exits", "flow", run_id)
    until(lambda: told(environment, flow_id=flow_id, kind="exiting"))
    (gates / run_id).touch()
    assert airflow.wait_for_run("exits", run_id) == "success", airflow.story("exits", run_id)
    assert len(told(environment, flow_id=flow_id, kind="end")) == 1


def test_a_flow_that_ends_while_the_triggerer_is_silent_ends_its_task_once(
    airflow: Airflow, flows: FlowProducer, gates: Path, environment: Mapping[str, str]
) -> None:
    run_id = airflow.begin("gated", "silent")
    until(lambda: watched(airflow, "gated", run_id))
    airflow.pause("triggerer")
    try:
        (gates / run_id).touch()
        flow = flow_of(flows, "gated", run_id)
        results = dict(flow.wait(timeout=MINUTE).results)
        time.sleep(SILENCE)
        assert airflow.task_states("gated", run_id) == {"flow": "deferred"}
    finally:
        airflow.resume("triggerer")
    assert airflow.wait_for_run("gated", run_id) == "success", airflow.story("gated", run_id)
    assert airflow.xcom("gated", run_id, "flow") == results
    assert [one.state.value for one in flow.history()] == ["completed"]
    assert len(told(environment, flow_id=flow.id, kind="end")) == 1


@pytest.mark.parametrize("when", ["while it is silent", "after it is back"])
def test_a_triggerer_that_comes_back_leaves_the_flow_to_the_other(
    airflow: Airflow, flows: FlowProducer, gates: Path, *, environment: Mapping[str, str], when: str
) -> None:
    """Airflow tells it, wrongly, that a user has ended the task."""
    run_id, other = airflow.begin("gated", when.replace(" ", "-")), f"triggerer-{when.split(maxsplit=1)[0]}"
    until(lambda: watched(airflow, "gated", run_id))
    airflow.start_again(other)
    before = log_so_far(airflow, "gated", run_id).count("0/2 nodes completed")
    assert before == 1
    airflow.pause("triggerer")
    try:
        until(lambda: log_so_far(airflow, "gated", run_id).count("0/2 nodes completed") > before, 150)
        flow = flow_of(flows, "gated", run_id)
        if when == "while it is silent":
            (gates / run_id).touch()
            assert airflow.wait_for_run("gated", run_id) == "success", airflow.story("gated", run_id)
    finally:
        airflow.resume("triggerer")
    time.sleep(5)
    if when == "after it is back":
        if RELEASE >= (3, 3):  # earlier ones tell no trigger anything
            left = f"The task continues, and so does flow {flow.id}"
            until(lambda: left in airflow.logs("gated", run_id, "flow"))
        assert flow.status().state == "running", airflow.story("gated", run_id)
        (gates / run_id).touch()
        assert airflow.wait_for_run("gated", run_id) == "success", airflow.story("gated", run_id)
    assert [one.state.value for one in flow.history()] == ["completed"]
    assert airflow.xcom("gated", run_id, "flow") == dict(flow.results())
    assert len(told(environment, flow_id=flow.id, kind="end")) == 1
    airflow.kill(other)
