"""A DAG whose Spark steps tell what they read and write."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQSparkOperator

PLACE = os.environ["LINEAGE_PLACE"]

with DAG("lineage", schedule=None, catchup=False, default_args={"retries": 1, "retry_delay": timedelta(0)}):
    GlideMQSparkOperator(
        task_id="clean",
        application="airflow_spark_steps:clean",
        location=PLACE,
        lineage={"inputs": [f"{PLACE}/raw"]},
        defer_after=0,
    )
