"""What the page of a flow says and does, by its service and in a browser."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from glidemq_orchestrate import Context, Flow, FlowNode, FlowProducer, FlowSpec
from tests.server.console.conftest import SECRET, WRITES

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from tests.conftest import RunWorker


class Broken:
    """Handlers that fail until they are mended."""

    def __init__(self, secret: str = "") -> None:
        self.is_all_mended = False
        self.is_mended, self.calls, self.secret = threading.Event(), list[str](), secret

    def work(self, ctx: Context) -> int:
        self.calls.append(ctx.node or "")
        if not self.is_mended.is_set() and ctx.node in ("a1", "a2"):
            ctx.fail("no disk", group=f"disk {self.secret}".strip())
        if ctx.node == "e" and not self.is_all_mended:
            raise ValueError("no rows")
        return 1


def two_causes(flows: FlowProducer, run_worker: RunWorker, broken: Broken) -> Flow:
    """a1 and a2 fail in one group, e in another; b follows a1, and c all of them; d runs whatever happens."""
    nodes = [
        *(FlowNode(name) for name in ("ok", "a1", "a2", "e")),
        FlowNode("b", after=["a1"]),
        FlowNode("c", after=["a1", "a2", "e"]),
        FlowNode("d", after=["a1"], rule="all_done"),
    ]
    jobs = [node.name for node in nodes]
    flow = flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    run_worker(["etl"], dict.fromkeys(jobs, broken.work), concurrency=1)
    flow.wait(timeout=30)
    return flow


def plan(console: TestClient, group: str) -> Any:
    return console.get("/api/flows/f/group-plan", params={"group": group}).json()["text"]


@pytest.mark.parametrize("secret", ["", f"valkey://me:{SECRET}@db"])
def test_one_group_of_failures_runs_again_as_was_said_before(
    console: TestClient, flows: FlowProducer, run_worker: RunWorker, secret: str
) -> None:
    broken = Broken(secret)
    flow = two_causes(flows, run_worker, broken)
    groups = [one["group"] for one in console.get("/api/flows/f/failures").json()["groups"]]
    group = f"disk {secret.replace(SECRET, '***')}".strip()
    assert groups == [group, "ValueError"]
    assert plan(console, group) == (
        f"Runs 2 nodes of the group {group} again: a1, a2; and 3 nodes after them that began or ended: "
        "b, c, d. "
        "Of these, 1 node also follows nodes that stay failed: by most rules, it does not run. "
        "1 other failed node stays failed. 1 completed node keeps its result. "
        "The flow, which has ended, runs again."
    )
    broken.is_mended.set()
    broken.calls.clear()
    reply = console.post("/api/flows/f/retry-group", headers=WRITES, json={"group": group})
    assert sorted(reply.json()["changed"]) == ["a1", "a2"]
    assert flow.wait(timeout=30).status.failed == 2
    assert sorted(broken.calls) == ["a1", "a2", "b", "d"]
    assert "nothing runs again" in plan(console, group)


def test_a_group_of_failed_nodes_is_retried_by_clicking(
    flows: FlowProducer, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    broken = Broken()
    flow = two_causes(flows, run_worker, broken)
    page = look("#/flows/f?view=errors")
    disk = page.get_by_role("listitem").filter(has_text="no disk").last
    expect(disk).to_contain_text("They hold back 2 more nodes.")
    expect(disk.get_by_role("link", name="and 1 more")).to_have_attribute("href", re.compile("state=failed"))
    broken.is_mended.set()
    disk.get_by_role("button", name="Retry this group").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Runs 2 nodes of the group disk again: a1, a2;")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert (flow.status().state, flow.status().failed) == ("failed", 5)
    disk.get_by_role("button", name="Retry this group").click()
    dialog.get_by_role("button", name="Retry this group").click()
    expect(page.locator(".told")).to_have_text("Retry this group: 2 failed nodes.")
    expect(page.locator("main")).not_to_contain_text("no disk")
    expect(page.locator("main")).to_contain_text("no rows")
    assert flow.wait(timeout=30).status.failed == 2
    broken.is_all_mended = True
    page.get_by_role("button", name="Retry this group").last.click()
    dialog.get_by_role("button", name="Retry this group").click()
    expect(page.locator("h1")).to_contain_text("completed")
    expect(page.locator("main")).not_to_contain_text("no rows")


def test_a_read_only_flow_page_retries_no_group(
    flows: FlowProducer,
    run_worker: RunWorker,
    look: Callable[..., Page],
    open_console: Callable[..., TestClient],
) -> None:
    two_causes(flows, run_worker, Broken())
    page = look("#/flows/f?view=errors", read_only=True)
    expect(page.locator("main")).to_contain_text("no disk")
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    console = open_console(read_only=True)
    reply = console.post("/api/flows/f/retry-group", headers=WRITES, json={"group": "disk"})
    assert reply.status_code in (404, 405)


def test_an_ended_flow_that_somebody_else_runs_again_is_seen_to_run(
    flows: FlowProducer, look: Callable[..., Page]
) -> None:
    flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="etl")]), flow_id="f")
    flow.cancel("enough")
    page = look("#/flows/f")
    title = page.locator("h1")
    expect(title).to_contain_text("cancelled")
    page.wait_for_timeout(1_500)
    flow.restart()
    expect(title).to_contain_text("running", timeout=10_000)
    expect(page.locator("header.head")).to_contain_text(", generation 1, created")


def test_a_flow_has_the_generation_that_all_others_name(
    flows: FlowProducer, look: Callable[..., Page]
) -> None:
    flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="etl")]), flow_id="f")
    head = look("#/flows/f").locator("header.head")
    expect(head).to_contain_text("running")
    expect(head).not_to_contain_text("generation")
    expect(head).to_contain_text("running for ")
    flow.restart()
    assert flow.status().generation == 1
    expect(head).to_contain_text(", generation 1, created")
