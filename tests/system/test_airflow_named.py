"""Functions of a DAG file in a real Airflow, run by a worker that imports the file by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import FlowProducer
from tests.system.real_airflow import HERE, PYTHON_PATH, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("named",)


@pytest.fixture(scope="module")
def worker_path() -> Sequence[Path]:
    return [*PYTHON_PATH, HERE / "airflow_dags"]


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    return [["--app", "glidemq_orchestrate.python", "--queue", "python", "--allow-import", "named"]]


def test_functions_run_on_a_worker_and_hand_their_results_on(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.begin("named", "r1")
    assert airflow.wait_for_run("named", run_id, timeout=240) == "success", airflow.story("named", run_id)
    assert airflow.xcom("named", run_id, "total") == {"rows": 60, "months": 3}
    assert airflow.xcom("named", run_id, "total", "rows") == 60
    assert airflow.xcom("named", run_id, "where") == ["named", 3], "the name that the worker imports"
    (node,) = flows.get(flow_id_for("named", "rows", run_id, 1)).nodes()
    assert (node.name, node.job, node.queue) == ("rows", "python", "python")
    log = airflow.logs("named", run_id, "rows")
    assert f"[rows] month 2 of {run_id}" in log
    assert "[rows] INFO as any function logs" in log
