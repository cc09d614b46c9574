"""Single elements of an array run again, or are cancelled, on their page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import ArrayNode, Context, FlowNode, FlowProducer, FlowSpec, FlowState
from tests.server.console.conftest import WRITES

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker

ELEMENT = "/api/flows/f/nodes/a[2]"


def plan_of(console: TestClient, action: str) -> Any:
    return console.get(f"{ELEMENT}/plan", params={"action": action}).json()["text"]


def test_an_element_is_cancelled_and_runs_again(
    console: TestClient, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Context) -> Any:
        return ctx.index

    spec = FlowSpec("n", [ArrayNode("a", over=range(4)), FlowNode("end", after=["a"])], queue="etl")
    flow = flows.submit(spec, flow_id="f")
    assert plan_of(console, "cancel").startswith(
        "Ends a[2] as failed. If it runs, its handler is told to stop"
    )
    assert console.post(f"{ELEMENT}/cancel", headers=WRITES).json() == {"changed": ["a[2]"]}
    assert plan_of(console, "rerun") == (
        "Runs a[2] again, whose result is removed. The other elements of a keep their ends."
    )
    run_worker(["etl"], {"a": work, "end": lambda _: None})
    assert flow.wait(timeout=30).state is FlowState.FAILED
    assert console.get(ELEMENT).json()["reason"] == "cancelled: by the console"
    goes_on = "1 node after it that began or ended runs again: end. The flow, which has ended, runs again."
    eventually(lambda: plan_of(console, "rerun").endswith(goes_on))
    assert console.post(f"{ELEMENT}/rerun", headers=WRITES).json() == {"changed": ["a[2]"]}
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert console.post(f"{ELEMENT[:-2]}4]/rerun", headers=WRITES).status_code == 404
