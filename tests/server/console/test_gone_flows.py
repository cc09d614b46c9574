"""What the page says of flows that were deleted or have expired, and of the rest of the list."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.flows import index
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from tests.server.conftest import Hand


def spec(name: str = "nightly", **options: Any) -> FlowSpec:
    return FlowSpec(name, [FlowNode("a"), FlowNode("b", after=["a"])], queue="etl", **options)


def expire(flows: FlowProducer, hand: Hand, flow_id: str) -> None:
    flows.get(flow_id).cancel("enough")
    hand.run(index.sweep([QueueKeys("glide", "etl")], SystemClock()))


def test_the_list_goes_on_after_a_flow_that_is_gone(
    console: TestClient, flows: FlowProducer, hand: Hand
) -> None:
    for name in ("a:1", "b", "c", "d"):
        flows.submit(spec(retention=timedelta(0)), flow_id=name)
    first = console.get("/api/flows", params={"limit": 2}).json()
    assert [one["id"] for one in first["flows"]] == ["d", "c"]
    expire(flows, hand, "c")
    more = console.get("/api/flows", params={"limit": 1, "cursor": first["next"]}).json()
    assert [one["id"] for one in more["flows"]] == ["b"]
    last = console.get("/api/flows", params={"limit": 5, "cursor": more["next"]}).json()
    assert ([one["id"] for one in last["flows"]], last["next"]) == (["a:1"], None)
    for cursor in ("c", "x:c", "1:", "9" * 30 + ":c"):
        reply = console.get("/api/flows", params={"cursor": cursor})
        assert (reply.status_code, "no page" in reply.json()["error"]) == (400, True)


def test_a_flow_that_was_submitted_anew_is_not_shown_as_the_old_one(
    console: TestClient, flows: FlowProducer, queue: Queue
) -> None:
    flows.submit(spec(), flow_id="f")
    assert [one["label"] for one in console.get("/api/flows/f").json()["groups"]] == ["a", "b"]
    queue.obliterate(force=True)
    assert console.get("/api/flows/f").status_code == 404
    flows.submit(FlowSpec("n", [FlowNode("c"), FlowNode("d")], queue="etl"), flow_id="f")
    assert [one["label"] for one in console.get("/api/flows/f").json()["groups"]] == ["c", "d"]


def test_a_deleted_flow_says_so_and_is_shown_when_it_is_there_again(
    flows: FlowProducer, queue: Queue, look: Callable[..., Page]
) -> None:
    flows.submit(spec(), flow_id="f")
    page = look("#/flows/f")
    expect(page.locator("h1")).to_contain_text("running")
    queue.obliterate(force=True)
    expect(page.locator("h1")).to_have_text("nightly is no longer there")
    expect(page.locator("main")).to_contain_text("It was running when this page last saw it.")
    expect(page).to_have_title("Gone: nightly - GlideMQ")
    flows.submit(spec("weekly"), flow_id="f")
    expect(page.locator("h1")).to_contain_text("weekly")
    expect(page).to_have_title("running: weekly - GlideMQ")
    expect(page.locator("main")).to_contain_text("2 groups of nodes")
    flows.get("f").cancel()
    expect(page.locator("h1")).to_contain_text("cancelled")


@pytest.mark.long
def test_an_unknown_flow_is_shown_when_it_is_submitted(
    flows: FlowProducer, look: Callable[..., Page]
) -> None:
    page = look("#/flows/f")
    expect(page.locator("h1")).to_have_text("There is no such flow")
    expect(page).to_have_title("No such flow: f - GlideMQ")
    flows.submit(spec(), flow_id="f")
    expect(page.locator("h1")).to_contain_text("running")


def test_of_an_expired_flow_the_outcome_is_shown(
    flows: FlowProducer, hand: Hand, look: Callable[..., Page]
) -> None:
    flows.submit(spec(retention=timedelta(0), labels={"dag": "sales"}), flow_id="f")
    expire(flows, hand, "f")
    page = look("#/flows/f")
    expect(page.locator("h1")).to_contain_text("cancelled nightly")
    expect(page.locator("main")).to_contain_text("were removed when its retention ended")
    expect(page.locator("main")).to_contain_text("enough")
    expect(page.locator("main")).to_contain_text("dag=sales")
    expect(page).to_have_title("Expired: nightly - GlideMQ")
    expect(page.get_by_role("button", name="Restart")).to_have_count(0)
    page.goto(f"{page.url}/nodes/a")
    expect(page.locator("main")).to_contain_text("were removed after its retention")
    expect(page.locator("main")).to_contain_text("This page looks again every 10 s")
