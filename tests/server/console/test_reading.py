"""What takes long is waited for, the page says how far it is, and a busy server is not called away."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, Route, expect

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.console import app, flow_pages, snapshots
from glidemq_orchestrate.console.shown import time_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker

NODES = 6_000


def wide(count: int = NODES) -> FlowSpec:
    nodes = [FlowNode(f"n{at}", job="none") for at in range(count - 1)]
    return FlowSpec("wide", [*nodes, FlowNode("end", job="end", after=["n0", "n1"])], queue="etl")


def test_reading_goes_on_while_a_page_is_told_how_far_it_is(
    console: TestClient, flows: FlowProducer, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows.submit(wide(), flow_id="f", require_workers=False)
    monkeypatch.setattr(snapshots, "PATIENCE_SECONDS", 0.001)
    monkeypatch.setattr(flow_pages, "PATIENCE_SECONDS", 0.02)
    told: list[dict[str, int]] = []

    def has_answered(path: str) -> bool:
        reply = console.get(f"/api/flows/f{path}")
        if reply.status_code == 202:
            assert reply.headers["retry-after"] == "1"
            told.append(reply.json()["reading"])
        return reply.status_code == 200

    eventually(lambda: has_answered(""), 20)
    assert told[0] == {"done": 0, "of": NODES}
    told.clear()
    eventually(lambda: has_answered("/timeline"), 20)
    counts = [one["done"] for one in told]
    assert {one["of"] for one in told} == {NODES}
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= NODES


def test_a_busy_server_is_not_called_away(
    console: TestClient, flows: FlowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows.submit(wide(3), flow_id="f", require_workers=False)
    monkeypatch.setattr(app, "ANSWER_SECONDS", 0.0)
    reply = console.get("/api/flows/f")
    assert (reply.status_code, reply.json()) == (202, {"reading": {"done": 0, "of": 0}})
    monkeypatch.setattr(app, "PING_SECONDS", 0.0)
    reply = console.get("/api/flows/f")
    assert (reply.status_code, "has not answered" in reply.json()["error"]) == (503, True)


def test_a_timeline_takes_a_call_for_200_nodes(
    console: TestClient,
    flows: FlowProducer,
    run_worker: RunWorker,
    redis_client: Any,
    eventually: Eventually,
) -> None:
    flow, may_end = flows.submit(wide(2_000), flow_id="f", require_workers=False), threading.Event()
    handlers = {"none": lambda _: None, "end": lambda _: may_end.wait(60)}
    worker = run_worker(["etl"], handlers, concurrency=16)
    eventually(lambda: flow.status().completed == 2_000 - 1, timeout=60)  # else a wide node may end last
    may_end.set()
    flow.wait(timeout=60)
    worker.stop()
    console.get("/api/flows/f")

    def calls() -> int:
        return int(redis_client.info("commandstats")["cmdstat_fcall"]["calls"])

    before = calls()
    found = console.get("/api/flows/f/timeline", params={"limit": 300}).json()
    assert calls() - before <= 2_000 / 200 + 10
    assert (found["total"], len(found["bars"])) == (2_000, 300)
    path = [bar["label"] for bar in found["bars"] if bar["critical"]]
    assert "end" in path
    (end,) = (bar for bar in found["bars"] if bar["label"] == "end")
    assert end["ready_at"] == max(time_text(flow.node(name).finished_at) or "" for name in ("n0", "n1"))
    longest = sorted((one.seconds or 0 for one in flow.nodes()), reverse=True)
    assert sorted((bar["seconds"] for bar in found["bars"]), reverse=True)[:100] == longest[:100]


def test_the_page_waits_for_the_timeline_and_says_how_far_it_is(
    flows: FlowProducer, look: Callable[..., Page]
) -> None:
    flows.submit(wide(3), flow_id="f", require_workers=False)
    page = look("#/flows")
    answers = [{"done": 0, "of": 100_000}, {"done": 34_000, "of": 100_000}]

    def answer(route: Route) -> None:
        if answers:
            route.fulfill(status=202, json={"reading": answers.pop(0)})
        else:
            route.continue_()

    page.route("**/timeline?*", answer)
    page.goto(f"{page.url.partition('#')[0]}#/flows/f?view=timeline")
    main = page.locator("main")
    expect(main).to_contain_text("Still reading 100,000 nodes…")
    expect(main).to_contain_text("Read 34,000 of 100,000 nodes.")
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(main).to_contain_text("Hatched: waiting for a worker.")
    expect(page.locator(".banner")).to_have_count(0)
