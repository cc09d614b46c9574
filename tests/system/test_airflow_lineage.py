"""What a real Airflow tells OpenLineage of a real Spark step."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.real_airflow import HERE, Airflow

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]

DAGS: Final = ("lineage",)


@pytest.fixture(scope="module")
def dags() -> Path:
    return HERE / "airflow_lineage"


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    app = ("--app", "glidemq_orchestrate.spark", "--allow-import", "airflow_spark_steps")
    return [(*app, "--queue", "spark")]


@pytest.fixture(scope="module")
def environment(place: Path) -> Mapping[str, str]:
    """A file with numbers, a Spark of one core, and OpenLineage's events in a file."""
    (place / "raw").mkdir()
    (place / "raw" / "numbers.csv").write_text("\n".join(map(str, range(10))))
    transport = {"type": "file", "log_file_path": str(place / "events.jsonl"), "append": True}
    return {
        "GLIDEMQ_SPARK_MASTER": "local[1]",
        "LINEAGE_PLACE": str(place),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "test",
    }


def told(place: Path, kind: str) -> list[dict[str, Any]]:
    """The events of the task, of this kind."""
    file = place / "events.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [one for one in events if one["job"]["name"] == "lineage.clean" and one["eventType"] == kind]


def datasets(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in found]


def test_the_events_of_a_task_name_what_its_step_has_read_and_written(airflow: Airflow, place: Path) -> None:
    run_id = airflow.trigger_dag("lineage")
    assert airflow.wait_for_run("lineage", run_id, timeout=240) == "success", airflow.task_log(
        "lineage", run_id, "clean"
    )
    assert airflow.xcom("lineage", run_id, "clean")["rows"] == 10
    end = time.monotonic() + 30
    while not told(place, "COMPLETE"):
        assert time.monotonic() < end, (place / "events.jsonl").exists()
        time.sleep(0.5)
    begun, (completed,) = told(place, "START"), told(place, "COMPLETE")
    assert {tuple(datasets(one["inputs"])) for one in begun} == {(("file", f"{place}/raw"),)}
    assert {tuple(datasets(one["outputs"])) for one in begun} == {()}
    assert datasets(completed["inputs"]) == [("file", f"{place}/raw")]
    assert datasets(completed["outputs"]) == [("file", f"{place}/clean")]
