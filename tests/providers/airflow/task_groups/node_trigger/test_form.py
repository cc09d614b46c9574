"""What a task hands to its trigger, and the form in which it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow_provider_glidemq.group_flow import XCOM_LAUNCHED
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup
from airflow_provider_glidemq.task_groups.tasks import GlideMQLaunchOperator
from airflow_provider_glidemq.triggers.node import TRIGGER, GlideMQNodeTrigger
from airflow_provider_glidemq.version_compat import TaskDeferred, mask_secret

from glidemq_orchestrate import Worker
from tests.providers.airflow.builders import QUEUE, Valkey


def test_its_form_is_pinned() -> None:
    path, kwargs = GlideMQNodeTrigger(node="a", launch="etl.launch").serialize()
    assert path == TRIGGER == "airflow_provider_glidemq.triggers.node.GlideMQNodeTrigger"
    assert GlideMQNodeTrigger(**kwargs).serialize() == (path, kwargs)
    assert kwargs == {
        "node": "a",
        "launch": "etl.launch",
        "glidemq_conn_id": "glidemq_default",
        "is_expanded": False,
        "nodes_before": {},
        "group": None,
        "ends_task": False,
        "resumes_failed": False,
        "pushes": "value",
        "is_needed": False,
        "is_mapped_over": False,
        "cancel_on_kill": True,
        "poll_interval": 10.0,
        "logging_interval": 10.0,
        "lease": 86_400.0,
        "show_logs": False,
        "not_before": None,
        "place": None,
        "attempt": None,
    }


def test_a_monitor_that_defers_counts_clears_and_not_retries(context: Callable[..., Any]) -> None:
    with DAG("d", schedule=None) as dag, GlideMQTaskGroup("etl", queue_name="etl"):
        GlideMQOperator(task_id="a", queue_name="etl", job="j", outlets=[Asset("x")], retries=4)
    monitor: Any = dag.get_task("etl.a")
    assert (monitor.start_from_trigger, monitor.retries) == (False, 1)
    attempts = []
    for number, most in ((1, 1), (2, 1), (3, 3)):  # it is retried, and then cleared
        with pytest.raises(TaskDeferred) as deferred:
            monitor.execute(context(task_id="etl.a", try_number=number, max_tries=most))
        _, kwargs = deferred.value.trigger.serialize()
        assert (kwargs["place"], kwargs["ends_task"]) == (["d", "etl.a", "r1", -1], False)
        attempts.append(kwargs["attempt"])
    assert attempts == [1, 1, 3]


@pytest.mark.parametrize("is_masked", [False, True])
def test_launch_tells_whether_payloads_hold_what_airflow_masks(
    valkey: Valkey, worker: Worker, context: Any, *, is_masked: bool
) -> None:
    """A triggerer does not know what to mask; ``test_shown`` shows what it does then."""
    mask_secret("v4rs3cretXYZ")
    data = {"url": ["http://u:v4rs3cretXYZ@h" if is_masked else "http://h"]}
    tasks = [{"name": "a", "queue": QUEUE, "job": "echo", "data": data}]
    made = context()
    GlideMQLaunchOperator(task_id="g.launch", group="g", tasks=tasks).execute(made)
    pushed: Any = made["ti"].pushed
    assert pushed[XCOM_LAUNCHED]["is_masked"] is is_masked
