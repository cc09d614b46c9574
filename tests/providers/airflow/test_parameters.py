"""Defaults of the operators' parameters."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator
from airflow_provider_glidemq.parameters import default_deferrable
from airflow_provider_glidemq.version_compat import configuration

from glidemq_orchestrate.errors import GlideMQError
from tests.providers.airflow.test_templates import one


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"flow_id": "x" * 257}, "flow id .* is not valid: use 1 to 256 characters"),
        ({"flow_id": "a\nb"}, "flow id .* is not valid"),
        ({"logging_interval": 1e300}, "logging_interval must be at least 0.001 seconds, and at most a year"),
        ({"defer_after": float("nan")}, "defer_after must be at least 0 seconds"),
    ],
)
def test_what_cannot_be_right_is_refused_at_parse_time(given: dict[str, Any], expected: str) -> None:
    with pytest.raises((ValueError, GlideMQError), match=expected):
        GlideMQFlowOperator(task_id="t", flow=one(), **given)
    GlideMQFlowOperator(task_id="t", flow=one(), flow_id="{{ " + "x" * 300 + " }}")
