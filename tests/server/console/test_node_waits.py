"""What the page of a node says that it waits for."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from glidemq_orchestrate import (
    ArrayNode,
    Backoff,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Ordering,
    Queue,
)
from glidemq_orchestrate.console import snapshots

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker


def node(console: TestClient, name: str) -> Any:
    reply = console.get(f"/api/flows/f/nodes/{name}")
    assert reply.status_code == 200, reply.text
    return reply.json()


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def test_a_dependency_that_has_just_ended_is_not_counted(
    console: TestClient, flows: FlowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "STALE_SECONDS", 60)
    nodes = [FlowNode("a"), FlowNode("b"), FlowNode("end", after=["a", "b"])]
    flow = flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    assert node(console, "end")["waits_for_count"] == 2
    flow.complete_node("a")
    found = node(console, "end")
    assert (names(found["waits_for"]), found["waits_for_count"]) == (["b"], 1)


def test_open_dependencies_are_named_with_what_holds_them_up_in_the_end(
    console: TestClient, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    go_on = threading.Event()

    def work(ctx: Context) -> None:
        if ctx.node == "api":
            raise RuntimeError("no answer")
        if ctx.node == "slow":
            assert go_on.wait(60)

    nodes = [
        FlowNode("done"),
        FlowNode("slow"),
        FlowNode("api", attempts=3, backoff=Backoff("fixed", 300)),
        FlowNode("mid", after=["slow", "done"]),
        FlowNode("end", after=["mid", "done", "api"]),
        FlowNode("wide", after=["end", *(f"w{at}" for at in range(30))]),
        *(FlowNode(f"w{at}", queue="gpu") for at in range(30)),
    ]
    flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    run_worker(["etl"], dict.fromkeys(("done", "slow", "api", "mid", "end"), work), concurrency=3)
    eventually(lambda: node(console, "api")["state"] == "delayed")
    eventually(lambda: node(console, "slow")["state"] == "active" and node(console, "done")["finished_at"])
    eventually(lambda: node(console, "end")["waits_for"][0]["open"] == 1)  # read at most once a second
    found = node(console, "end")
    assert (names(found["waits_for"]), found["waits_for_count"], found["wait"]) == (["mid", "api"], 2, None)
    mid, api = found["waits_for"]
    assert (mid["state"], mid["open"], mid["wait"]) == ("waiting-children", 1, None)
    assert api["wait"]["reason"] == "for its next attempt (attempt 1 of 3 failed: RuntimeError: no answer)"
    assert api["wait"]["until"] is not None
    (slow,) = found["held_by"]
    assert (slow["name"], slow["state"], bool(slow["started_at"])) == ("slow", "active", True)
    wide = node(console, "wide")
    assert (len(wide["waits_for"]), wide["waits_for_count"]) == (20, 31)
    assert names(wide["held_by"]) == ["slow", "api"]
    assert wide["waits_for"][1]["wait"]["reason"] == "no live worker serves queue gpu"
    go_on.set()
    eventually(lambda: names(node(console, "end")["waits_for"]) == ["api"])
    assert node(console, "end")["held_by"] == []
    assert node(console, "mid")["waits_for_count"] == 0


def test_a_delay_a_pause_and_an_ordering_key_are_named(
    console: TestClient, flows: FlowProducer, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    go_on = threading.Event()

    def hold(_: Context) -> None:
        assert go_on.wait(60)

    key: dict[str, Any] = {"ordering": Ordering("customer-7")}
    nodes = [
        FlowNode("first", job="hold", **key),
        FlowNode("second", job="hold", after=["go"], **key),
        FlowNode("go"),
        FlowNode("later", after=["go"], delay=3600),
        FlowNode("paused", after=["go"], queue="gpu"),
    ]
    Queue("gpu", queue._settings).pause()
    flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    run_worker(["etl"], {"hold": hold, "go": lambda _: None}, concurrency=3)
    eventually(lambda: node(console, "second")["state"] == "group-waiting")
    assert node(console, "second")["wait"]["reason"].startswith("for a slot of its ordering key customer-7")
    assert node(console, "second")["ordering_key"] == "customer-7"
    later = node(console, "later")["wait"]
    assert (later["reason"], later["until"] is not None) == ("its delay", True)
    assert node(console, "paused")["wait"]["reason"].startswith("queue gpu is paused")
    go_on.set()


def test_the_page_leads_to_what_a_node_waits_for(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    go_on = threading.Event()

    def score(ctx: Context) -> None:
        if ctx.data == 700:
            assert go_on.wait(60)

    nodes = [
        ArrayNode("score", over=range(1_000)),
        FlowNode("mid", after=["score"]),
        FlowNode("end", after=["mid"]),
    ]
    flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    page = look("#/flows/f/nodes/end")
    waits = page.get_by_role("region", name="What it waits for")
    expect(waits).to_contain_text("1 of its 1 dependency has not ended:")
    expect(waits).to_contain_text("That waits in the end for:")
    expect(waits.get_by_role("link")).to_have_text(["mid", "score"])
    expect(waits).to_contain_text("no live worker serves queue etl")
    run_worker(["etl"], {"score": score, "mid": lambda _: 1, "end": lambda _: 1}, concurrency=1)
    expect(waits).to_contain_text(re.compile("[1-9][0-9]* of 1,000 elements ended"))
    waits.get_by_role("link", name="mid").click()
    expect(page.locator("h1")).to_contain_text("mid")
    queue.pause()
    go_on.set()
    expect(waits).to_contain_text("queue etl is paused")
    waits.get_by_role("link", name="score").click()
    expect(page.locator("h1")).to_contain_text("score")
    expect(waits).to_contain_text("queue etl is paused")
    expect(waits.get_by_role("link", name="queue etl")).to_be_visible()
    queue.resume()
    expect(page.locator("h1")).to_contain_text("completed")
    expect(waits).to_be_hidden()
