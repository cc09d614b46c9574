"""The DAG files import and define what they should."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from typer.testing import CliRunner

from glidemq_orchestrate import Worker
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.spark.history.flow import TABLES, build
from tests.providers.airflow.builders import DAY, Contexts, Valkey

FOLDER = Path(__file__).parents[3] / "dags" / "airflow"


def dags_of(path: Path) -> dict[str, DAG]:
    found: dict[str, Any] = runpy.run_path(str(path))
    return {value.dag_id: value for value in found.values() if isinstance(value, DAG)}


def test_a_dag_file_imports_and_has_a_dag(subtests: pytest.Subtests) -> None:
    for path in sorted(FOLDER.glob("*.py")):
        with subtests.test(path=path):
            assert runpy.run_path(str(path))


def test_the_flights_run_as_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIDEMQ_FLIGHTS_DATA", "/data/flights")
    namespace = runpy.run_path(str(FOLDER / "flights.py"))
    dag = namespace["run_flights"].dag
    assert sorted(dag.task_ids) == ["run_flights", "summary"]
    assert dag.params["location"] == "/data/flights"
    assert sorted(namespace["ready"].dag.task_ids) == ["print_report", "ready"]


def test_the_history_runs_as_one_task_each_night(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIDEMQ_HISTORY", "/lake/history")
    namespace = runpy.run_path(str(FOLDER / "history.py"))
    dag = namespace["collect_history"].dag
    assert sorted(dag.task_ids) == ["collect_history", "summary"]
    assert (dag.params["location"], dag.params["days"], dag.max_active_runs) == ("/lake/history", 30, 1)
    spec = build("/lake/history", days=7)
    assert [node.name for node in spec.nodes] == ["collect", *TABLES, "report"]
    with pytest.raises(InvalidFlow, match="days must be a whole number from 1 to 3650"):
        build("/lake/history", days=0)


def test_the_dag_of_a_new_project_runs(tmp_path: Path, valkey: Valkey, context: Contexts) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path)]).exit_code == 0
    handlers = runpy.run_path(str(tmp_path / "steps.py"))["handlers"]
    (dag,) = dags_of(tmp_path / "dag.py").values()
    task: Any = dag.get_task("etl")
    with Worker(valkey.url, queues=["etl"], handlers=handlers, prefix=valkey.prefix).running():
        task.render_template_fields(DAY | context())
        assert task.execute(context()) == {"report": 300}
