"""A retry of a task repairs its flow."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQFlowFailed,
)

from glidemq_orchestrate import FlowProducer, FlowState
from tests.providers.airflow.again.generations import generations
from tests.providers.airflow.builders import (
    FLOW_ID,
    LONG,
    RETRIED,
    Contexts,
    FakeRun,
    Valkey,
    blocking,
    load,
    waiting,
)


def test_a_retry_runs_what_failed(flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
    with pytest.raises(GlideMQFlowFailed):
        blocking(load("fail")).execute(context())
    valkey.gate.set()
    assert blocking(load("fail")).execute(context(**RETRIED)) == {"extract": 1, "load": "repaired"}
    assert (valkey.ran, generations(flows)) == (["extract"], ["completed"])


def test_a_retry_of_a_changed_dag_keeps_what_completed(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    with pytest.raises(GlideMQFlowFailed):
        blocking(load("fail")).execute(context())
    assert blocking(load("echo", 5)).execute(context(**RETRIED)) == {"extract": 1, "load": 5}
    assert (valkey.ran, generations(flows)) == (["extract"], ["failed", "completed"])
    again = context(try_number=3)
    assert blocking(load("echo", 5)).execute(again) == {"extract": 1, "load": 5}
    assert generations(flows) == ["failed", "completed"], "a repeat begins nothing"


def test_a_retry_runs_what_a_kill_of_its_run_cancelled(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    first = blocking(load("wait"))
    waiting(first, context(), flows)
    first.on_kill()
    assert flows.get(FLOW_ID).wait(timeout=LONG).status.state is FlowState.CANCELLED
    valkey.gate.set()
    results = blocking(load("wait")).execute(context(**RETRIED))
    assert results == {"extract": 1, "load": "done"}
    assert generations(flows) == ["completed"]


def test_a_retry_repairs_after_its_run_was_queued_again(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    with pytest.raises(GlideMQFlowFailed):
        blocking(load("fail")).execute(context())
    valkey.gate.set()
    later = FakeRun(start_date=datetime(2026, 1, 2, tzinfo=UTC))
    blocking(load("fail")).execute(context(**RETRIED, run=later))
    assert (valkey.ran, generations(flows)) == (["extract"], ["completed"])


def test_the_log_of_a_repair_says_how_many_nodes_are_kept(
    flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = blocking(load("fail")), list[str]()
    with pytest.raises(GlideMQFlowFailed):
        made.execute(context())
    valkey.gate.set()
    monkeypatch.setattr(made.log, "info", lambda text, *args: told.append(text % args))
    made.execute(context(**RETRIED))
    assert any(line.startswith("1 of 2 nodes had completed: they keep their results") for line in told)
