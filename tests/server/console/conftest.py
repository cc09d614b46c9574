"""A console on the server of the test, and what it shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, Flow, FlowNode, FlowProducer, FlowSpec

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from tests.conftest import RunWorker

WRITES = {"X-GlideMQ": "1"}
SECRET = "hunter2"


@pytest.fixture
def open_console(url: str) -> Iterator[Callable[..., TestClient]]:
    from starlette.testclient import TestClient  # noqa: PLC0415  unit tests do without it

    from glidemq_orchestrate.console import create_app  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            TestClient(create_app(url, **options), base_url="http://localhost")
        )


@pytest.fixture
def console(open_console: Callable[..., TestClient]) -> TestClient:
    return open_console()


def work(ctx: Context) -> Any:
    if ctx.node == "clean[3]" and ctx.flow_id == "night/1":
        raise ValueError(f"no rows in postgresql://me:{SECRET}@db/x")
    ctx.log(f"{ctx.node} ran")
    return {"rows": 7, "password": SECRET}


def spec(count: int = 12) -> FlowSpec:
    parts = [f"clean[{at}]" for at in range(count)]
    nodes = [
        FlowNode("extract", data={"api_key": SECRET, "day": "<b>monday</b>"}),
        *(FlowNode(name, job="clean", after=["extract"]) for name in parts),
        FlowNode("report", after=parts),
    ]
    return FlowSpec("nightly", nodes, queue="etl", labels={"dag_id": "sales", "run_id": "r1"})


@pytest.fixture
def failed(flows: FlowProducer, run_worker: RunWorker) -> Flow:
    """A flow of which one node has failed, and another could not run; its id has a slash."""
    flow = flows.submit(spec(), flow_id="night/1")
    run_worker(["etl"], dict.fromkeys(("extract", "clean", "report"), work))
    flow.wait(timeout=30)
    return flow
