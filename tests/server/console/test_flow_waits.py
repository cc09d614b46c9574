"""What the page of a flow says that its nodes wait for, and why a node did not run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from playwright.sync_api import Page, expect

from glidemq_orchestrate import ArrayNode, Backoff, Context, Flow, FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts import workers as worker_ops
from glidemq_orchestrate.console import node_waits
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand


def waits(console: TestClient) -> Any:
    reply = console.get("/api/flows/f/waits")
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_flow_says_what_holds_its_nodes_back(
    console: TestClient,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
    look: Callable[..., Page],
) -> None:
    go_on = threading.Event()

    def work(ctx: Context) -> None:
        if ctx.node == "api":
            raise RuntimeError("no answer")
        assert go_on.wait(60)

    nodes = [
        FlowNode("slow"),
        FlowNode("api", attempts=3, backoff=Backoff("fixed", 300)),
        *(FlowNode(f"g{at}", queue="gpu") for at in range(7)),
        ArrayNode("array", over=range(10), queue="gpu"),
        FlowNode("end", after=["slow", "api", "array"]),
    ]
    flow = flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    run_worker(["etl"], {"slow": work, "api": work, "end": lambda _: 1}, concurrency=2)
    eventually(lambda: [len(one["nodes"]) for one in waits(console)["waits"]] == [5, 1])
    gpu, api = waits(console)["waits"]
    assert (gpu["reason"], gpu["count"], gpu["until"]) == ("no live worker serves queue gpu", 8, None)
    assert (gpu["queue"], gpu["nodes"][0], gpu["is_turn"]) == ("gpu", "array", False)
    assert api["reason"].startswith("for its next attempt (attempt 1 of 3 failed: RuntimeError: no answer)")
    assert (api["nodes"], api["until"] is not None) == (["api"], True)
    page = look("#/flows/f")
    wrong = page.get_by_role("region", name="What is wrong")
    expect(wrong).to_contain_text("8 nodes wait: no live worker serves queue gpu (queue gpu).")
    expect(wrong).to_contain_text("for its next attempt (attempt 1 of 3 failed: RuntimeError: no answer)")
    wrong.get_by_role("link", name="api").click()
    expect(page.locator("h1")).to_contain_text("api")
    flow.cancel()
    go_on.set()
    eventually(lambda: waits(console) == {"waits": [], "looked": 0, "of": 0})


def test_of_many_nodes_that_wait_some_are_looked_at(
    console: TestClient, flows: FlowProducer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_waits, "MAX_LOOKED", 10)
    queue.pause()
    flows.submit(FlowSpec("n", [FlowNode(f"n{at}") for at in range(50)], queue="etl"), flow_id="f")
    found = waits(console)
    assert (found["looked"], found["of"]) == (10, 50)
    assert [(one["reason"][:19], one["count"]) for one in found["waits"]] == [("queue etl is paused", 10)]


def test_a_node_that_did_not_run_leads_to_the_cause(failed: Flow, look: Callable[..., Page]) -> None:
    page = look("#/flows/night%2F1/nodes/report")
    reason = page.get_by_role("region", name="Why it failed")
    expect(reason).to_contain_text("upstream failed: clean[3]")
    expect(reason).to_contain_text("The cause is clean[3]")
    expect(reason).to_contain_text("ValueError: no rows in postgresql://me:***@db/x")
    reason.get_by_role("link", name="clean[3]").click()
    expect(page.locator("h1")).to_contain_text("clean[3]")
    expect(page.locator("main")).not_to_contain_text("The cause is")


def test_a_flow_names_active_nodes_whose_worker_is_lost(
    console: TestClient, flows: FlowProducer, hand: Hand, eventually: Eventually, look: Callable[..., Page]
) -> None:
    flow = flows.submit(FlowSpec("n", [FlowNode("a"), FlowNode("b", after=["a"])], queue="etl"), flow_id="f")
    lost, keys = "gmo-worker-1-lost", QueueKeys("glide", "etl")
    past = int(flows.now().timestamp() * 1000) - 90_000
    hand.run(worker_ops.open_queues([keys]))
    hand.run(ask(exchange.finish_and_fetch(keys, lost, exchange.Request((), 1, f"{lost}/t"), past)))
    assert flow.node("a").state == "active"
    (lone,) = eventually(lambda: waits(console)["waits"])
    assert lone["reason"].startswith("its worker has been silent since ")
    assert lone["reason"].endswith(": no live worker serves queue etl")
    assert (lone["nodes"], lone["queue"], waits(console)["of"]) == (["a"], "etl", 0)
    wrong = look("#/flows/f").get_by_role("region", name="What is wrong")
    expect(wrong).to_contain_text("1 node waits: its worker has been silent since ")
    expect(wrong).not_to_contain_text("No live Python worker or supervisor")


def test_a_flow_whose_home_nobody_serves_names_it(flows: FlowProducer, look: Callable[..., Page]) -> None:
    nodes = [FlowNode("a", delay=600)]
    flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    wrong = look("#/flows/f").get_by_role("region", name="What it waits for")
    expect(wrong).to_contain_text(
        "No live Python worker or supervisor serves the home of this flow, queue etl."
    )
