"""What fails is run again: a flow of 20 nodes, a group, mapped tasks. The worker imports this too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

QUEUE = "system"


def counted(name: str) -> str:
    """Notes that it runs; fails while there is a file that says so."""
    gates = Path(os.environ["GATES"])
    with (gates / "ran").open("a") as ran:
        ran.write(f"{name}\n")
    if (gates / f"fail {name}").exists():
        return broken(name)
    return name


def broken(name: str) -> str:
    raise ValueError(f"{name} is broken")


def step(name: str, *after: str) -> dict[str, Any]:
    data = {"callable": "again:counted", "arguments": {"name": name}}
    return {"name": name, "queue": QUEUE, "job": "python", "data": data, "after": list(after)}


TWENTY = [step("n0")] + [step(f"n{number}", f"n{(number - 1) // 2}") for number in range(1, 20)]

with DAG("twenty", schedule=None, catchup=False):
    GlideMQFlowOperator(
        task_id="flow",
        flow={"name": "twenty", "nodes": TWENTY},
        result="none",
        defer_after=60,  # without a retry: a busy scheduler may take one that resumes for lost
    )

with DAG("sixteen", schedule=None, catchup=False), GlideMQTaskGroup("etl", queue_name=QUEUE):
    parts: Any = task(counted).override(task_id="parts").expand(name=[f"p{number}" for number in range(16)])
    parts >> task(counted).override(task_id="total")("total")

with DAG("mapped", schedule=None, catchup=False):
    GlideMQOperator.partial(task_id="one", queue_name=QUEUE, job="python", defer_after=60).expand(
        data=[step(f"m{number}")["data"] for number in range(3)]
    )
