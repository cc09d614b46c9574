"""Functions by their names, on a worker of the command line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode, FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.errors import JobFailed
from glidemq_orchestrate.python import handlers
from tests.processes import spawned

if TYPE_CHECKING:
    from tests.conftest import RunWorker

MINUTE = timedelta(minutes=1)
WORK = """
def load(day):
    return {"rows": [1, 2, 3], "day": day}

def total(ctx, rows, *, scale):
    ctx.log(f"{len(rows)} rows")
    return sum(rows) * scale
"""


def node(name: str, function: str, arguments: dict[str, object], **more: object) -> FlowNode:
    data = {"callable": function, "arguments": arguments, **more}
    after = ["load"] if "inputs" in more else []
    return FlowNode(name, queue="etl", job="python", data=data, after=after)  # type: ignore[arg-type]


def test_a_worker_runs_functions_of_the_packages_that_it_was_started_with(
    url: str, queue: Queue, flows: FlowProducer, tmp_path: Path
) -> None:
    (tmp_path / "my_work.py").write_text(WORK)
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "glidemq_orchestrate.python"]
    command += ["--queue", "etl", "--url", url, "--allow-import", "my_work"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    inputs = [{"node": "load", "path": ["rows"], "to": ["rows"]}]
    nodes = [
        node("load", "my_work:load", {"day": "2026-01-01"}),
        node("total", "my_work:total", {"scale": 10}, inputs=inputs),
    ]
    with spawned(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL):
        flow = flows.submit(FlowSpec("names", nodes))
        outcome = flow.wait(timeout=MINUTE)
        assert outcome.results["total"] == 60
        assert list(queue.logs(flow.node("total").job_id).lines) == ["3 rows"]
        (failed,) = flows.submit(FlowSpec("no", [node("no", "os:getcwd", {})])).wait(timeout=MINUTE).failed
        assert "may not import os: it imports from my_work" in failed.reason


def test_functions_are_elements_of_arrays_and_take_their_results(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    called = {"callable": "builtins:dict", "arguments": {"a": 1}}
    items = [{"b": at} for at in range(30)]
    array = ArrayNode("part[*]", queue="etl", job="python", data=called, over=items)
    inputs = [
        {"node": name, "to": [to], "array": True} for name, to in (("part[*]", "parts"), ("no[*]", "none"))
    ]
    all_parts: Any = {"callable": "builtins:dict", "arguments": {}, "inputs": inputs}
    nodes = [array, FlowNode("all", queue="etl", job="python", data=all_parts, after=["part[*]"])]
    run_worker(["etl"], handlers, allow_import=["builtins"])
    results = flows.submit(FlowSpec("f", nodes)).result(timeout=MINUTE)
    assert results["all"] == {"parts": [{"a": 1, "b": at} for at in range(30)], "none": []}
    (failed,) = (
        flows.submit(FlowSpec("f", [ArrayNode("a", queue="etl", job="python", data=called, over=[1])]))
        .wait(timeout=MINUTE)
        .failed
    )
    assert "the item of an element must be an object" in failed.reason


def test_an_error_whose_message_says_everything_is_logged_without_a_traceback(
    queue: Queue, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "glidemq_orchestrate.worker")
    run_worker(["etl"], handlers, allow_import=["json"])
    for arguments, is_traced in (({}, False), ({"s": "{"}, True)):
        with pytest.raises(JobFailed):
            queue.add_and_wait("python", {"callable": "json:loads", "arguments": arguments})
        (record,) = [one for one in caplog.records if "attempt 1 raised" in one.getMessage()]
        assert bool(record.exc_info) is is_traced
        caplog.clear()
