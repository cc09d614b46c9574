"""DAGs for what surrounds the operators: messages as asset events, sensors, notifications, links."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow_provider_glidemq.acknowledgement import acknowledge
from airflow_provider_glidemq.notifications.glidemq import GlideMQNotifier
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor, GlideMQJobSensor, GlideMQQueueSensor
from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger

QUEUE = "system"
SOON = {"retries": 1, "retry_delay": timedelta(0)}

orders = Asset(
    "orders",
    uri="glidemq://glidemq_default/orders",
    watchers=[
        AssetWatcher(
            name="orders",
            trigger=MessageQueueTrigger(scheme="glidemq", queue_name="orders", jobs="order", interval=3),
        )
    ],
)

with DAG("bills", schedule=[orders], catchup=False, max_active_runs=1):

    @task
    def bill(triggering_asset_events: Any = None) -> int:
        """Write down each message of the run, in one call."""
        lines = [
            json.dumps([message["id"], message["data"]]) + "\n"
            for event in triggering_asset_events[orders]
            for message in event.extra["payload"]["messages"]
        ]
        with Path(os.environ["BILLS_FILE"]).open("a") as file:
            file.write("".join(lines))
        return len(lines)

    bill()

parcels = Asset(
    "parcels",
    watchers=[
        AssetWatcher(
            name="parcels",
            trigger=GlideMQMessageTrigger(queue_name="parcels", jobs="parcel", interval=1, until_run=15),
        )
    ],
)

with DAG("ships", schedule=[parcels], catchup=False, max_active_runs=1):

    @task
    def ship(triggering_asset_events: Any = None) -> list[int]:
        """Take longer than the messages that come meanwhile; then acknowledge."""
        events = triggering_asset_events[parcels]
        time.sleep(8)
        acknowledge(events)
        return [message["data"]["n"] for event in events for message in event.extra["payload"]["messages"]]

    ship()

with DAG("senses", schedule=None, catchup=False, params={"job_id": ""}, default_args=SOON):
    GlideMQJobSensor(task_id="job", queue_name=QUEUE, job_id="{{ params.job_id }}", poke_interval=600)
    GlideMQQueueSensor(task_id="idle", queue_name=QUEUE, condition="idle", poke_interval=600)
    GlideMQQueueSensor(
        task_id="poking", queue_name=QUEUE, condition="served", jobs=["wait"], deferrable=False
    )
    GlideMQFlowSensor(task_id="never", flow_id="no such flow", timeout=15, soft_fail=True)

with DAG(
    "alerts",
    schedule=None,
    catchup=False,
    on_failure_callback=GlideMQNotifier(queue_name="alerts", job="dag", once="{{ dag.dag_id }} {{ run_id }}"),
):

    @task(on_failure_callback=GlideMQNotifier(queue_name="alerts", job="task", data={"run": "{{ run_id }}"}))
    def fails() -> None:
        """Fail."""
        raise ValueError("month 13 does not exist")

    fails()

HANG = {"name": "hang", "nodes": [{"name": "slow", "queue": QUEUE, "job": "wait"}]}
with DAG("links", schedule=None, catchup=False, default_args=SOON):
    GlideMQFlowOperator(task_id="flow", flow=HANG, defer_after=0)
    GlideMQOperator(task_id="job", queue_name=QUEUE, job="echo", data=7, defer_after=20)
    GlideMQOperator(
        task_id="plain", queue_name=QUEUE, job="echo", data=7, defer_after=20, glidemq_conn_id="plain"
    )
    mapped = GlideMQOperator.partial(task_id="mapped", queue_name=QUEUE, job="echo", defer_after=20)
    mapped.expand(data=[1, 2])
