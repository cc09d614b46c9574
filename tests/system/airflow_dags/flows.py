"""DAGs for the system test: flows that complete, fail, complete on the second try or never end; a sensor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow.triggers.base import BaseTrigger
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor

QUEUE = "system"
# A busy scheduler may take the end of a deferral for that of the resumed task, and fail it
# unrun ("finished with state success, but the task instance's state attribute is queued"). A retry attaches.
AGAIN = {"retries": 1, "retry_delay": timedelta(0)}
# Before 3.3 Airflow does not tell a trigger that a user has ended its task: only the lease ends the flow.
LAPSE = 86_400.0 if hasattr(BaseTrigger, "on_kill") else 60.0


def node(name: str, job: str = "add", after: list[str] | None = None, data: Any = None) -> dict[str, Any]:
    return {"name": name, "queue": QUEUE, "job": job, "after": after or [], "data": data}


def fan() -> dict[str, Any]:
    """22 nodes: fan-out, fan-in, two diamonds. Each node adds its own number to those of its dependencies."""
    parts = [f"part-{number:02}" for number in range(1, 13)]
    return {
        "name": "fan",
        "nodes": [
            node("start", data=1),
            *(node(name, after=["start"], data=index) for index, name in enumerate(parts)),
            node("join", after=parts),
            node("left", after=["join"], data=1),
            node("right", after=["join"], data=2),
            node("diamond", after=["left", "right"]),
            node("up", after=["diamond"], data=3),
            node("down", after=["diamond"], data=4),
            node("both", after=["up", "down", "start"]),
            node("run", job="echo", after=["both"], data="{{ run_id }}"),
            node("total", after=["both"]),
        ],
    }


with DAG("completes", schedule=None, catchup=False, default_args=AGAIN):
    flow = GlideMQFlowOperator(task_id="flow", flow=fan(), defer_after=0)

    @task
    def after(results: Any) -> Any:
        """Downstream of the flow."""
        return results["total"]

    after(flow.output)

with DAG("fails", schedule=None, catchup=False):
    GlideMQFlowOperator(
        task_id="flow",
        flow={
            "name": "fails",
            "nodes": [
                node("load", data=1),
                node("clean", job="fail", after=["load"]),
                node("report", after=["clean"]),
            ],
        },
    )

with DAG("repairs", schedule=None, catchup=False, default_args=AGAIN):
    GlideMQFlowOperator(
        task_id="flow",
        flow={
            "name": "repairs",
            "nodes": [node("stamp", job="stamp"), node("lucky", job="second time lucky", after=["stamp"])],
        },
        result="all",
        defer_after=20,
    )

with DAG("hangs", schedule=None, catchup=False):
    GlideMQFlowOperator(
        task_id="flow",
        flow={"name": "hangs", "nodes": [node("slow", job="wait"), node("never", after=["slow"])]},
        lease=LAPSE,
    )

with DAG("keeps", schedule=None, catchup=False):
    GlideMQFlowOperator(
        task_id="flow", flow={"name": "keeps", "nodes": [node("slow", job="wait")]}, deferrable=False
    )

with DAG("senses", schedule=None, catchup=False, params={"run_id": ""}, default_args=AGAIN):
    GlideMQFlowSensor(
        task_id="ready",
        external_dag_id="completes",
        external_task_id="flow",
        external_run_id="{{ params.run_id }}",
        result="leaves",
    )
