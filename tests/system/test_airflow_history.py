"""The history DAG in a real Airflow: a run adds what has ended since the last, a retry nothing twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from tests.system.conftest import HANDLERS
from tests.system.real_airflow import ROOT, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("history",)
MINUTE: Final = timedelta(minutes=1)


@pytest.fixture(scope="module")
def dags() -> Path:
    return ROOT / "dags" / "airflow"


@pytest.fixture(scope="module")
def environment(place: Path) -> Mapping[str, str]:
    return {
        "GLIDEMQ_SPARK_MASTER": "local[1]",
        "GLIDEMQ_SPARK_CONF": '{"spark.sql.shuffle.partitions": 2}',
        "GLIDEMQ_HISTORY": str(place / "history"),
    }


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    return [HANDLERS, ("--app", "glidemq_orchestrate.spark", "--queue", "spark")]


def test_what_has_ended_is_added_and_a_cleared_task_adds_nothing_twice(
    airflow: Airflow, flows: FlowProducer, place: Path
) -> None:
    run_id, location = "r1", place / "history"
    ended(flows, "night-1")
    airflow.begin("history", run_id)
    for more in ("night-2", None):
        assert airflow.wait_for_run("history", run_id, timeout=300) == "success", airflow.story(
            "history", run_id
        )
        said = airflow.xcom("history", run_id, "summary")
        assert Path(said["chart"]).read_bytes().startswith(b"\x89PNG")
        assert f"Chart: {said['chart']}" in airflow.logs("history", run_id, "summary")
        if more:
            assert said["summary"]["nodes"] == 3
            ended(flows, more)
            airflow.clear("history", run_id, ["collect_history"], downstream=True)
            airflow.wait_until_it_runs("history", run_id, "collect_history")
    assert said["summary"]["nodes"] == 6, "its own first run was restarted before anyone has read it"
    assert sorted(newest(location / "nodes")) == sorted(
        (flow, 0, node) for flow in ("night-1", "night-2") for node in ("clean[0]", "clean[1]", "report")
    )


def ended(flows: FlowProducer, flow_id: str) -> None:
    """Run a flow of three nodes to its end."""
    nodes = [FlowNode(f"clean[{number}]", queue="system", job="echo", data=number) for number in range(2)]
    nodes += [FlowNode("report", queue="system", job="echo", after=[node.name for node in nodes])]
    flows.submit(FlowSpec("night", nodes), flow_id=flow_id).result(timeout=MINUTE)


def newest(table: Path) -> list[tuple[str, int, str]]:
    """The key of each row of the newest version of each day, as a program finds it that knows the layout."""
    days: dict[str, Path] = {}
    for version in sorted((table / "versions").iterdir(), key=lambda file: int(file.name.partition("-")[0])):
        days |= {day.name: day for day in (table / "attempts" / version.stem).glob("day=*")}
    rows = [row for day in days.values() for row in pq.read_table(day).to_pylist()]
    return [(row["flow_id"], row["generation"], row["node"]) for row in rows]
