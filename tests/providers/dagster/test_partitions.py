"""Runs of several partitions: one flow, and an event for each partition of an asset."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQCheck, GlideMQResource, glidemq_flow_assets

from glidemq_orchestrate import Context, Dependency, FlowNode, FlowSpec
from glidemq_orchestrate.errors import ConfigurationError

RunWorker = Callable[..., Any]
DAYS = dg.StaticPartitionsDefinition(["mon", "tue", "wed"])
RANGE = {"dagster/asset_partition_range_start": "mon", "dagster/asset_partition_range_end": "wed"}


def of_day(_: object, day: str) -> FlowSpec:
    return FlowSpec(
        "daily",
        [
            FlowNode("load", queue="etl", job="step", data={"day": day, "rows": len(day)}),
            FlowNode("check", queue="etl", job="step", data={"day": day}, after=[Dependency("load", "skip")]),
        ],
    )


@pytest.fixture
def broken() -> list[str]:
    """Nodes and days that fail, each time once."""
    return []


@pytest.fixture
def ran(run_worker: RunWorker, broken: list[str]) -> list[str]:
    """The nodes and days that ran."""
    done: list[str] = []

    def step(ctx: Context) -> Any:
        data: Any = ctx.data
        name = f"{str(ctx.node).partition('[')[0]} {data['day']}"
        done.append(name)
        if name in broken:
            broken.remove(name)
            raise ValueError("broken")
        return ctx.data

    run_worker(["etl"], {"step": step}, lease=timedelta(seconds=1))
    return done


def daily(**kw: Any) -> dg.AssetsDefinition:
    return glidemq_flow_assets(
        flow=of_day(None, ""), build_partition=of_day, nodes=["load"], partitions_def=DAYS, **kw
    )


SEVERAL = daily(checks=[GlideMQCheck("check")], backfill_policy=dg.BackfillPolicy.single_run())


def run(
    assets: dg.AssetsDefinition, glidemq: GlideMQResource, instance: dg.DagsterInstance, **kw: Any
) -> dg.ExecuteInProcessResult:
    resources = {"glidemq": glidemq}
    return dg.materialize([assets], resources=resources, instance=instance, raise_on_error=False, **kw)


def events(result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance) -> list[dg.AssetMaterialization]:
    """Those of the event log: the result has none that a try of a step that failed has logged."""
    logs = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    return [entry.asset_materialization for entry in logs if entry.asset_materialization]


def done(instance: dg.DagsterInstance, key: str) -> set[str]:
    return set(instance.get_materialized_partitions(dg.AssetKey(key)))


def test_each_partition_has_its_own_event(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, ran: list[str]
) -> None:
    result = run(SEVERAL, glidemq, instance, tags=RANGE)
    assert result.success
    assert sorted(ran) == sorted(
        f"{node} {day}" for node in ("load", "check") for day in ("mon", "tue", "wed")
    )
    assert done(instance, "load") == done(instance, "check") == {"mon", "tue", "wed"}
    loads = [one for one in events(result, instance) if one.asset_key == dg.AssetKey("load")]
    assert {one.partition: one.metadata["glidemq/node"].value for one in loads} == {
        day: f"load[{day}]" for day in ("mon", "tue", "wed")
    }
    assert all(one.metadata["dagster/row_count"].value == 3 for one in loads)
    (check,) = result.get_asset_check_evaluations()
    assert (check.passed, check.metadata["glidemq/failed_partitions"].value) == (True, [])


@pytest.mark.long
def test_what_completed_of_a_range_stays_and_a_retry_tells_the_rest(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, ran: list[str], broken: list[str]
) -> None:
    broken.append("load tue")
    first = run(SEVERAL, glidemq, instance, tags=RANGE)
    assert not first.success
    assert done(instance, "load") == done(instance, "check") == {"mon", "wed"}
    before = len(ran)
    parent = {"dagster/root_run_id": first.run_id, "dagster/parent_run_id": first.run_id}
    second = run(SEVERAL, glidemq, instance, tags=RANGE | parent | {"dagster/is_resume_retry": "true"})
    assert second.success
    assert ran[before:] == ["load tue", "check tue"]
    assert done(instance, "load") == {"mon", "tue", "wed"}


@pytest.mark.long
def test_a_failed_check_of_some_partitions_names_them(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, ran: list[str], broken: list[str]
) -> None:
    broken.append("check tue")
    result = run(SEVERAL, glidemq, instance, tags=RANGE)
    (check,) = result.get_asset_check_evaluations()
    assert (check.passed, check.metadata["glidemq/failed_partitions"].value) == (False, ["tue"])
    assert check.metadata["reason"].value == "ValueError: broken"
    assert len(ran) == 6


def test_a_run_of_one_partition_has_plain_names(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, ran: list[str]
) -> None:
    result = run(SEVERAL, glidemq, instance, partition_key="tue")
    assert result.success
    assert (done(instance, "load"), len(ran)) == ({"tue"}, 2)
    load, _ = events(result, instance)
    assert load.metadata["glidemq/node"].value == "load"


@pytest.mark.long
def test_a_retry_of_the_step_tells_each_asset_once(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, ran: list[str], broken: list[str]
) -> None:
    broken.append("check mon")
    assets = daily(retry_policy=dg.RetryPolicy(max_retries=1))

    @dg.asset(deps=["load", "check"], partitions_def=DAYS)
    def after() -> None: ...

    result = dg.materialize(
        [assets, after], resources={"glidemq": glidemq}, instance=instance, partition_key="mon"
    )
    told = [one.asset_key for one in result.get_asset_materialization_events()]
    assert told == [dg.AssetKey(name) for name in ("load", "check", "after")]
    assert ran == ["load mon", "check mon", "check mon"]


@pytest.mark.long
def test_a_retry_of_a_range_tells_each_partition_once(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, ran: list[str], broken: list[str]
) -> None:
    broken.append("load wed")
    assets = daily(retry_policy=dg.RetryPolicy(max_retries=1), backfill_policy=dg.BackfillPolicy.single_run())
    result = run(assets, glidemq, instance, tags=RANGE)
    assert result.success
    told = [(one.asset_key.to_user_string(), one.partition) for one in events(result, instance)]
    assert len(told) == len(set(told)) == 6
    assert len(ran) == 7


def test_arguments_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        daily(build=lambda _: of_day(None, ""))
    with pytest.raises(ConfigurationError, match="need partitions_def"):
        glidemq_flow_assets(flow=of_day(None, ""), backfill_policy=dg.BackfillPolicy.single_run())
    with pytest.raises(ConfigurationError, match="give build_partition instead of build"):
        glidemq_flow_assets(
            flow=of_day(None, ""),
            build=lambda _: of_day(None, ""),
            partitions_def=DAYS,
            backfill_policy=dg.BackfillPolicy.single_run(),
        )
