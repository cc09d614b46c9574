"""The same items as mapped tasks, as one flow, and as a task group; see ``benchmarks/airflow_items.py``."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

QUEUE = "items"


@task
def nothing(item: int) -> int:
    """Do nothing."""
    return item


def flow(items: int) -> dict[str, Any]:
    """So many independent nodes."""
    job = {"queue": QUEUE, "job": "python"}
    nodes = [
        {"name": f"item-{item}", **job, "data": {"callable": "items:nothing", "arguments": {"item": item}}}
        for item in range(items)
    ]
    return {"name": "items", "nodes": nodes}


for count in map(int, os.environ.get("ITEMS", "100").split(",")):
    with DAG(f"mapped_{count}", schedule=None, catchup=False):
        nothing.expand(item=list(range(count)))

    with DAG(f"flow_{count}", schedule=None, catchup=False):
        GlideMQFlowOperator(task_id="items", flow=flow(count), result="none")

    with DAG(f"group_{count}", schedule=None, catchup=False), GlideMQTaskGroup("items", queue_name=QUEUE):
        nothing.expand(item=list(range(count)))

    in_arrays: Any = {"queue_name": QUEUE, "arrays": True}
    with DAG(f"arrays_{count}", schedule=None, catchup=False), GlideMQTaskGroup("items", **in_arrays):
        nothing.expand(item=list(range(count)))

    with DAG(f"tasks_{count}", schedule=None, catchup=False), GlideMQTaskGroup("items", queue_name=QUEUE):
        for item in range(count):
            nothing.override(task_id=f"item-{item}")(item)
