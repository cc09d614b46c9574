"""The sensor that cancels what canceled runs have left."""

from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource, build_glidemq_cancellation_sensor, flow_run

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, Owner
from glidemq_orchestrate.runs import OrchestratedRun

SPEC = FlowSpec("etl", [FlowNode("extract", queue="etl", job="step")])


@pytest.fixture
def left(url: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterRun:
    """A run whose step died while its flow was running, and that was canceled then."""

    class _Killed(BaseException):
        """The process of the step is gone."""

    def die(*_: Any, **__: Any) -> Any:
        raise _Killed

    @dg.op
    def etl(context: dg.OpExecutionContext) -> None:
        GlideMQResource(url=url, require_workers=False).run_flow(context, SPEC, flow_id="mine")

    @dg.job
    def nightly() -> None:
        etl()

    with monkeypatch.context() as patch:
        patch.setattr(flow_run, "_announce", die)
        patch.setattr(OrchestratedRun, "end", lambda *_: None)
        with pytest.raises(_Killed):
            nightly.execute_in_process(instance=instance)
    (run,) = instance.get_runs()
    return run


def evaluate(url: str, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    @dg.job
    def nightly() -> None: ...

    sensor = build_glidemq_cancellation_sensor()
    context: Any = dg.build_run_status_sensor_context(
        "glidemq_cancellation",
        dagster_instance=instance,
        dagster_run=run,
        dagster_event=dg.DagsterEvent("PIPELINE_CANCELED", "nightly"),
        resources={"glidemq": GlideMQResource(url=url)},
    )
    sensor(context)


def state(url: str) -> str:
    with FlowProducer(url) as producer:
        return str(producer.get("mine").status().state)


def test_the_flow_of_a_canceled_run_is_cancelled(
    url: str, instance: dg.DagsterInstance, left: dg.DagsterRun
) -> None:
    assert state(url) == "running"
    for _ in range(2):
        evaluate(url, instance, left)
        assert state(url) == "cancelled"
    with FlowProducer(url) as producer:
        assert producer.get("mine").status().reason == f"Dagster run {left.run_id} was canceled"


def test_a_flow_that_another_owner_wants_goes_on(
    url: str, instance: dg.DagsterInstance, left: dg.DagsterRun
) -> None:
    with FlowProducer(url) as producer:
        producer.get("mine", owner=Owner("ada")).renew()
    evaluate(url, instance, left)
    assert state(url) == "running"
