"""Collects the history of ended flows every night, behind one Airflow task.

``history`` adds the flows that have ended since its last run to Parquet tables and draws a chart: see
``glidemq_orchestrate.spark.history``. It needs workers for the job ``spark.python`` on the queue, and the
connection ``glidemq_default``. The parameter ``location`` is the directory of the tables; its default is the
environment variable ``GLIDEMQ_HISTORY``.
"""

from __future__ import annotations

import logging
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator

logger = logging.getLogger(__name__)

LOCATION = os.environ.get("GLIDEMQ_HISTORY", str(Path(tempfile.gettempdir()) / "glidemq-history"))

with DAG(
    "history",
    schedule="0 5 * * *",
    catchup=False,
    max_active_runs=1,
    params={
        "location": Param(LOCATION, type="string", description="Directory that all workers can write"),
        "queue": Param("spark", type="string", description="Queue of the Spark workers"),
        "days": Param(30, type="integer", minimum=1, description="How many days the chart shows"),
    },
    tags=["glidemq", "spark"],
    doc_md=__doc__,
    render_template_as_native_obj=True,
):
    collect_history = GlideMQFlowOperator(
        task_id="collect_history",
        flow="glidemq_orchestrate.spark.history.flow:build",
        flow_kwargs={
            "location": "{{ params.location }}",
            "queue": "{{ params.queue }}",
            "days": "{{ params.days }}",
        },
        retries=1,
        retry_delay=timedelta(minutes=5),
    )

    @task
    def summary(results: Any) -> Any:
        """Log and return the result of the last node: the path of the chart, and the summary."""
        report = results["report"]
        logger.info("Chart: %s", report["chart"])
        logger.info("Summary: %s", report["summary"])
        return report

    summary(collect_history.output)
