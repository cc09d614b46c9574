"""A real Airflow on PostgreSQL with two triggerers, one of which is killed while it watches."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg2
import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import EmbeddedServer, FlowProducer
from tests.system.conftest import HANDLERS
from tests.system.postgres import running_postgres
from tests.system.real_airflow import HERE, PYTHON_PATH, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

TASKS: Final = [f"flow-{number:02}" for number in range(16)]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgres("airflow") as url:
        yield url


@pytest.fixture(scope="module")
def gate(place: Path) -> Path:
    """Jobs wait for this file."""
    return place / "gate"


@pytest.fixture(scope="module")
def environment(gate: Path) -> Mapping[str, str]:
    return {"GATE_FILE": str(gate)}


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    return [(*HANDLERS, "--concurrency", str(len(TASKS)))]


@pytest.fixture(scope="module")
def airflow(server: EmbeddedServer, workers: list[object], database: str, place: Path) -> Iterator[Airflow]:
    (place / "dags").mkdir()
    (place / "dags" / "wide.py").write_text((HERE / "airflow_dags" / "wide.py").read_text())
    running = Airflow(
        place / "airflow",
        place / "dags",
        connections={"glidemq_default": server.url.replace("valkey://", "glidemq://")},
        python_path=PYTHON_PATH,
        environment={"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10"},
        parallelism=4,
        triggerers=2,
        database=database,
    )
    with running:
        running.wait_for_dag("wide")
        yield running


def ask(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg2.connect(database.replace("+psycopg2", "")) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def test_triggerers_die_and_another_one_watches_their_tasks(
    airflow: Airflow, database: str, gate: Path, flows: FlowProducer
) -> None:
    run_id = airflow.begin("wide", "one")
    for task in TASKS:
        airflow.wait_for_task("wide", run_id, task, ["deferred"])

    def watched() -> dict[int, int]:
        """How many tasks each triggerer watches."""
        return dict(ask(database, "SELECT triggerer_id, count(*) FROM trigger GROUP BY 1"))

    def wait_until_one_watches_all(but: int = 0) -> int:
        until = time.monotonic() + 60
        while list((found := watched()).values()) != [len(TASKS)] or but in found:
            assert time.monotonic() < until, found
            time.sleep(0.2)
        return next(iter(found))

    sys.stdout.write(f"tasks by triggerer: {watched()}\n")
    airflow.kill("triggerer")
    second = wait_until_one_watches_all()
    airflow.start_again("triggerer")
    airflow.kill("triggerer-2")
    wait_until_one_watches_all(but=second)
    gate.touch()
    assert airflow.wait_for_run("wide", run_id, timeout=180) == "success"
    assert [airflow.xcom("wide", run_id, task) for task in TASKS] == [{"n": n} for n in range(len(TASKS))]
    found = [flows.get(flow_id_for("wide", task, run_id)) for task in TASKS]
    assert Counter(len(flow.history()) for flow in found) == {1: len(TASKS)}
    assert {flow.node("n").attempts for flow in found} == {1}
