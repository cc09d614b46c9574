"""Retries and clears of flows whose queues are in several slots of a cluster."""

from __future__ import annotations

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQFlowFailed,
)
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator

from glidemq_orchestrate import FlowProducer
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.flows.backend import Reach
from tests.providers.airflow.builders import (
    CLEARED,
    FLOW_ID,
    LONG,
    RETRIED,
    Contexts,
    Valkey,
    blocking,
    load,
    waiting,
)


@pytest.fixture(autouse=True)
def _portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "Reach", lambda _: Reach(has_functions=False))


def test_a_retry_repairs_a_portable_flow(flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
    with pytest.raises(GlideMQFlowFailed):
        blocking(load("fail")).execute(context())
    valkey.gate.set()
    assert blocking(load("fail")).execute(context(**RETRIED)) == {"extract": 1, "load": "repaired"}


def test_the_leaves_of_a_portable_flow_are_found(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    blocking().execute(context())
    made = GlideMQFlowOperator(task_id="t", flow=load(), result="leaves")
    event = {"status": "completed", "flow_id": FLOW_ID}
    assert made.execute_complete(context(), event) == {"load": 2}


def test_a_kill_cancels_a_portable_flow_and_the_next_clear_runs_all(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    first = blocking(load("wait"))
    waiting(first, context(), flows)
    first.on_kill()
    flows.get(FLOW_ID).wait(timeout=LONG)
    valkey.gate.set()
    results = blocking(load("wait")).execute(context(**CLEARED))
    assert results == {"extract": 2, "load": "done"}
