"""The example DAGs in a real Airflow, with the worker that their text asks for."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from airflow_provider_glidemq.identity import flow_id_for

from glidemq_orchestrate import EmbeddedServer, FlowProducer
from tests.processes import spawned
from tests.system.real_airflow import Airflow

pytestmark = pytest.mark.system

ROOT: Final = Path(__file__).parents[2]
DAGS: Final = ROOT / "dags" / "airflow"
PYTHON_PATH: Final = [ROOT, ROOT / "providers" / "airflow", DAGS]
REGIONS: Final = ["north", "east", "south", "west"]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="module")
def airflow(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("examples")
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", server.url]
    command += ["--app", "glidemq_orchestrate.python", "--queue", "orders", "--allow-import", "orders"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PYTHON_PATH))}
    running = Airflow(
        folder / "home",
        DAGS,
        connections={"glidemq_default": server.url.replace("valkey://", "glidemq://")},
        python_path=PYTHON_PATH[:2],
        parallelism=4,
    )
    with (
        (folder / "worker.log").open("wb") as log,
        spawned(command, env=variables, stdout=log, stderr=subprocess.STDOUT),
        running,
    ):
        for dag_id in ("orders_functions", "orders_group", "orders_troubles"):
            running.wait_for_dag(dag_id)
        yield running


def totals(day: str) -> dict[str, int]:
    """What the report should say."""
    found = {}
    for region in REGIONS:
        chance = random.Random(f"{day} {region}")
        found[region] = sum([chance.randint(1, 100) for _ in range(chance.randint(5, 20))])
    return found


def test_functions_run_on_the_worker(airflow: Airflow) -> None:
    run_id = airflow.begin("orders_functions", "one")
    assert airflow.wait_for_run("orders_functions", run_id) == "success"
    assert airflow.xcom("orders_functions", run_id, "report") == totals(
        airflow.day("orders_functions", run_id)
    )


def test_a_group_is_one_flow_and_shows_its_tasks(airflow: Airflow, server: EmbeddedServer) -> None:
    run_id = airflow.begin("orders_group", "one")
    assert airflow.wait_for_run("orders_group", run_id) == "success"
    expected = totals(airflow.day("orders_group", run_id))
    assert "4 regions" in airflow.task_log("orders_group", run_id, "night.report")
    assert airflow.xcom("orders_group", run_id, "largest") == max(expected, key=lambda one: expected[one])
    assert set(airflow.task_states("orders_group", run_id).values()) == {"success"}
    with FlowProducer(server.url) as flows:
        status = flows.get(flow_id_for("orders_group", "night.launch", run_id)).status()
        assert status.state == "completed"


def test_troubles_end_as_their_text_says(airflow: Airflow) -> None:
    dag_id = "orders_troubles"
    run_id = airflow.begin(dag_id, "one")
    assert airflow.wait_for_run(dag_id, run_id) == "failed"
    assert airflow.task_states(dag_id, run_id) == {
        "flaky": "success", "holiday": "skipped", "not_on_a_holiday": "skipped", "broken": "failed",
        "slow": "failed",
    }  # fmt: skip
    assert airflow.xcom(dag_id, run_id, "flaky") == 2
    log = airflow.task_log(dag_id, run_id, "broken")
    assert "month 13 does not exist" in log
    assert f"{flow_id_for(dag_id, 'broken', run_id)} failed: " in log
    assert "GlideMQFlowTimeout" in airflow.task_log(dag_id, run_id, "slow")
