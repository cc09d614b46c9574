"""The flights pipeline behind one Airflow task, and a second DAG that waits for it.

``flights`` runs 20 Spark steps as one flow: it needs workers for the job ``spark.python`` on the queue, and
the connection ``glidemq_default``. The parameter ``location`` is the directory for the data; its default is
the environment variable ``GLIDEMQ_FLIGHTS_DATA``. ``GLIDEMQ_FLIGHTS_MONTHS`` may limit the run to some months
of 2013, such as ``1,2``.
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
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor

from glidemq_orchestrate.spark.flights.flow import chosen_months

logger = logging.getLogger(__name__)

LOCATION = os.environ.get("GLIDEMQ_FLIGHTS_DATA", str(Path(tempfile.gettempdir()) / "glidemq-flights"))

with DAG(
    "flights",
    schedule=None,
    catchup=False,
    params={
        "location": Param(LOCATION, type="string", description="Directory that all workers can write"),
        "queue": Param("spark", type="string", description="Queue of the Spark workers"),
    },
    tags=["glidemq", "spark"],
    doc_md=__doc__,
):
    run_flights = GlideMQFlowOperator(
        task_id="run_flights",
        flow="glidemq_orchestrate.spark.flights.flow:build",
        flow_kwargs={
            # One directory per run, without characters that Spark paths must not contain.
            "location": "{{ params.location }}/{{ run_id | replace(':', '') | replace('+', '_') }}",
            "queue": "{{ params.queue }}",
            "months": chosen_months(),
        },
        retries=1,
        retry_delay=timedelta(seconds=30),
    )

    @task
    def summary(results: Any) -> Any:
        """Log and return the result of the last node: the paths of report and chart, and the summary."""
        report = results["report"]
        logger.info("Report: %s", report["report"])
        logger.info("Chart: %s", report["chart"])
        logger.info("Summary: %s", report["summary"])
        return report

    summary(run_flights.output)


with DAG(
    "flights_ready",
    schedule=None,
    catchup=False,
    params={"run_id": Param("", type="string", description="Run id of the DAG flights to wait for")},
    tags=["glidemq", "spark"],
    doc_md="Waits for the flow of one run of the DAG flights, then logs the path of its report.",
):
    ready = GlideMQFlowSensor(
        task_id="ready",
        external_dag_id="flights",
        external_task_id="run_flights",
        external_run_id="{{ params.run_id }}",
        result="leaves",
        timeout=3600,
    )

    @task
    def print_report(results: Any) -> Any:
        """Log and return the path of the report."""
        logger.info("The report is at %s", results["report"]["report"])
        return results["report"]["report"]

    print_report(ready.output)
