"""DAGs whose flows end when the test opens their gate; and what is told of a flow and its task."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

QUEUE = "system"
SOON: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}
TOLD: dict[str, Any] = {"callbacks": ["airflow_callbacks:Noting"]}


def note(kind: str) -> Any:
    """A callback of Airflow that writes down what it finds in its context."""

    def callback(context: Any) -> None:
        error = context.get("exception")
        told = {
            "kind": kind,
            "task": context["ti"].task_id,
            "error": type(error).__name__,
            "flow_id": getattr(error, "flow_id", None),
            "failed": [node.name for node in getattr(error, "failed", ())],
        }
        with Path(os.environ["TOLD_FILE"]).open("a") as file:
            file.write(f"{json.dumps(told)}\n")

    return callback


def gate(name: str = "gate") -> dict[str, Any]:
    return {"name": name, "queue": QUEUE, "job": "hold", "data": "{{ run_id }}"}


with DAG("gated", schedule=None, catchup=False, default_args=SOON):
    GlideMQFlowOperator(
        task_id="flow",
        flow={
            "name": "gated",
            "nodes": [gate(), {"name": "stamp", "queue": QUEUE, "job": "stamp", "after": ["gate"]}],
        },
        result="all",
        defer_after=0,
        **TOLD,
    )

with DAG("talks", schedule=None, catchup=False, default_args=SOON):
    GlideMQOperator(
        task_id="flow",
        queue_name=QUEUE,
        job="hold",
        data="{{ run_id }}",
        defer_after=0,
        logging_interval=1,
        show_logs=True,
        **TOLD,
    )

with DAG("tells", schedule=None, catchup=False):
    GlideMQFlowOperator(
        task_id="fails",
        flow={
            "name": "fails",
            "nodes": [
                {"name": "load", "queue": QUEUE, "job": "echo"},
                {"name": "clean", "queue": QUEUE, "job": "fail", "after": ["load"]},
                {"name": "report", "queue": QUEUE, "job": "echo", "after": ["clean"]},
            ],
        },
        defer_after=20,  # of one that resumes a busy scheduler may be told too late
        on_retry_callback=note("retry"),
        on_failure_callback=note("failure"),
        on_success_callback=note("success"),
        **SOON,
        **TOLD,
    )
    GlideMQOperator(
        task_id="skips",
        queue_name=QUEUE,
        job="skips",
        on_skipped_callback=note("skipped"),
        on_failure_callback=note("failure"),
        **TOLD,
    )
    GlideMQOperator(
        task_id="succeeds", queue_name=QUEUE, job="echo", data=1, on_success_callback=note("success"), **TOLD
    )

    with GlideMQTaskGroup("group", queue_name=QUEUE):
        GlideMQOperator(
            task_id="works", queue_name=QUEUE, job="echo", data=1, on_success_callback=note("success")
        )
        GlideMQOperator(task_id="skips", queue_name=QUEUE, job="skips", on_skipped_callback=note("skipped"))
        GlideMQOperator(task_id="breaks", queue_name=QUEUE, job="fail", on_failure_callback=note("failure"))

with DAG("exits", schedule=None, catchup=False, default_args=SOON):
    GlideMQOperator(
        task_id="flow",
        queue_name=QUEUE,
        job="hold",
        data="{{ run_id }}",
        defer_after=0,
        logging_interval=1,
        callbacks=["airflow_callbacks:Exiting"],
    )
