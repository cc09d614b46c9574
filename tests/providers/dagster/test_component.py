"""GlideMQFlowComponent: a flow in YAML."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTree
from dagster.components.testing import create_defs_folder_sandbox
from dagster_glidemq import GlideMQFlowComponent, GlideMQResource
from dagster_glidemq.components import EXAMPLE, GlideMQFlowScaffolder

from glidemq_orchestrate.errors import ConfigurationError, CycleError, InvalidFlow, UnknownDependency
from tests.conftest import RunWorker

TYPE = "dagster_glidemq.components.GlideMQFlowComponent"
DAYS = {"type": "static", "partition_keys": ["mon", "tue"]}


def step(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "job": "step", "needs": list(needs), **more}


def definitions(steps: list[dict[str, Any]], **more: Any) -> dg.Definitions:
    attributes: dict[str, Any] = {"name": "night", "queue": "etl", "steps": steps, **more}
    made = GlideMQFlowComponent.from_attributes_dict(attributes=attributes)
    return made.build_defs(ComponentTree.for_test().load_context)


def complete(defs: dg.Definitions, glidemq: GlideMQResource | None = None) -> dg.Definitions:
    """With the resource that a project defines beside its components; by default its server is away."""
    resource = glidemq or GlideMQResource(url="valkey://127.0.0.1:1")
    jobs = [dg.define_asset_job("all")]
    return dg.Definitions.merge(defs, dg.Definitions(jobs=jobs, resources={"glidemq": resource}))


def materialize(
    defs: dg.Definitions, glidemq: GlideMQResource, instance: dg.DagsterInstance, **options: Any
) -> dg.ExecuteInProcessResult:
    job = complete(defs, glidemq).resolve_job_def("all")
    return job.execute_in_process(instance=instance, raise_on_error=False, **options)


def test_the_steps_run_as_one_flow_and_materialize_their_assets(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    seen: list[Any] = []
    run_worker(["etl", "bi"], {"step": lambda ctx: seen.append((ctx.node, ctx.data, sorted(ctx.inputs)))})
    defs = definitions(
        [
            step("raw", data={"rows": 3}, assets=[{"key": "lake/raw"}]),
            step("clean", "raw"),
            step("report", "clean", queue="bi", assets=[{"key": "report"}]),
        ]
    )
    result = materialize(defs, glidemq, instance)
    assert result.success
    keys = [event.asset_key.to_user_string() for event in result.get_asset_materialization_events()]  # type: ignore[union-attr]
    assert keys == ["lake/raw", "report"]
    assert seen == [("raw", {"rows": 3}, []), ("clean", None, ["raw"]), ("report", None, ["clean"])]


# How Dagster reads YAML, and notes where it was; 1.12 warns of a method of its own.
@pytest.mark.filterwarnings("ignore:Function `ComponentLoadContext.build_defs_at_path` is deprecated")
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.filterwarnings("ignore:Class `[A-Za-z]*CodeReference[A-Za-z]*` is currently in beta")
def test_an_asset_has_what_its_yaml_says_beside_what_the_flow_says() -> None:
    given = {
        "key": "report",
        "deps": ["other"],
        "description": "What the flow is for.",
        "group_name": "night",
        "owners": ["team:data"],
        "tags": {"tier": "gold"},
        "kinds": ["spark"],
        "metadata": {"rows": 3},
        "code_version": "v7",
        "automation_condition": "{{ dg.AutomationCondition.eager() }}",
    }
    attributes = {
        "name": "night",
        "steps": [step("raw", assets=[{"key": "raw"}]), step("report", "raw", assets=[given])],
    }
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=GlideMQFlowComponent, defs_yaml_contents={"type": TYPE, "attributes": attributes}
        )
        with sandbox.load_component_and_build_defs(path) as (component, defs):
            assert isinstance(component, GlideMQFlowComponent)
            (spec,) = [
                one for one in complete(defs).resolve_all_asset_specs() if one.key == dg.AssetKey("report")
            ]
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"raw", "other"}
    assert (spec.description, spec.group_name, spec.code_version) == ("What the flow is for.", "night", "v7")
    assert (list(spec.owners), spec.tags["tier"]) == (["team:data"], "gold")
    assert spec.kinds == {"spark", "glidemq"}
    assert spec.automation_condition is not None
    assert spec.metadata["rows"] == 3
    assert spec.metadata["glidemq/node"] == "report"
    assert spec.skippable


def test_the_result_of_a_step_decides_checks_and_the_workers_are_another(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    run_worker(["etl"], {"step": lambda ctx: {"passed": ctx.node == "raw"}})
    odd = {"name": "odd", "step": "raw", "severity": "WARN", "description": "Odd rows."}
    defs = definitions([step("raw", checks=[{}]), step("test", "raw", checks=[odd])], check_workers=True)
    result = materialize(defs, glidemq, instance)
    assert result.success
    found = {
        (one.asset_key.to_user_string(), one.check_name): one for one in result.get_asset_check_evaluations()
    }
    told = {key: (one.passed, one.severity.value) for key, one in found.items()}
    assert told == {
        ("raw", "quality"): (True, "ERROR"),
        ("raw", "odd"): (False, "WARN"),
        ("test", "workers"): (True, "WARN"),
    }


def test_the_partition_of_a_run_is_in_the_data_of_each_step(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    seen: list[Any] = []
    run_worker(["etl"], {"step": lambda ctx: seen.append(ctx.data)})
    defs = definitions(
        [
            step("raw", data={"rows": 3}),
            step("report", "raw", assets=[{"key": "report", "partitions_def": DAYS}]),
        ],
        partition_field="day",
    )
    result = materialize(defs, glidemq, instance, partition_key="tue")
    assert result.success
    assert seen == [{"rows": 3, "day": "tue"}, {"day": "tue"}]
    (event,) = result.get_asset_materialization_events()
    assert event.partition == "tue"


def test_partitions_of_a_backfill_may_be_one_flow(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    seen: list[Any] = []
    run_worker(["etl"], {"step": lambda ctx: seen.append(ctx.data)})
    steps = [step("report", assets=[{"key": "report", "partitions_def": DAYS}])]
    defs = definitions(steps, partition_field="day", partitions_per_run=None)
    tags = {"dagster/asset_partition_range_start": "mon", "dagster/asset_partition_range_end": "tue"}
    assert materialize(defs, glidemq, instance, tags=tags).success
    assert sorted(one["day"] for one in seen) == ["mon", "tue"]
    assert instance.get_materialized_partitions(dg.AssetKey("report")) == {"mon", "tue"}


WRONG_FLOWS: list[tuple[list[dict[str, Any]], dict[str, Any], type[Exception], str]] = [
    ([step("a", "b"), step("b", "a")], {}, CycleError, "a -> b -> a|b -> a -> b"),
    ([step("a", "b")], {}, UnknownDependency, "b"),
    ([step("a", options={"attempt": 3})], {}, InvalidFlow, "no field 'attempt'"),
    (
        [step("a", assets=[{"key": "x"}, {"key": "y"}])],
        {},
        ConfigurationError,
        "step a of flow night has 2 assets",
    ),
    ([step("a", checks=[{"step": "b"}])], {}, ConfigurationError, "has no node b"),
    (
        [step("a")],
        {"partition_field": "day"},
        ConfigurationError,
        "none of its assets has a partitions_def",
    ),
    (
        [
            step("a", assets=[{"key": "a", "partitions_def": DAYS}]),
            step("b", assets=[{"key": "b", "partitions_def": {**DAYS, "partition_keys": ["wed"]}}]),
        ],
        {},
        ConfigurationError,
        "must have the same partitions",
    ),
    (
        [step("a", data=3, assets=[{"key": "a", "partitions_def": DAYS}])],
        {"partition_field": "day"},
        ConfigurationError,
        "the data of step a must be a mapping",
    ),
]


def test_a_flow_that_cannot_run_is_one_sentence_at_load_time(subtests: pytest.Subtests) -> None:
    for steps, more, error, told in WRONG_FLOWS:
        with subtests.test(steps=steps):
            with pytest.raises(error, match=told) as caught:
                definitions(steps, **more)
            assert "\n" not in str(caught.value)


def test_loading_definitions_connects_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWAY", "valkey://127.0.0.1:1")  # nothing listens there
    defs = definitions([step("raw", assets=[{"key": "raw"}])], check_workers=True)
    dg.Definitions.validate_loadable(complete(defs, GlideMQResource(url=dg.EnvVar("AWAY"))))


def test_the_scaffolded_file_can_be_loaded(tmp_path: Path) -> None:
    request: Any = dg.ScaffoldRequest(
        type_name=TYPE, target_path=tmp_path, scaffold_format="yaml", project_root=None, params=None
    )
    GlideMQFlowScaffolder().scaffold(request)
    written = yaml.safe_load((tmp_path / "defs.yaml").read_text())
    assert written == {"type": TYPE, "attributes": EXAMPLE}
    made = GlideMQFlowComponent.from_attributes_dict(attributes=written["attributes"])
    defs = made.build_defs(ComponentTree.for_test().load_context)
    assert {spec.key.to_user_string() for spec in complete(defs).resolve_all_asset_specs()} == {
        "raw",
        "report",
    }


def test_the_yaml_of_the_readme_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGION", "north")
    text = (Path(__file__).parents[3] / "providers" / "dagster" / "README.md").read_text()
    blocks = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL))
    (given,) = [block for block in blocks if block.get("type") == TYPE]
    made = GlideMQFlowComponent.from_attributes_dict(attributes=given["attributes"])
    defs = complete(made.build_defs(ComponentTree.for_test().load_context))
    assert {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()} == {"test", "sales/report"}
    load = made.build_flow("2026-01-01").nodes[0]
    assert load.data == {"region": "north", "day": "2026-01-01"}
    assert load.options.timeout == timedelta(minutes=10)


def test_dg_finds_the_component() -> None:
    (entry,) = metadata.entry_points(group="dagster_dg_cli.registry_modules", name="dagster_glidemq")
    module, _, name = TYPE.rpartition(".")
    assert entry.value == module
    assert getattr(import_module(module), name) is GlideMQFlowComponent
