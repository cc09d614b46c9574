"""What users do to tasks of a real Airflow, and the death of its processes: what becomes of the flows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import Flow, FlowProducer
from tests.system.conftest import HANDLERS
from tests.system.real_airflow import HERE, RELEASE, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

TOLD: Final = RELEASE >= (3, 3)  # earlier ones tell no trigger that a user has ended its task
DAGS: Final = ("stamps", "daily", "times_out", "waits", "keeps_its_slot", "survives", "mended")
MENDED: Final = """
from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator

with DAG("mended", schedule=None, catchup=False):
    GlideMQFlowOperator(task_id="flow", defer_after=20, result="all", flow={
        "name": "mended", "nodes": [
            {"name": "load", "queue": "system", "job": "stamp"},
            {"name": "clean", "queue": "system", "job": "JOB", "after": ["load"], "data": 1},
        ]})
"""


@pytest.fixture(scope="module")
def dags(place: Path) -> Path:
    folder = place / "dags"
    folder.mkdir()
    (folder / "verbs.py").write_text((HERE / "airflow_dags" / "verbs.py").read_text())
    (folder / "mended.py").write_text(MENDED.replace("JOB", "fail"))
    return folder


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    return {"TASK_PID_FILE": str(place / "task.pid"), "STEPS_FILE": str(place / "steps.txt")}


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    return [HANDLERS, HANDLERS]


def flow_of(flows: FlowProducer, dag_id: str, run_id: str) -> Flow:
    return flows.get(flow_id_for(dag_id, "flow", run_id))


def generations(flows: FlowProducer, dag_id: str, run_id: str) -> list[str]:
    return [status.state.value for status in flow_of(flows, dag_id, run_id).history()]


def reason_of(flow: Flow) -> str:
    status = flow.wait(timeout=timedelta(seconds=100)).status
    assert status.state == "cancelled", status
    return status.reason


def test_a_clear_or_a_deletion_of_the_run_begins_anew(airflow: Airflow, flows: FlowProducer) -> None:
    run_id, stamps = airflow.begin("stamps", "again"), list[int]()

    def ended() -> None:
        assert airflow.wait_for_run("stamps", run_id) == "success"
        stamps.append(airflow.xcom("stamps", run_id, "after"))

    ended()
    airflow.clear("stamps", run_id)
    airflow.wait_until_it_runs("stamps", run_id, "flow")
    ended()
    assert generations(flows, "stamps", run_id) == ["completed"] * 2
    airflow.clear("stamps", run_id, ["after"])
    airflow.wait_until_it_runs("stamps", run_id, "after")
    ended()
    assert generations(flows, "stamps", run_id) == ["completed"] * 2
    airflow.clear("stamps", run_id, ["flow"], downstream=True)
    airflow.wait_until_it_runs("stamps", run_id, "after")
    ended()
    airflow.delete_run("stamps", run_id)
    airflow.begin("stamps", run_id)
    ended()
    assert generations(flows, "stamps", run_id) == ["completed"] * 4
    assert stamps[1] == stamps[2], "only what follows was cleared"
    assert len(set(stamps)) == 4, "an old result was shown as new"


def test_each_way_of_a_backfill_to_reprocess(airflow: Airflow, flows: FlowProducer) -> None:
    airflow.backfill("daily", "none")
    (run_id,) = airflow.backfilled("daily")
    assert airflow.wait_for_run("daily", run_id) == "success"
    for reprocess, count in (("none", 1), ("failed", 1), ("completed", 2)):
        airflow.backfill("daily", reprocess)
        assert airflow.wait_for_run("daily", run_id) == "success"
        assert generations(flows, "daily", run_id) == ["completed"] * count, reprocess


def test_a_dag_that_was_mended_and_cleared_runs_as_it_is_now(
    airflow: Airflow, flows: FlowProducer, dags: Path
) -> None:
    run_id = airflow.begin("mended", "r1")
    assert airflow.wait_for_run("mended", run_id) == "failed"
    airflow.wait_for_change("mended", dags / "mended.py", MENDED.replace("JOB", "echo"))
    airflow.clear("mended", run_id, ["flow"])
    airflow.wait_until_it_runs("mended", run_id, "flow")
    assert airflow.wait_for_run("mended", run_id) == "success"
    assert airflow.xcom("mended", run_id, "flow")["clean"] == 1
    assert generations(flows, "mended", run_id) == ["failed", "completed"]


@pytest.mark.skipif(not TOLD, reason="the lease ends the flow: see test_airflow_flow.py")
def test_a_waiting_task_that_is_marked_successful_ends_its_flow_at_once(
    airflow: Airflow, flows: FlowProducer
) -> None:
    run_id = airflow.begin("waits", "marked")
    airflow.wait_for_task("waits", run_id, "flow", ["deferred"])
    until = time.monotonic() + 60
    while "0/1 nodes completed" not in airflow.task_log("waits", run_id, "flow"):
        assert time.monotonic() < until
        time.sleep(0.2)
    airflow.mark_task("waits", run_id, "flow", "success")
    marked = time.monotonic()
    assert "ended by a user (state: success)" in reason_of(flow_of(flows, "waits", run_id))
    sys.stdout.write(f"from the mark to the end of the flow: {time.monotonic() - marked:.1f} s\n")
    assert airflow.task_states("waits", run_id) == {"flow": "success"}


def test_what_ends_while_nobody_watches_leaves_no_flow(
    airflow: Airflow, flows: FlowProducer, environment: dict[str, str]
) -> None:
    """The triggerer is dead while tasks are marked, time out and lose their process; then it comes back."""
    companion = airflow.begin("waits", "companion")
    airflow.wait_for_task("waits", companion, "flow", ["deferred"])
    airflow.kill("triggerer")
    marked, late = airflow.begin("waits", "unwatched"), airflow.begin("times_out", "late")
    killed = airflow.begin("keeps_its_slot", "killed")
    for dag_id, run_id in (("waits", marked), ("times_out", late)):
        airflow.wait_for_task(dag_id, run_id, "flow", ["deferred"])
    airflow.mark_task("waits", marked, "flow", "failed")
    airflow.wait_for_task("keeps_its_slot", killed, "flow", ["running"])
    until = time.monotonic() + 60
    while not Path(environment["TASK_PID_FILE"]).exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    lost = [("waits", marked), ("times_out", late), ("keeps_its_slot", killed)]
    flow_ids = [flow_id_for(dag_id, "flow", run_id) for dag_id, run_id in lost]
    while not set(flow_ids) <= {one.id for one in flows.list(state="running")}:
        assert time.monotonic() < until
        time.sleep(0.1)
    os.kill(int(Path(environment["TASK_PID_FILE"]).read_text()), signal.SIGKILL)
    assert airflow.wait_for_run("times_out", late) == "failed"
    assert airflow.wait_for_run("keeps_its_slot", killed) == "failed"
    airflow.start_again("triggerer")
    for flow_id in flow_ids:
        reason = reason_of(flows.get(flow_id))
        # By the trigger, where it had started at last; else by the reconciler.
        ended = (
            "ended by a user (state: ",
            "its Airflow task has ended (state: ",
            "(dagrun_timeout, or fail_fast)",
        )
        assert any(one in reason for one in ended), reason
    assert generations(flows, "waits", companion) == ["running"]
    airflow.mark_task("waits", companion, "flow", "failed")
    if not TOLD:
        flow_of(flows, "waits", companion).cancel("enough")
    reason_of(flow_of(flows, "waits", companion))


def test_worker_triggerer_and_scheduler_are_killed_within_one_run(
    airflow: Airflow, flows: FlowProducer, workers: list[subprocess.Popen[bytes]], environment: dict[str, str]
) -> None:
    steps, run_id = Path(environment["STEPS_FILE"]), airflow.begin("survives", "killed")

    def begun(name: str) -> int:
        """The process that runs this step."""
        until = time.monotonic() + 90
        while time.monotonic() < until:
            found = [line.split() for line in steps.read_text().splitlines()] if steps.exists() else []
            if pids := [int(pid) for node, pid in found if node == name]:
                return pids[-1]
            time.sleep(0.1)
        raise AssertionError(f"{name} has not begun: {airflow.task_states('survives', run_id)}")

    first = begun("step0")
    os.kill(first, signal.SIGKILL)  # one of the two workers
    airflow.wait_for_task("survives", run_id, "flow", ["deferred"])
    begun("step1")
    airflow.kill("triggerer")
    begun("step2")
    airflow.kill("scheduler")
    airflow.start_again("triggerer")
    airflow.start_again("scheduler")
    assert airflow.wait_for_run("survives", run_id, timeout=240) == "success"
    assert airflow.xcom("survives", run_id, "flow")["step3"] == [f"step{number}" for number in range(4)]
    flow = flow_of(flows, "survives", run_id)
    assert generations(flows, "survives", run_id) == ["completed"]
    assert {node.name: node.state.value for node in flow.nodes()} == {
        f"step{n}": "completed" for n in range(4)
    }
    assert [line.split()[0] for line in steps.read_text().splitlines()].count("step0") == 2
    assert any(worker.poll() is not None for worker in workers)
