"""Operators in ``partial().expand()``, unmapped and rendered as a worker does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator, flow_id_for
from airflow_provider_glidemq.version_compat import AirflowFailException, TaskDeferred

from glidemq_orchestrate import FlowNode, FlowSpec, Worker
from glidemq_orchestrate.errors import FlowNotFound
from tests.providers.airflow.builders import QUEUE, YAML, Contexts, Valkey, flow_of, one, run_mapped


class TestFlows:
    def test_each_has_a_flow_of_its_own(
        self, valkey: Valkey, worker: Worker, context: Contexts, tmp_path: Path
    ) -> None:
        (tmp_path / "one.yaml").write_text(YAML)
        with DAG("d", schedule=None):
            flows: list[Any] = [
                one("{{ ds }}"),
                FlowSpec("s", [FlowNode("only", queue=QUEUE, job="echo", data="{{ ds }}!")]),
                str(tmp_path / "one.yaml"),
            ]
            mapped = GlideMQFlowOperator.partial(task_id="t", deferrable=False).expand(flow=flows)
        found = [run_mapped(mapped, context(), index) for index in range(3)]
        assert [one["only"] for one in found] == [
            "2026-01-01",
            "2026-01-01!",
            {"day": "2026-01-01", "text": "7\n"},
        ]
        with valkey.producer() as producer:
            assert len(producer.list()) == 3

    def test_one_that_cannot_run_is_not_retried(
        self, valkey: Valkey, worker: Worker, context: Contexts
    ) -> None:
        with DAG("d", schedule=None):
            mapped = GlideMQFlowOperator.partial(task_id="t").expand(
                flow=[flow_of([("a", ["c"])], as_spec=False)]
            )
        with pytest.raises(AirflowFailException, match="a waits for c"):
            run_mapped(mapped, context(), 0)
        with valkey.producer() as producer, pytest.raises(FlowNotFound):
            producer.get("x")

    def test_it_defers(self, valkey: Valkey, worker: Worker, context: Contexts) -> None:
        with DAG("d", schedule=None):
            mapped = GlideMQFlowOperator.partial(task_id="t", defer_after=0.0, deferrable=True).expand(
                flow=[one(job="wait")]
            )
        with pytest.raises(TaskDeferred):
            run_mapped(mapped, context(), 0)
        valkey.gate.set()


def test_each_is_a_job_of_its_own(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    with DAG("d", schedule=None):
        mapped = GlideMQOperator.partial(
            task_id="t", queue_name=QUEUE, job="echo", deferrable=False, options={"attempts": 2}
        ).expand(data=[{"month": "{{ ds }}"}, {"month": 2}])
    found = [run_mapped(mapped, context(), index) for index in range(2)]
    assert found == [{"month": "2026-01-01"}, {"month": 2}]
    with valkey.producer() as producer:
        assert {status.id for status in producer.list()} == {flow_id_for("d", "t", "r1", n) for n in (0, 1)}
