"""DAGs for what users do to tasks: clear, mark, delete, backfill; and for what happens to their processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator

QUEUE = "system"
STAMP = {"name": "stamp", "nodes": [{"name": "stamp", "queue": QUEUE, "job": "stamp"}]}
HANG = {"name": "hang", "nodes": [{"name": "slow", "queue": QUEUE, "job": "wait"}]}
SOON = {"retries": 1, "retry_delay": timedelta(0)}

with DAG("stamps", schedule=None, catchup=False, default_args=SOON):
    stamp = GlideMQFlowOperator(task_id="flow", flow=STAMP, defer_after=20)

    @task
    def after(results: Any) -> Any:
        """Downstream of the flow."""
        return results["stamp"]

    after(stamp.output)

with DAG(
    "daily", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, default_args=SOON
):
    GlideMQFlowOperator(task_id="flow", flow=STAMP, defer_after=20)

with DAG("times_out", schedule=None, catchup=False, dagrun_timeout=timedelta(seconds=20)):
    GlideMQFlowOperator(task_id="flow", flow=HANG, defer_after=0)

with DAG("waits", schedule=None, catchup=False):
    GlideMQFlowOperator(task_id="flow", flow=HANG, defer_after=0)

with DAG("keeps_its_slot", schedule=None, catchup=False):
    GlideMQFlowOperator(task_id="flow", flow="airflow_handlers:hang_and_tell_who", deferrable=False)

with DAG("survives", schedule=None, catchup=False, default_args={"retries": 3, "retry_delay": timedelta(0)}):
    GlideMQFlowOperator(task_id="flow", flow="airflow_handlers:steps", defer_after=0, result="all")
