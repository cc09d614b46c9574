"""``glidemq flow`` against a real server: a command, a file, and a worker that may run its flow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import FlowSpec, JobOptions
from glidemq_orchestrate.cli import app
from tests.builders import node

if TYPE_CHECKING:
    from tests.conftest import RunWorker

Glidemq = Callable[..., Any]


def fan(name: str = "nightly", **kw: Any) -> FlowSpec:
    items = [node(f"clean[{n}]", "extract", data={"month": n}) for n in range(12)]
    end = node("report", *(one.name for one in items))
    return FlowSpec(name, [node("extract", options=JobOptions(attempts=2)), *items, end], **kw)


@pytest.fixture
def glidemq(url: str) -> Glidemq:
    """Runs a command; the output of people and programs is ``.stdout``, errors are ``.stderr``."""
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [*words], env={"GLIDEMQ_URL": url})


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "nightly.json"
    path.write_text(json.dumps(fan(labels={"dag": "nightly"}).to_dict()))
    return str(path)


def work(ctx: Any) -> Any:
    ctx.log(f"at {ctx.node}")
    if ctx.node == "clean[3]" and ctx.flow_id.startswith("bad"):
        raise ValueError("no such month")
    return {"node": ctx.node, "long": "x" * 2000} if ctx.node == "extract" else len(ctx.inputs)


@pytest.fixture
def worker(run_worker: RunWorker) -> None:
    run_worker(["etl"], {"work": work})
