"""A DAG of many tasks that wait at the same time."""

from __future__ import annotations

from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator

with DAG("wide", schedule=None, catchup=False):
    for number in range(16):
        GlideMQFlowOperator(
            task_id=f"flow-{number:02}",
            flow={"name": "gate", "nodes": [{"name": "n", "queue": "system", "job": "gate", "data": number}]},
            result="all",
            defer_after=0,
        )
