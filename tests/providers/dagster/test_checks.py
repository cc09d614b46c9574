"""Asset checks that nodes decide: several of one asset, blocking or not, repaired, selected alone."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQCheck, GlideMQResource, glidemq_flow_assets

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker.handlers.signals import Skip

RunWorker = Callable[..., Any]
WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


class Steps:
    """Handlers that return what they are told to, or raise it."""

    def __init__(self) -> None:
        self.returns: dict[str, Any] = {}
        self.runs: Counter[str] = Counter()

    def __call__(self, ctx: Context) -> Any:
        self.runs[str(ctx.node)] += 1
        result = self.returns.get(str(ctx.node))
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def steps(run_worker: RunWorker) -> Steps:
    made = Steps()
    run_worker(["etl"], {"step": made}, lease=timedelta(seconds=1))
    return made


FLOW = FlowSpec(
    "checked",
    [
        FlowNode("load", queue="etl", job="step"),
        FlowNode("check", queue="etl", job="step", after=["load"]),
        FlowNode("report", queue="etl", job="step", after=["check"]),
    ],
)


def assets(*checks: GlideMQCheck, **kw: Any) -> dg.AssetsDefinition:
    return glidemq_flow_assets(flow=FLOW, nodes=["load", "check"], checks=checks, **kw)


def run(
    made: dg.AssetsDefinition, glidemq: GlideMQResource, instance: dg.DagsterInstance, **kw: Any
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [made], resources={"glidemq": glidemq}, instance=instance, raise_on_error=False, **kw
    )


def told(result: dg.ExecuteInProcessResult) -> list[str]:
    return [
        one.asset_key.to_user_string() for one in result.get_asset_materialization_events() if one.asset_key
    ]


def checks_of(result: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, Any]]:
    return {one.check_name: (one.passed, one.severity) for one in result.get_asset_check_evaluations()}


def test_each_check_of_an_asset_has_its_part_of_the_result(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, steps: Steps
) -> None:
    steps.returns["check"] = {
        "checks": [
            {"name": "rows", "passed": True, "metadata": {"count": 3}},
            {"name": "nulls", "passed": False, "severity": "WARN"},
            {"name": "dates", "passed": False},
        ]
    }
    names = ["rows", "nulls", "dates"]
    made = assets(*(GlideMQCheck("check", name, asset="load") for name in names))
    result = run(made, glidemq, instance)
    assert result.success
    assert checks_of(result) == {"rows": (True, ERROR), "nulls": (False, WARN), "dates": (False, ERROR)}
    rows = next(one for one in result.get_asset_check_evaluations() if one.check_name == "rows")
    assert (rows.asset_key, rows.metadata["count"].value) == (dg.AssetKey("load"), "3")


def test_a_check_that_does_not_block_lets_the_flow_go_on(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, steps: Steps
) -> None:
    steps.returns["check"] = False
    result = run(assets(GlideMQCheck("check", severity=WARN)), glidemq, instance)
    assert result.success
    assert checks_of(result) == {"quality": (False, WARN)}
    assert told(result) == ["load", "check", "report"]


@pytest.mark.long
def test_a_blocking_check_that_only_warns_does_not_block(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, steps: Steps
) -> None:
    steps.returns["check"] = {"checks": [{"name": "quality", "passed": False, "severity": "WARN"}]}
    result = run(assets(GlideMQCheck("check", blocking=True)), glidemq, instance)
    assert (result.success, told(result)) == (True, ["load", "check", "report"])
    assert checks_of(result) == {"quality": (False, WARN)}


def execute(job: dg.JobDefinition, instance: dg.DagsterInstance, **kw: Any) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(instance=instance, raise_on_error=False, **kw)


def again(parent: str, **more: str) -> dict[str, str]:
    """The tags of a re-execution."""
    return {"dagster/root_run_id": parent, "dagster/parent_run_id": parent, **more}


@pytest.mark.long
@pytest.mark.parametrize("must_pass", [True, False], ids=["ours", "of a worker that knows no checks"])
def test_a_failed_blocking_check_is_repaired_with_what_depends_on_it(
    glidemq: GlideMQResource,
    instance: dg.DagsterInstance,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    *,
    must_pass: bool,
) -> None:
    if not must_pass:  # a worker of Node.js ignores the option
        monkeypatch.setattr("glidemq_orchestrate.worker.executor.has_passed", lambda _: True)
    steps.returns["check"] = {"passed": False}
    defs = dg.Definitions(
        assets=[assets(GlideMQCheck("check", blocking=True))],
        jobs=[dg.define_asset_job("all")],
        resources={"glidemq": glidemq},
    )
    job = defs.resolve_job_def("all")
    first = execute(job, instance)
    assert not first.success
    assert checks_of(first) == {"quality": (False, ERROR)}
    assert steps.runs["report"] == (0 if must_pass else 1)
    steps.returns["check"], before = {"passed": True}, steps.runs.copy()
    keys = [dg.AssetKey("check"), dg.AssetKey("report")]
    second = execute(
        job,
        instance,
        asset_selection=keys if must_pass else keys[:1],
        tags=again(first.run_id, **{"dagster/is_asset_resume_retry": "true"}),
    )
    assert second.success
    assert checks_of(second) == {"quality": (True, ERROR)}
    assert steps.runs - before == {"check": 1, "report": 1}, "load keeps its result"


@pytest.mark.long
def test_a_run_that_selects_only_a_check(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, steps: Steps
) -> None:
    made = assets(GlideMQCheck("check"))
    result = run(made, glidemq, instance, selection=dg.AssetSelection.checks_for_assets("check"))
    assert (result.success, told(result), checks_of(result)) == (True, [], {"quality": (True, ERROR)})
    assert steps.runs == {"load": 1, "check": 1}


@pytest.mark.long
def test_a_node_that_was_skipped_says_nothing_about_its_check(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, steps: Steps
) -> None:
    steps.returns["check"] = Skip("nothing to check")
    result = run(assets(GlideMQCheck("check", blocking=True)), glidemq, instance)
    assert (result.success, told(result), checks_of(result)) == (True, ["load"], {})
    lines = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("node check skipped: nothing to check" in line for line in lines)
    assert not any("failed" in line for line in lines)


def test_a_node_that_was_cancelled_says_nothing_about_its_check(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, steps: Steps
) -> None:
    made = assets(GlideMQCheck("check", blocking=True), flow_id=lambda _: "mine")

    def cancel(_: Context) -> None:
        with FlowProducer(glidemq.url) as producer:
            producer.get("mine").cancel_node("check", "not today")

    steps.returns["load"] = None
    original = Steps.__call__

    def call(ctx: Context) -> Any:
        if ctx.node == "load":
            cancel(ctx)
        return original(steps, ctx)

    steps.__class__ = type("Cancelling", (Steps,), {"__call__": lambda _, ctx: call(ctx)})
    result = run(made, glidemq, instance)
    assert (result.success, told(result), checks_of(result)) == (False, ["load"], {})


def test_checks_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no node nowhere"):
        assets(GlideMQCheck("nowhere"))
    with pytest.raises(ConfigurationError, match="two checks with the name quality"):
        assets(GlideMQCheck("check"), GlideMQCheck("load", asset="check"))
