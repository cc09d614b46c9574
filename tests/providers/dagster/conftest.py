"""Dagster's own warnings, the resource, and small flows."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource

from glidemq_orchestrate import FlowNode, FlowSpec

# It belongs to another environment, where the Makefile names it: a run of no tests fails.
collect_ignore = [] if find_spec("dagster_postgres") else ["test_postgres.py"]


@pytest.fixture
def glidemq(url: str) -> GlideMQResource:
    return GlideMQResource(url=url)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    with dg.DagsterInstance.ephemeral(str(tmp_path)) as made:
        yield made


@pytest.fixture
def diamond() -> FlowSpec:
    """extract, then left and right, then report."""
    return FlowSpec(
        "diamond",
        nodes=[
            FlowNode("extract", queue="etl", job="step", data={"rows": 10}),
            FlowNode("clean-left", queue="etl", job="step", data={"rows": 4}, after=["extract"]),
            FlowNode("clean-right", queue="etl", job="step", data={"rows": 6}, after=["extract"]),
            FlowNode(
                "report", queue="etl", job="step", data={"rows": 1}, after=["clean-left", "clean-right"]
            ),
        ],
    )
