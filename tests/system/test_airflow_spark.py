"""Spark steps behind tasks of a real Airflow, on a worker with a warm session."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import psutil
import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import FlowProducer, JobState
from tests.system.real_airflow import HERE, PYTHON_PATH, RELEASE, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("spark_steps", "spark_stops")
MINUTE: Final = timedelta(minutes=1)


@pytest.fixture(scope="module")
def worker_path() -> Sequence[Path]:
    return [*PYTHON_PATH, HERE / "airflow_dags"]


@pytest.fixture(scope="module")
def environment() -> Mapping[str, str]:
    return {
        "GLIDEMQ_SPARK_MASTER": "local[1]",
        "GLIDEMQ_SPARK_CONF": '{"spark.ui.enabled": "true", "spark.ui.port": "0"}',
    }


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    allowed = ["--allow-import", "airflow_spark", "--allow-import", "spark_steps"]
    return [["--app", "glidemq_orchestrate.spark", "--queue", "spark", *allowed]]


def test_steps_run_on_the_warm_session_and_hand_their_results_on(
    airflow: Airflow, flows: FlowProducer, workers: list[subprocess.Popen[bytes]]
) -> None:
    run_id = airflow.begin("spark_steps", "r1")
    assert airflow.wait_for_run("spark_steps", run_id, timeout=240) == "success", airflow.story(
        "spark_steps", run_id
    )
    assert airflow.xcom("spark_steps", run_id, "count") == {
        "rows": 50,
        "partitions": 3,
        "of": run_id,
        "location": "/nowhere",
    }
    assert airflow.xcom("spark_steps", run_id, "add") == 55
    log = airflow.logs("spark_steps", run_id, "count")
    assert "[count] stages_done 0, stages 1, tasks_done" in log, "while it runs"
    assert "[count] stages_done 1, stages 1, tasks_done 4, tasks 4, ui http://" in log
    (node,) = flows.get(flow_id_for("spark_steps", "add", run_id)).nodes()
    assert (node.name, node.job, node.state) == ("add", "spark.python", JobState.COMPLETED)
    (worker,) = workers
    jvms = [child for child in psutil.Process(worker.pid).children(recursive=True) if child.name() == "java"]
    assert len(jvms) == 1, "one JVM for all steps"


def test_a_task_that_is_marked_stops_its_step(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.begin("spark_stops", "r1")
    until = time.monotonic() + 90
    while "tasks_done" not in airflow.logs("spark_stops", run_id, "flow"):
        assert time.monotonic() < until, airflow.story("spark_stops", run_id)
        time.sleep(0.5)
    airflow.mark_task("spark_stops", run_id, "flow", "failed")
    flow = flows.get(flow_id_for("spark_stops", "flow", run_id))
    if RELEASE < (3, 3):  # the trigger is not told
        flow.cancel("marked")
    assert flow.wait(timeout=MINUTE).status.state == "cancelled"
    # The session is free again: its one core runs the next step.
    again = airflow.begin("spark_steps", "after")
    assert airflow.wait_for_run("spark_steps", again, timeout=240) == "success", airflow.story(
        "spark_steps", again
    )
