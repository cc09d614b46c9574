"""Spark steps of a DAG: by the operator, of a module without Airflow; and a function of this file."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQSparkOperator

from glidemq_orchestrate import Context

SOON: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}


@task.glidemq_spark(defer_after=30, **SOON)
def add(spark: Any, ctx: Context, counted: dict[str, int], *, more: int) -> int:
    ctx.log("adding")
    return int(spark.range(counted["rows"] + more).count())


with DAG("spark_steps", schedule=None, catchup=False):
    count = GlideMQSparkOperator(
        task_id="count",
        application="airflow_spark:count",
        arguments={"rows": 50, "of": "{{ run_id }}"},
        location="/nowhere",
        conf={"spark.sql.shuffle.partitions": 3},
        defer_after=0,
        logging_interval=1,
        **SOON,
    )
    add(count.output, more=5)  # type: ignore[call-arg, misc]  # the worker supplies the first two

with DAG("spark_stops", schedule=None, catchup=False):
    GlideMQSparkOperator(
        task_id="flow", application="airflow_spark:never_ends", defer_after=0, logging_interval=1
    )
