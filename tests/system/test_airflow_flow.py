"""Flows behind tasks of a real Airflow: scheduler, DAG processor, triggerer, API server."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import timedelta

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import Flow, FlowProducer, FlowState
from glidemq_orchestrate.demo.airflow_stack import AirflowStackError
from glidemq_orchestrate.errors import FlowNotFound, WaitTimeout
from tests.system.real_airflow import RELEASE, Airflow

pytestmark = pytest.mark.system

DAGS = ("completes", "fails", "hangs", "keeps", "repairs", "senses")
TOTAL = 2 * (2 * (12 + sum(range(12))) + 3) + 7 + 1


def test_a_flow_runs_behind_one_task_and_a_sensor_sees_it(airflow: Airflow, flows: FlowProducer) -> None:
    start = time.monotonic()
    run_id = airflow.trigger_dag("completes")
    sensing = airflow.trigger_dag("senses", {"run_id": run_id})

    assert airflow.wait_for_run("completes", run_id) == "success", airflow.story("completes", run_id)
    sys.stdout.write(f"DAG run of 22 nodes: {time.monotonic() - start:.1f} s\n")
    flow_id = flow_id_for("completes", "flow", run_id)
    assert airflow.xcom("completes", run_id, "flow", "glidemq_flow_id") == flow_id
    assert airflow.xcom("completes", run_id, "flow") == {"run": run_id, "total": TOTAL}
    assert airflow.xcom("completes", run_id, "after") == TOTAL
    status = flows.get(flow_id).status()
    assert (status.state, status.total, status.completed) == (FlowState.COMPLETED, 22, 22)
    assert (status.labels["orchestrator"], status.labels["run_id"]) == ("airflow", run_id)
    log = airflow.logs("completes", run_id, "flow")
    assert f"Flow {flow_id}: 22 nodes, home queue system" in log
    assert f"Flow {flow_id} completed: 22 nodes" in log

    assert airflow.wait_for_run("senses", sensing) == "success", airflow.story("senses", sensing)
    assert airflow.xcom("senses", sensing, "ready") == {"run": run_id, "total": TOTAL}


def test_a_failed_flow_fails_the_task_with_the_reason(airflow: Airflow) -> None:
    run_id = airflow.trigger_dag("fails")
    assert airflow.wait_for_run("fails", run_id) == "failed"
    assert airflow.task_states("fails", run_id) == {"flow": "failed"}
    log = airflow.logs("fails", run_id, "flow")
    assert "GlideMQFlowFailed" in log
    assert "month 13 does not exist" in log


@pytest.mark.long
def test_a_retry_repairs_and_a_clear_runs_anew(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.trigger_dag("repairs")
    flow_id = flow_id_for("repairs", "flow", run_id)
    stamps = []
    for generation in range(2):
        assert airflow.wait_for_run("repairs", run_id) == "success", airflow.story("repairs", run_id)
        results = airflow.xcom("repairs", run_id, "flow")
        assert results["lucky"] == generation
        stamps.append(results["stamp"])
        flow = flows.get(flow_id)
        assert [status.state for status in flow.history()] == ["completed"] * (generation + 1)
        assert flow.node("stamp").attempts == 1
        if not generation:
            airflow.clear_task("repairs", run_id, "flow")
            airflow.wait_until_it_runs("repairs", run_id, "flow")
    assert stamps[0] < stamps[1]


@pytest.mark.long
def test_a_clear_while_waiting_runs_anew_and_a_failure_cancels(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.trigger_dag("hangs")
    airflow.wait_for_task("hangs", run_id, "flow", ["deferred"])
    flow = flows.get(flow_id_for("hangs", "flow", run_id))
    _wait_until_watched(airflow, run_id, try_number=1)
    airflow.clear_task("hangs", run_id, "flow")
    _wait_until_watched(airflow, run_id, try_number=2)
    assert [one.state for one in flow.history()] == ["cancelled", "running"], (
        "the old trigger was killed late"
    )
    flow = flows.get(flow.id)
    airflow.mark_task("hangs", run_id, "flow", "failed")
    told = RELEASE >= (3, 3)  # earlier ones tell no trigger why it ends: the lease of the owner lapses
    outcome = flow.wait(timeout=timedelta(seconds=40 if told else 200))
    assert outcome.status.state is FlowState.CANCELLED
    expected = "ended by a user (state: failed)" if told else f"task hangs.flow of run {run_id} is gone"
    assert expected in outcome.status.reason


@pytest.mark.long
def test_a_flow_that_a_person_runs_again_is_left_alone(airflow: Airflow, flows: FlowProducer) -> None:
    """Its task has failed; a trigger of another run looks once a minute for what nobody watches."""
    run_id = airflow.trigger_dag("hangs")
    airflow.wait_for_task("hangs", run_id, "flow", ["deferred"])
    flow = flows.get(flow_id_for("hangs", "flow", run_id))
    flow.cancel("wrong data")
    assert airflow.wait_for_run("hangs", run_id) == "failed"
    other = airflow.trigger_dag("hangs")
    airflow.wait_for_task("hangs", other, "flow", ["deferred"])
    assert flow.retry_failed() == "running"
    with pytest.raises(WaitTimeout):
        flow.wait(timeout=timedelta(seconds=150))
    for one in (run_id, other):
        flows.get(flow_id_for("hangs", "flow", one)).cancel("enough")


@pytest.mark.long
def test_a_task_that_is_marked_while_it_runs_cancels_its_flow(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.trigger_dag("keeps")
    airflow.wait_for_task("keeps", run_id, "flow", ["running"])
    flow = _begun(flows, flow_id_for("keeps", "flow", run_id))
    airflow.mark_task("keeps", run_id, "flow", "failed")
    outcome = flow.wait(timeout=timedelta(seconds=60))
    assert outcome.status.state is FlowState.CANCELLED
    assert "the Airflow task was killed" in outcome.status.reason


def _begun(flows: FlowProducer, flow_id: str) -> Flow:
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(FlowNotFound):
            return flows.get(flow_id)
        assert time.monotonic() < until
        time.sleep(0.1)


def _wait_until_watched(airflow: Airflow, run_id: str, try_number: int) -> None:
    """Wait for the trigger: Airflow notifies only a running trigger of what a user did."""
    until = time.monotonic() + 60
    while "0/2 nodes completed" not in _log_so_far(airflow, run_id, try_number):
        assert time.monotonic() < until
        time.sleep(0.5)


def _log_so_far(airflow: Airflow, run_id: str, try_number: int) -> str:
    try:
        return airflow.task_log("hangs", run_id, "flow", try_number)
    except AirflowStackError:
        return ""  # this try has not begun
