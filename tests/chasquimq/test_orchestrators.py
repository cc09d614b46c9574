"""Workers of the real ChasquiMQ 1.3 run what Airflow tasks and Dagster assets submit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource

from glidemq_orchestrate import FlowNode, FlowSpec
from tests.chasquimq.conftest import StartPeer
from tests.server.chasquimq.test_bridge import Sides, Start, bridge, sides

__all__ = ["bridge", "sides"]

ROOT = Path(__file__).parents[2]
DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup
from glidemq_orchestrate import FlowNode, FlowSpec

with DAG("small", schedule=None, catchup=False):
    with GlideMQTaskGroup("group"):
        resize, report, fails = (
            GlideMQOperator(task_id=name, queue_name="images", job=name, data=data)
            for name, data in {
                "resize": {"returns": {"rows": 3}},
                "report": {"returns": [1]},
                "fails": {"unrecoverable": "no"},
            }.items()
        )
        resize >> report
    GlideMQFlowOperator(
        task_id="flow",
        flow=FlowSpec("f", [FlowNode("a", job="x"), FlowNode("b", job="y", after=["a"])], queue="images"),
    )
"""


def test_tasks_of_a_group_and_a_flow_run_in_workers_of_the_package(
    tmp_path: Path, url: str, sides: Sides, bridge: Start, start_peer: StartPeer
) -> None:
    (tmp_path / "small_dag.py").write_text(DAG_FILE)
    bridge()
    peer = start_peer()
    peer.work(store_results=True)
    settings = {"CORE__DAGS_FOLDER": str(tmp_path), "CORE__LOAD_EXAMPLES": "False"}
    settings |= {"DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"}
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    environment |= {f"AIRFLOW__{name}": value for name, value in settings.items()}
    environment |= {"AIRFLOW_CONN_GLIDEMQ_DEFAULT": url.replace("valkey://", "glidemq://")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, "-m", "tests.chasquimq.run_dag", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "group.launch": "success",
        "group.resize": "success",
        "group.report": "success",
        "group.fails": "failed",
        "flow": "success",
    }
    runs = {name: data for _, name, data, _ in peer.get_runs()}
    assert set(runs) == {"resize", "fails", "report", "x", "y"}
    assert runs["report"]["inputs"] == {"resize": {"rows": 3}}
    assert len(sides.added) == 5


def test_an_asset_is_materialized_by_workers_of_the_package(
    url: str, sides: Sides, bridge: Start, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    nodes = [
        FlowNode("clean", job="x", data={"returns": {"rows": 2}}),
        FlowNode("report", job="y", data={"returns": "done"}, after=["clean"]),
    ]

    @dg.asset
    def pictures(context: dg.AssetExecutionContext, glidemq: GlideMQResource) -> dg.MaterializeResult[str]:
        results = glidemq.run_flow(context, FlowSpec("f", nodes, queue="images")).results
        return dg.MaterializeResult(value=str(results["report"]), metadata={"rows": results["clean"]["rows"]})

    bridge()
    start_peer().work(store_results=True)
    result = dg.materialize([pictures], resources={"glidemq": GlideMQResource(url=url)})
    (materialized,) = result.asset_materializations_for_node("pictures")
    assert materialized.metadata["rows"].value == 2
    assert result.output_for_node("pictures") == "done"
    assert len(sides.added) == 2
