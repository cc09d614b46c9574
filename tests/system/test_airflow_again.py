"""Running again what failed, as the two READMEs and the messages say, in a real Airflow."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import EmbeddedServer, FlowProducer
from tests.system.conftest import HANDLERS
from tests.system.real_airflow import HERE, PYTHON_PATH, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

Ran = Callable[[], dict[str, int]]
DAGS = ("twenty", "sixteen", "mapped")


@pytest.fixture(scope="module")
def dags(place: Path) -> Path:
    folder = place / "dags"
    folder.mkdir()
    (folder / "again.py").write_text((HERE / "airflow_dags" / "again.py").read_text())
    return folder


@pytest.fixture(scope="module")
def environment(place: Path) -> Mapping[str, str]:
    (place / "gates").mkdir()
    return {"GATES": str(place / "gates")}


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    return [(*HANDLERS, "--allow-import", "again")]


@pytest.fixture(scope="module")
def worker_path(dags: Path) -> Sequence[Path]:
    return [*PYTHON_PATH, dags]


@pytest.fixture
def ran(place: Path) -> Callable[[], dict[str, int]]:
    """What has run since the last call, and how often."""
    file = place / "gates" / "ran"
    file.write_text("")

    def read() -> dict[str, int]:
        found = file.read_text().split()
        file.write_text("")
        return dict(Counter(found))

    return read


def broken(place: Path, name: str) -> Path:
    made = place / "gates" / f"fail {name}"
    made.touch()
    return made


def glidemq(server: EmbeddedServer, *arguments: str) -> None:
    command = [sys.executable, "-m", "glidemq_orchestrate", *arguments, "--url", server.url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cleared(airflow: Airflow, dag_id: str, run_id: str, *task_ids: str, state: str = "success") -> None:
    airflow.clear(dag_id, run_id, task_ids)
    airflow.wait_until_it_runs(dag_id, run_id, task_ids[-1])
    assert airflow.wait_for_run(dag_id, run_id) == state, airflow.story(dag_id, run_id)


def cleared_by_command(airflow: Airflow, dag_id: str, run_id: str) -> None:
    """``airflow tasks clear`` on a busy machine: what was cleared may have run before the command returns."""
    airflow.command("tasks", "clear", dag_id, "--only-failed", "--yes")
    until = time.monotonic() + 60
    while airflow.dag_run_state(dag_id, run_id) == "failed":
        assert time.monotonic() < until, airflow.story(dag_id, run_id)
        time.sleep(0.1)
    assert airflow.wait_for_run(dag_id, run_id) == "success", airflow.story(dag_id, run_id)


def test_of_a_flow_of_20_nodes(
    airflow: Airflow,
    flows: FlowProducer,
    server: EmbeddedServer,
    place: Path,
    ran: Callable[[], dict[str, int]],
) -> None:
    file, run_id = broken(place, "n7"), airflow.begin("twenty", "r")
    assert airflow.wait_for_run("twenty", run_id) == "failed"
    flow_id = flow_id_for("twenty", "flow", run_id)
    log = airflow.logs("twenty", run_id, "flow")
    assert "n7 is broken" in log
    assert "in broken" in log, "the traceback of the step"
    assert f"glidemq flow restart {flow_id}, then clear this task" in log
    behind = {"n15": 1, "n16": 1}
    assert len(ran()) == 18
    file.unlink()
    cleared_by_command(airflow, "twenty", run_id)
    assert ran() == {"n7": 1} | behind, "only what failed, and what follows it"
    file.touch()
    cleared(airflow, "twenty", run_id, "flow", state="failed")
    assert len(ran()) == 18, "the clear of a success runs all of it"
    file.unlink()
    glidemq(server, "flow", "retry", flow_id)
    cleared(airflow, "twenty", run_id, "flow")
    assert ran() == {"n7": 1} | behind, "it shows what was repaired by hand, and runs nothing"
    glidemq(server, "flow", "restart", flow_id)
    assert len(ran()) == 20
    cleared(airflow, "twenty", run_id, "flow")
    assert ran() == {}, "it shows what was begun anew by hand"
    assert [one.state for one in flows.get(flow_id).history()] == ["completed"] * 3


def test_of_a_group(
    airflow: Airflow,
    flows: FlowProducer,
    server: EmbeddedServer,
    place: Path,
    ran: Callable[[], dict[str, int]],
) -> None:
    file, run_id = broken(place, "p5"), airflow.begin("sixteen", "r")
    assert airflow.wait_for_run("sixteen", run_id) == "failed"
    flow_id = flow_id_for("sixteen", "etl.launch", run_id)
    log = airflow.logs("sixteen", run_id, "etl.parts")
    assert "parts[5] failed" in log
    assert "in broken" in log, "the traceback of the step"
    assert f"glidemq flow restart {flow_id}, then clear all its tasks" in log
    assert sum(ran().values()) == 16
    file.unlink()
    cleared(airflow, "sixteen", run_id, "etl.parts", "etl.total")
    assert ran() == {"p5": 1, "total": 1}
    for task_id in ("etl.parts", "etl.total"):
        assert airflow.task("sixteen", run_id, task_id)["duration"] >= 0
    glidemq(server, "flow", "restart", flow_id)
    assert len(ran()) == 17
    cleared(airflow, "sixteen", run_id, "etl.launch", "etl.parts", "etl.total")
    assert ran() == {}, "the group shows what was begun anew by hand"
    cleared(airflow, "sixteen", run_id, "etl.launch", "etl.parts", "etl.total")
    assert len(ran()) == 17
    assert len(flows.get(flow_id).history()) == 3


def test_of_mapped_tasks(airflow: Airflow, place: Path, ran: Ran) -> None:
    file, run_id = broken(place, "m1"), airflow.begin("mapped", "r")
    assert airflow.wait_for_run("mapped", run_id) == "failed"
    assert ran() == {"m0": 1, "m1": 1, "m2": 1}
    file.unlink()
    cleared_by_command(airflow, "mapped", run_id)
    assert ran() == {"m1": 1}
