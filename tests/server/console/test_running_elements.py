"""How many elements of an array run at this moment, wherever the page shows the array."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from glidemq_orchestrate import ArrayNode, Context, FlowNode, FlowProducer, FlowSpec
from tests.server.console.test_live import changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker
    from tests.server.console.conftest import Served


class Held:
    """A handler that waits."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def score(self, ctx: Context) -> None:
        if ctx.data >= 100:
            assert self.go_on.wait(60)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.go_on.set()


def submit(flows: FlowProducer, **options: Any) -> None:
    array = ArrayNode("score", over=range(1_000), **options)
    flows.submit(FlowSpec("n", [array, FlowNode("end", after=["score"])], queue="etl"), flow_id="f")


@pytest.mark.parametrize("options", [{}, {"as_jobs": True}], ids=["", "as jobs"])
def test_elements_that_run_are_counted(  # noqa: PLR0917  fixtures
    console: TestClient,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
    held: Held,
    options: Any,
) -> None:
    submit(flows, **options)

    def counts() -> list[Any]:
        flow = console.get("/api/flows/f").json()
        node = console.get("/api/flows/f/nodes/score").json()
        waits = console.get("/api/flows/f/nodes/end").json()["waits_for"]
        return [flow["groups"][0]["array"], node["array"], waits[0]["array"]]

    none = {"elements": 1_000, "completed": 0, "failed": 0, "skipped": 0, "running": 0}
    assert counts() == [none] * 3
    run_worker(["etl"], {"score": held.score, "end": lambda _: 1}, concurrency=3)
    eventually(lambda: [one["running"] for one in counts()] == [3] * 3, 30)
    assert counts()[1]["completed"] > 0
    held.go_on.set()
    eventually(lambda: console.get("/api/flows/f").json()["flow"]["state"] == "completed", 30)
    node = console.get("/api/flows/f/nodes/score").json()
    assert node["array"] == none | {"completed": 1_000}


def test_changes_tell_how_many_elements_run(
    flows: FlowProducer, run_worker: RunWorker, held: Held, url: str, serve: Callable[..., Served]
) -> None:
    submit(flows)
    stream = changes(serve(url).base, "f")
    run_worker(["etl"], {"score": held.score, "end": lambda _: 1}, concurrency=3)
    for kind, change in stream:
        assert kind == "change"
        if change.get("arrays", {}).get("score", {}).get("running") == 3:
            break
    held.go_on.set()
    rest = list(stream)
    last = [change["arrays"]["score"] for _, change in rest if "score" in change.get("arrays", {})][-1]
    assert (rest[-1][0], last["completed"], last["running"]) == ("ended", 1_000, 0)


def test_the_page_says_how_many_elements_run(
    flows: FlowProducer, run_worker: RunWorker, held: Held, look: Callable[..., Page]
) -> None:
    submit(flows)
    run_worker(["etl"], {"score": held.score, "end": lambda _: 1}, concurrency=3)
    page = look("#/flows/f")
    link = page.get_by_role("listitem").get_by_role("link", name=re.compile("score"))
    wanted = re.compile(r"score: \d+ completed, 3 active, \d+ waiting\. Of 1,000 elements, 3 run now")
    expect(link).to_have_attribute("title", wanted)
    canvas = page.locator(".canvas")
    box = canvas.bounding_box()
    assert box
    for part in range(2, 18):
        page.mouse.move(box["x"] + box["width"] * part / 20, box["y"] + box["height"] / 2 - 8)
        if canvas.get_attribute("title"):
            break
    expect(canvas).to_have_attribute("title", wanted)
    link.click()
    expect(page.locator("main")).to_contain_text("Of its elements, 3 run now.")
    held.go_on.set()
    expect(page.locator("h1")).to_contain_text("completed")
    expect(page.locator("main")).not_to_contain_text("run now")
