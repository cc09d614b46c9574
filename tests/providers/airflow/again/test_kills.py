"""A task that is killed cancels the flow that it began, at any moment."""

from __future__ import annotations

from typing import Any

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowCancelled,
    GlideMQFlowTimeout,
)
from airflow_provider_glidemq.version_compat import TaskDeferred

from glidemq_orchestrate import FlowProducer
from tests.providers.airflow.again.generations import generations
from tests.providers.airflow.builders import (
    CLEARED,
    FLOW_ID,
    RETRIED,
    Contexts,
    Valkey,
    blocking,
    deferred,
    load,
    waiting,
)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_cancels_a_flow_that_is_being_submitted(
    flows: FlowProducer,
    valkey: Valkey,
    context: Contexts,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    submit, made = FlowProducer.submit, blocking(load("wait"))

    def killed(self: FlowProducer, *args: Any, **kwargs: Any) -> Any:
        if when == "before":
            made.on_kill()
        flow = submit(self, *args, **kwargs)
        if when == "after":
            made.on_kill()
        return flow

    deferred(blocking(load("wait")), context())
    monkeypatch.setattr(FlowProducer, "submit", killed)
    with pytest.raises(GlideMQFlowCancelled, match="the Airflow task was killed"):
        made.execute(context(**CLEARED))
    assert generations(flows) == ["cancelled", "cancelled"]


def test_a_kill_before_a_restart_leaves_another_client_s_generation(
    flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = blocking(load("wait"), flow_id="shared")

    def lost(*_: Any, **__: Any) -> Any:
        made.on_kill()
        raise GlideMQException("the process ends here")

    flows.submit(load("wait"), flow_id="shared")
    monkeypatch.setattr(FlowProducer, "submit", lost)
    with pytest.raises(GlideMQException, match="ends here"):
        made.execute(context())
    assert generations(flows, "shared") == ["running"]


@pytest.mark.parametrize("how", ["kill", "time-out"])
def test_a_kill_of_an_abandoned_process_leaves_the_flow_to_the_retry(
    flows: FlowProducer, valkey: Valkey, context: Contexts, how: str
) -> None:
    """It was stopped for minutes, and is ended when it goes on: its retry waits for the flow by then."""
    given_up, retry = blocking(load("wait")), blocking(load("wait"))
    waiting(given_up, context(), flows)
    waiting(retry, context(**RETRIED), flows)
    if how == "kill":
        given_up.on_kill()
    else:
        with pytest.raises(GlideMQFlowTimeout, match="It continues: a later try of this task waits for"):
            given_up.resume_execution("__fail__", {"error": "Trigger timeout"}, context())
    assert generations(flows) == ["running"]
    retry.on_kill()
    assert generations(flows) == ["cancelled"]


def test_a_kill_after_resuming_cancels(flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
    deferred(blocking(load("wait")), context())
    resumed = blocking(load("wait"), deferrable=True)
    with pytest.raises(TaskDeferred):
        resumed.execute_complete(context(), {"status": "failed", "flow_id": FLOW_ID})
    resumed.on_kill()
    assert generations(flows) == ["cancelled"]
