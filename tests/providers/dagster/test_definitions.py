"""The example definitions load without a server and without Spark, with the right dependencies."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from dags.dagster import orders

ROOT = Path(__file__).parents[3]
FILE = ROOT / "dags" / "dagster" / "flights_job.py"


@pytest.fixture(scope="module")
def flights_job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flights_job", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_definitions_are_loadable(flights_job: ModuleType) -> None:
    dg.Definitions.validate_loadable(flights_job.defs)
    job = flights_job.defs.resolve_job_def("flights_job")
    assert [node.name for node in job.graph.nodes] == ["flights"]


def test_the_report_follows_the_aggregates_of_checked_flights(
    flights_job: ModuleType,
) -> None:
    specs = {spec.key.path[-1]: spec for spec in flights_job.flights.specs}
    delays = {"delay_by_carrier", "delay_by_route", "delay_by_hour", "delay_by_weather"}
    assert set(specs) == {"join", "quality", *delays, "report"}
    assert {dep.asset_key.path[-1] for dep in specs["report"].deps} == {"quality", *delays}
    assert {dep.asset_key.path[-1] for dep in specs["delay_by_hour"].deps} == {"quality"}
    (check,) = flights_job.flights.check_specs
    assert check.blocking
    assert check.asset_key.path[-1] == "quality"


def test_loading_imports_neither_pyspark_nor_a_driver() -> None:
    program = (
        f"import runpy, sys; runpy.run_path({str(FILE)!r}); "
        "print([name for name in ('pyspark', 'redis') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def test_location_and_server_are_asked_for_by_name(
    flights_job: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIDEMQ_FLIGHTS_DATA", raising=False)
    job = flights_job.defs.resolve_job_def("flights_job")
    with pytest.raises(dg.DagsterInvalidConfigError, match="GLIDEMQ_FLIGHTS_DATA"):
        job.execute_in_process(raise_on_error=False)


def test_the_examples_of_the_readme_load() -> None:
    text = (ROOT / "providers" / "dagster" / "README.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    found: dict[str, Any] = {}
    exec(
        compile(program, "README.md", "exec", dont_inherit=True), found
    )  # without this module's future import
    dg.Definitions.validate_loadable(found["defs"])
    assert {key.to_user_string() for key in found["nightly"].keys} == {"extract", "check", "report"}
    assert [sensor.name for sensor in found["sensors"]] == ["corrected", "ended", "crowded"]
    assert found["nightly_rows"].required_resource_keys == {"glidemq", "io_manager"}


@pytest.mark.filterwarnings("ignore:Function `JobDefinition.run_request_for_partition`:DeprecationWarning")
def test_the_schedule_of_the_orders_asks_for_the_day_that_ended() -> None:
    dg.Definitions.validate_loadable(orders.defs)
    job = orders.defs.resolve_job_def("orders_job")
    context = dg.build_schedule_context(scheduled_execution_time=datetime(2026, 1, 5, tzinfo=UTC))
    schedule = orders.defs.resolve_schedule_def("nightly")
    found = schedule.evaluate_tick(context).run_requests
    assert [request.partition_key for request in found or []] == ["2026-01-04"]
    keys = {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
    assert keys == {f"orders/{name}" for name in (*orders.REGIONS, "check", "report")}
