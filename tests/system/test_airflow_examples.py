"""The example DAGs in a real Airflow, with the worker that their text asks for."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import EmbeddedServer, FlowProducer, Queue
from tests.system.real_airflow import PYTHON_PATH, ROOT, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("arrivals", "orders_functions", "orders_group", "orders_troubles", "quiet")
REGIONS: Final = ["north", "east", "south", "west"]


@pytest.fixture(scope="module")
def dags() -> Path:
    return ROOT / "dags" / "airflow"


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    return [("--app", "glidemq_orchestrate.python", "--queue", "orders", "--allow-import", "orders")]


@pytest.fixture(scope="module")
def worker_path(dags: Path) -> Sequence[Path]:
    return [*PYTHON_PATH, dags]


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


def test_a_group_is_one_flow_and_shows_its_tasks(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.begin("orders_group", "one")
    assert airflow.wait_for_run("orders_group", run_id) == "success"
    expected = totals(airflow.day("orders_group", run_id))
    assert "4 regions" in airflow.task_log("orders_group", run_id, "night.report")
    assert airflow.xcom("orders_group", run_id, "largest") == max(expected, key=lambda one: expected[one])
    assert set(airflow.task_states("orders_group", run_id).values()) == {"success"}
    status = flows.get(flow_id_for("orders_group", "night.launch", run_id)).status()
    assert (status.state, status.total) == ("completed", 10), "one more expands over results"


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


def test_jobs_of_a_queue_start_a_dag(airflow: Airflow, server: EmbeddedServer) -> None:
    """Each message is in a run: all of a burst, and those that come later."""
    expected = set(range(7))
    with Queue("arrivals", server.url) as queue:
        for number in expected:
            queue.add("arrival", {"order": number})
            time.sleep(0.5)
    seen: set[int] = set()
    until = time.monotonic() + 90
    while seen != expected:
        assert time.monotonic() < until, seen
        time.sleep(1)
        for run_id in airflow.runs("arrivals"):
            seen |= set(airflow.xcom("arrivals", run_id, "receive") or ())
    run_id = airflow.begin("quiet", "one")
    assert airflow.wait_for_run("quiet", run_id) == "success"
