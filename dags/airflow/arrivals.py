"""A DAG that runs when orders arrive as jobs on a queue, and a DAG that waits until a queue is idle.

``arrivals`` runs when jobs ``arrival`` are on the queue ``arrivals``, once for all that arrive within five
seconds. Their producer, a Node service or ``glidemq job add arrivals arrival --data '{"order": 1}'``, does
not depend on Airflow. A failed run adds a job ``alert`` to the queue ``alerts``. ``quiet`` waits until the
queue in its parameter has neither waiting nor running jobs.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, Param, task
from airflow_provider_glidemq.notifications.glidemq import GlideMQNotifier
from airflow_provider_glidemq.sensors.glidemq import GlideMQQueueSensor
from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger

logger = logging.getLogger(__name__)

arrivals = Asset(
    "arrivals",
    watchers=[
        AssetWatcher(name="arrivals", trigger=GlideMQMessageTrigger(queue_name="arrivals", jobs="arrival"))
    ],
)
alert = GlideMQNotifier(
    queue_name="alerts", job="alert", data={"dag": "{{ dag.dag_id }}", "run": "{{ run_id }}"}
)

with DAG("arrivals", schedule=[arrivals], catchup=False, on_failure_callback=alert, doc_md=__doc__):

    @task
    def receive(triggering_asset_events: Any = None) -> list[int]:
        """The numbers of the orders that have arrived; a repeated message has the same id."""
        messages = {
            message["id"]: message["data"]
            for event in triggering_asset_events[arrivals]
            for message in event.extra["payload"]["messages"]
        }
        orders = sorted(data["order"] for data in messages.values())
        logger.info("%d orders: %s", len(orders), orders)
        return orders

    receive()

with DAG(
    "quiet",
    schedule=None,
    catchup=False,
    params={"queue": Param("arrivals", type="string", description="The queue to wait for")},
    doc_md=__doc__,
):
    GlideMQQueueSensor(task_id="idle", queue_name="{{ params.queue }}", condition="idle", timeout=600)
