"""build_glidemq_workers_check: what live workers do not serve is told before a flow needs it."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource, build_glidemq_workers_check

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.errors import ConfigurationError, CycleError
from tests.conftest import RunWorker

FLOWS = [
    FlowSpec("a", nodes=[FlowNode("x", queue="etl", job="clean"), FlowNode("y", queue="bi", job="draw")]),
    FlowSpec("b", nodes=[FlowNode("z", queue="etl", job="load")]),
]


@dg.asset
def report() -> None:
    pass


def evaluate(glidemq: GlideMQResource, instance: dg.DagsterInstance, **options: Any) -> Any:
    check = build_glidemq_workers_check(**{"asset": "report", "flows": FLOWS, **options})
    job = dg.define_asset_job("check_workers", selection=dg.AssetSelection.checks(check))
    defs = dg.Definitions(assets=[report], asset_checks=[check], jobs=[job], resources={"glidemq": glidemq})
    result = defs.resolve_job_def("check_workers").execute_in_process(instance=instance, raise_on_error=False)
    evaluations = result.get_asset_check_evaluations()
    return evaluations[0] if evaluations else result


def test_each_queue_and_handler_that_is_missing_is_named(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    found = evaluate(glidemq, instance)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.description == "no worker serves queue bi; no worker serves queue etl"
    run_worker(["etl"], {"clean": lambda ctx: None})
    run_worker(["bi"], {"draw": lambda ctx: None})
    found = evaluate(glidemq, instance, severity=dg.AssetCheckSeverity.ERROR)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert found.description == "no worker of queue etl has a handler for load"
    (row,) = found.metadata["glidemq/missing"].value.records
    assert row.data == {"queue": "etl", "missing": "handler load", "known": "clean"}
    assert found.metadata["glidemq/queues"].value == "bi, etl"
    run_worker(["etl"], {"load": lambda ctx: None})
    assert evaluate(glidemq, instance).passed


def test_a_server_that_is_away_fails_the_step_and_not_the_check(instance: dg.DagsterInstance) -> None:
    away = GlideMQResource(url="valkey://127.0.0.1:1", patience=0.2)
    result = evaluate(away, instance)
    assert not result.success
    (event,) = result.get_step_failure_events()
    assert "127.0.0.1:1" in event.step_failure_data.user_failure_data.description


def test_the_check_belongs_to_the_asset_that_it_is_given(glidemq: GlideMQResource) -> None:
    for asset in (report, "report", dg.AssetKey("report"), ["report"]):
        check = build_glidemq_workers_check(asset=asset, flows=FLOWS, name="served")
        assert [*check.check_keys] == [dg.AssetCheckKey(dg.AssetKey("report"), "served")]


def test_what_cannot_be_right_is_refused_at_load_time() -> None:
    with pytest.raises(ConfigurationError, match="no flows"):
        build_glidemq_workers_check(asset="report", flows=[])
    loop = FlowSpec("c", nodes=[FlowNode("x", queue="etl", job="clean", after=["x"])])
    with pytest.raises(CycleError):
        build_glidemq_workers_check(asset="report", flows=[loop])
