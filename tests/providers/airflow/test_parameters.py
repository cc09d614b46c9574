"""Defaults of the operators' parameters."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator
from airflow_provider_glidemq.parameters import default_deferrable
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor, GlideMQQueueSensor
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger
from airflow_provider_glidemq.triggers.node import GlideMQNodeTrigger
from airflow_provider_glidemq.triggers.queue import GlideMQJobTrigger, GlideMQQueueTrigger
from airflow_provider_glidemq.version_compat import configuration

from glidemq_orchestrate.errors import GlideMQError
from tests.providers.airflow.builders import one

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"flow_id": "x" * 257}, "flow id .* is not valid: use 1 to 256 characters"),
    ({"flow_id": "a\nb"}, "flow id .* is not valid"),
    ({"logging_interval": 1e300}, "logging_interval must be at least 0.001 seconds, and at most a year"),
    ({"defer_after": float("nan")}, "defer_after must be at least 0 seconds"),
]


@pytest.mark.parametrize(("setting", "expected"), [(None, True), ("True", True), ("False", False)])
def test_the_default_for_deferring_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, *, expected: bool
) -> None:
    """Airflow writes its own default, False, to ``airflow.cfg``, so that does not count."""
    assert configuration().getboolean("operators", "default_deferrable") is False
    monkeypatch.delenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", raising=False)
    if setting is not None:
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", setting)
    assert default_deferrable() is expected


def test_default_args_reach_all_parameters() -> None:
    with DAG("d", schedule=None, default_args={"poll_interval": 7.0, "deferrable": False, "lease": 60}):
        task = GlideMQFlowOperator(task_id="t", flow=one())
        mapped = GlideMQFlowOperator.partial(task_id="m", lease=90).expand(flow=[one()])
    assert (task.poll_interval, task.deferrable, task.lease) == (7.0, False, 60)
    unmapped: Any = mapped.unmap({"flow": one()})
    assert (unmapped.poll_interval, unmapped.deferrable, unmapped.lease) == (7.0, False, 90)


def test_what_cannot_be_right_is_refused_at_parse_time(subtests: pytest.Subtests) -> None:
    for given, expected in WRONG_ARGUMENTS:
        with subtests.test(given=given):
            with pytest.raises((ValueError, GlideMQError), match=expected):
                GlideMQFlowOperator(task_id="t", flow=one(), **given)
            GlideMQFlowOperator(task_id="t", flow=one(), flow_id="{{ " + "x" * 300 + " }}")


def test_durations_may_be_timedeltas_everywhere() -> None:
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    given: Any = {"poll_interval": minute, "logging_interval": minute, "lease": hour}
    task = GlideMQFlowOperator(task_id="t", flow=one(), defer_after=minute, **given)
    assert (task.defer_after, task.poll_interval, task.logging_interval, task.lease) == (60, 60, 60, 3600)
    sensors = [
        GlideMQFlowSensor(task_id="f", flow_id="f", poke_interval=minute, timeout=hour),
        GlideMQQueueSensor(
            task_id="q", queue_name="q", condition="empty", poke_interval=minute, timeout=hour
        ),
    ]
    assert [(one.poke_interval, one.timeout) for one in sensors] == [(60, 3600), (60, 3600)]
    triggers: list[Any] = [
        GlideMQFlowTrigger(flow_id="f", **given),
        GlideMQNodeTrigger(node="n", launch="l", **given),
        GlideMQJobTrigger(queue_name="q", job_id="1", poll_interval=minute),
        GlideMQQueueTrigger(queue_name="q", condition={"condition": "empty"}, poll_interval=minute),
        GlideMQMessageTrigger(queue_name="q", jobs="j", interval=minute, until_run=hour),
    ]
    for trigger in triggers:
        _, stored = trigger.serialize()
        assert json.loads(json.dumps(stored)) == stored
        assert stored.get("poll_interval", 60) == stored.get("interval", 60) == 60
        assert stored.get("lease", 3600) == stored.get("until_run", 3600) == 3600
    with DAG("d", schedule=None), GlideMQTaskGroup("g", queue_name="q", **given):
        GlideMQOperator(task_id="a", queue_name="q", job="j")
    # The group has checked them before Airflow stores its tasks.
    wrong: list[dict[str, Any]]
    wrong = [{"lease": timedelta(seconds=1)}, {"poll_interval": "1m"}, {"logging_interval": timedelta(0)}]
    for one_of_them in wrong:
        with DAG("e", schedule=None), pytest.raises((TypeError, ValueError), match=next(iter(one_of_them))):
            GlideMQTaskGroup("g", **one_of_them)
