"""Assets made from a flow, run by Dagster in this process against a real Valkey and a real worker."""

import dataclasses
import gc
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource, flow_id_for, glidemq_flow_assets, root_run_id
from dagster_glidemq.checks import MAX_RESULT_BYTES

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, FlowState
from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow
from tests.providers.dagster.builders import failure_of

RunWorker = Callable[..., Any]
BOTH = ["clean-left", "clean-right"]


class Steps:
    """A handler that counts its runs, and fails or waits as set."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.order: list[str] = []
        self.failing: set[str] = set()
        self.holding: set[str] = set()
        self.started = threading.Event()
        self.cancelled = threading.Event()

    def __call__(self, ctx: Context) -> Any:
        node = str(ctx.node)
        self.runs[node] += 1
        self.order.append(node)
        if node in self.holding:
            self.started.set()
            if ctx.cancelled.wait(20):
                self.cancelled.set()
            return None
        if node in self.failing:
            raise ValueError(f"{node} is broken")
        return ctx.data


@pytest.fixture
def steps(run_worker: RunWorker) -> Steps:

    made = Steps()
    run_worker(["etl"], {"step": made}, lease=timedelta(seconds=1))
    return made


def materialized(result: dg.ExecuteInProcessResult) -> list[str]:
    return [
        event.asset_key.to_user_string()
        for event in result.get_asset_materialization_events()
        if event.asset_key
    ]


def metadata_of(result: dg.ExecuteInProcessResult, key: str) -> Mapping[str, Any]:
    found = result.asset_materializations_for_node("diamond")
    return next(event.metadata for event in found if event.asset_key == dg.AssetKey(key))


def test_leaves_and_chosen_nodes_become_assets_that_depend_on_each_other(diamond: FlowSpec) -> None:
    assets = glidemq_flow_assets(flow=diamond, nodes=["extract"], key_prefix=["etl"], deps=["raw"])
    specs = {spec.key.to_user_string(): spec for spec in assets.specs}
    assert set(specs) == {"etl/extract", "etl/report"}
    assert [dep.asset_key for dep in specs["etl/report"].deps] == [dg.AssetKey(["etl", "extract"])]
    assert [dep.asset_key for dep in specs["etl/extract"].deps] == [dg.AssetKey("raw")]
    assert all(spec.skippable for spec in specs.values())
    assert specs["etl/extract"].metadata["glidemq/node"] == "extract"


def test_keys_can_be_chosen_and_choose_their_nodes(diamond: FlowSpec) -> None:
    assets = glidemq_flow_assets(flow=diamond, asset_keys={"clean-left": ["sales", "left"]})
    assert assets.keys == {dg.AssetKey(["sales", "left"]), dg.AssetKey("report")}


def test_a_text_in_place_of_names_is_refused(diamond: FlowSpec) -> None:
    with pytest.raises(ConfigurationError, match="nodes must be a list of names, got the text 'extract'"):
        glidemq_flow_assets(flow=diamond, nodes="extract")


def test_an_unknown_node_and_a_repeated_key_are_refused(diamond: FlowSpec) -> None:
    with pytest.raises(ConfigurationError, match="has no node nowhere; it has extract, "):
        glidemq_flow_assets(flow=diamond, nodes=["nowhere"])
    same = r"nodes extract and clean-left of flow .* have the same asset key, extract: .*'extract': 'other'"
    with pytest.raises(ConfigurationError, match=same):
        glidemq_flow_assets(flow=diamond, nodes=["extract"], asset_keys={"clean-left": "extract"})


def test_every_asset_materializes_with_what_is_known_of_its_node(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    assets = glidemq_flow_assets(flow=diamond, nodes=["extract", *BOTH])
    result = dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance)
    assert result.success
    assert materialized(result)[0] == "extract"
    assert materialized(result)[-1] == "report"
    assert steps.runs == Counter(["extract", *BOTH, "report"])
    metadata = metadata_of(result, "clean_left")
    assert metadata["glidemq/result"].value == {"rows": 4}
    assert metadata["glidemq/attempts"].value == 1
    assert metadata["glidemq/queue"].value == "etl"
    assert metadata["glidemq/worker"].value.startswith("gmo-worker-")
    assert metadata["glidemq/run_seconds"].value >= 0
    assert metadata["glidemq/started_at"].value <= metadata["glidemq/finished_at"].value
    assert metadata["glidemq/job_id"].value == f"{metadata['glidemq/flow_id'].value}~clean-left"


def test_an_asset_appears_while_the_flow_still_runs(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance, eventually: Any
) -> None:
    steps.holding = {"report"}
    assets = glidemq_flow_assets(flow=diamond, nodes=["extract"])
    seen: list[bool] = []

    def look_then_end() -> None:
        record = eventually(
            lambda: instance.get_latest_materialization_event(dg.AssetKey("extract")), timeout=20
        )
        seen.append(record is not None and steps.started.wait(20))
        with FlowProducer(glidemq.url) as producer:
            metadata = record.asset_materialization.metadata
            producer.get(str(metadata["glidemq/flow_id"].value)).cancel("seen enough")

    watcher = threading.Thread(target=look_then_end, daemon=True)
    watcher.start()
    result = dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance, raise_on_error=False)
    watcher.join(20)
    assert seen == [True]
    assert materialized(result) == ["extract"]
    assert "was cancelled: seen enough" in failure_of(result).description


def test_a_failing_node_fails_the_step_and_leaves_what_completed(
    diamond: FlowSpec,
    glidemq: GlideMQResource,
    steps: Steps,
    instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str],
) -> None:
    steps.failing = {"clean-right"}
    assets = glidemq_flow_assets(flow=diamond, nodes=["extract", *BOTH])
    result = dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance, raise_on_error=False)
    assert not result.success
    assert set(materialized(result)) == {"extract", "clean_left"}
    failure = failure_of(result)
    assert "clean-right: ValueError: clean-right is broken" in failure.description
    table = failure.metadata["glidemq/failed_nodes"]
    assert [record.data["node"] for record in table.records] == ["clean-right", "report"]
    assert table.records[0].data["attempts"] == 1
    assert failure.metadata["glidemq/failed_count"].value == 2
    told = capfd.readouterr().err
    assert "Node clean-right had logged:\n    attempt 1 failed: Traceback" in told
    assert "            raise ValueError" in told.partition("had logged")[2], "the line of the step"
    assert failure.metadata["glidemq/flow_id"].value.startswith("dg-")


def test_a_re_execution_runs_only_what_failed(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    steps.failing = {"clean-right"}
    defs = dg.Definitions(
        assets=[glidemq_flow_assets(flow=diamond, nodes=["extract", *BOTH])],
        jobs=[dg.define_asset_job("all")],
        resources={"glidemq": glidemq},
    )
    job = defs.resolve_job_def("all")
    first = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not first.success
    steps.failing = set()
    keys = [dg.AssetKey("clean_right"), dg.AssetKey("report")]
    again = execute_again(job, instance, first.run_id, keys)
    assert again.success
    assert steps.runs == Counter({"extract": 1, "clean-left": 1, "clean-right": 2, "report": 1})
    assert materialized(again) == ["clean_right", "report"]


def execute_again(
    job: dg.JobDefinition, instance: dg.DagsterInstance, former: str, keys: Sequence[dg.AssetKey]
) -> dg.ExecuteInProcessResult:
    """What the re-execution of the failed assets of a run does."""
    tags = {"dagster/root_run_id": former, "dagster/parent_run_id": former}
    tags["dagster/is_asset_resume_retry"] = "true"
    return job.execute_in_process(
        instance=instance, asset_selection=list(keys), tags=tags, raise_on_error=False
    )


def test_a_selection_runs_only_what_it_needs(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    assets = glidemq_flow_assets(flow=diamond, nodes=BOTH)
    result = dg.materialize(
        [assets], resources={"glidemq": glidemq}, instance=instance, selection="clean_left"
    )
    assert materialized(result) == ["clean_left"]
    assert steps.order == ["extract", "clean-left"]


def test_a_retry_policy_repairs_the_flow_where_failures_may_be_retried(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    steps.failing = {"report"}

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
    def run_it(context: dg.OpExecutionContext, glidemq: GlideMQResource) -> None:
        if context.retry_number:
            steps.failing = set()
        glidemq.run_flow(context, diamond, allow_retries=True)

    @dg.job(resource_defs={"glidemq": glidemq})
    def job() -> None:
        run_it()

    assert job.execute_in_process(instance=instance).success
    assert steps.runs == Counter({"extract": 1, "clean-left": 1, "clean-right": 1, "report": 2})


def test_terminating_the_run_cancels_the_flow(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    steps.holding = {"extract"}

    def terminate() -> None:
        if steps.started.wait(20):
            os.kill(os.getpid(), signal.SIGINT)  # how Dagster terminates the process of a step

    threading.Thread(target=terminate, daemon=True).start()
    ids: list[str] = []

    def remember(context: dg.AssetExecutionContext) -> FlowSpec:
        ids.append(flow_id_for(context, "diamond"))
        return diamond

    assets = glidemq_flow_assets(flow=diamond, build=remember)
    began = time.monotonic()
    with pytest.raises((dg.DagsterExecutionInterruptedError, KeyboardInterrupt)):
        dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance)
    assert time.monotonic() - began < 10
    with FlowProducer(glidemq.url) as producer:
        status = producer.get(ids[0]).status()
    assert status.state is FlowState.CANCELLED
    assert status.reason.startswith("Dagster run ")
    assert status.reason.endswith(("was terminated", "ended before its flow")), "it may be told in a yield"
    assert steps.cancelled.wait(20), "the handler was not signalled"
    with warnings.catch_warnings():  # the signal may strike between two lines of the driver's connect
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_quality_node_becomes_a_blocking_check(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    bad = dataclasses.replace(diamond.nodes[0], data={"checks": [{"passed": True}, {"passed": False}]})
    flow = dataclasses.replace(diamond, nodes=[bad, *diamond.nodes[1:]])
    assets = glidemq_flow_assets(flow=flow, quality="extract")

    @dg.asset(deps=["extract"])
    def downstream() -> None:
        raise AssertionError("the check did not block")

    result = dg.materialize(
        [assets, downstream], resources={"glidemq": glidemq}, instance=instance, raise_on_error=False
    )
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.metadata["glidemq/result"].value == bad.data
    assert not result.success
    assert materialized(result) == ["extract"]
    assert steps.runs == {"extract": 1}, "it does not block inside the flow"


def test_a_failed_quality_node_is_a_failed_check(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    steps.failing = {"extract"}
    assets = glidemq_flow_assets(flow=diamond, quality="extract")
    result = dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance, raise_on_error=False)
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.metadata["reason"].value == "ValueError: extract is broken"
    assert materialized(result) == []


@pytest.mark.long
def test_build_gets_the_context_and_may_not_change_the_shape(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    def per_run(context: dg.AssetExecutionContext) -> FlowSpec:
        data = {"run": root_run_id(context), "day": context.partition_key}
        return FlowSpec("diamond", nodes=[dataclasses.replace(node, data=data) for node in diamond.nodes])

    days = dg.StaticPartitionsDefinition(["2026-01-01"])
    assets = glidemq_flow_assets(flow=diamond, build=per_run, partitions_def=days)
    result = dg.materialize(
        [assets], resources={"glidemq": glidemq}, instance=instance, partition_key="2026-01-01"
    )
    assert metadata_of(result, "report")["glidemq/result"].value == {
        "run": result.run_id,
        "day": "2026-01-01",
    }

    other = FlowSpec("diamond", nodes=[FlowNode("extract", queue="etl", job="step")])
    wrong = glidemq_flow_assets(flow=diamond, build=lambda _: other)
    with pytest.raises(InvalidFlow, match="see clean-left, clean-right, report"):
        dg.materialize([wrong], resources={"glidemq": glidemq}, instance=instance)


def test_a_wrong_label_of_a_flow_is_refused_before_anything_runs(diamond: FlowSpec) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"team": 5}, "^flow diamond: the value of label 'team' must be text, got 5"),
        (
            {str(n): "x" for n in range(33)},
            "^flow diamond has 33 labels; the limit is 32. Fix: leave 1 of them out",
        ),
    ]
    for labels, message in wrong:
        with pytest.raises(InvalidFlow, match=message):
            glidemq_flow_assets(flow=dataclasses.replace(diamond, labels=labels))


def test_a_large_result_stays_out_of_the_event_log(
    glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    nodes = [FlowNode("report", queue="etl", job="step", data={"text": "x" * MAX_RESULT_BYTES})]
    assets = glidemq_flow_assets(flow=FlowSpec("diamond", nodes=nodes))
    result = dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance)
    assert "glidemq/result" not in metadata_of(result, "report")
    assert steps.runs["report"] == 1


def test_a_second_run_is_quick_and_a_flow_of_its_own(
    diamond: FlowSpec, glidemq: GlideMQResource, steps: Steps, instance: dg.DagsterInstance
) -> None:
    assets = glidemq_flow_assets(flow=diamond)
    began = time.monotonic()
    first = dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance)
    again = time.monotonic()
    second = dg.materialize([assets], resources={"glidemq": glidemq}, instance=instance)
    assert time.monotonic() - again < again - began + 3
    ids = {str(metadata_of(run, "report")["glidemq/flow_id"].value) for run in (first, second)}
    assert len(ids) == 2
    assert steps.runs["extract"] == 2
