"""A console on the server of the test, and what it shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, Flow, FlowNode, FlowProducer, FlowSpec
from tests.browser import MISSING, browser_path

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from starlette.testclient import TestClient

    from tests.conftest import RunWorker

SECONDS = 20_000
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


# --- a browser ---


@pytest.fixture
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415  unit tests do without it

    expect.set_options(timeout=SECONDS)
    path = browser_path()
    assert path, MISSING
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


class Looked:
    """A page, and what the browser complained about."""

    def __init__(self, page: Page) -> None:
        self.page, self.complaints = page, list[str]()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if (
            message.type == "error"
            and "status of 4" not in message.text
            and "status of 503" not in message.text
        ):
            self.complaints.append(message.text)


@pytest.fixture
def look(browser: Browser, url: str) -> Iterator[Callable[..., Page]]:
    """Opens a view of the console at the server of the test."""
    from tests.server.console.test_live import Ui  # noqa: PLC0415  it needs what unit tests do without

    uis: list[Ui] = []
    looked: list[Looked] = []

    def open_(view: str = "", *options: str, **context: Any) -> Page:
        uis.append(Ui(url, *options))
        made = Looked(
            browser.new_context(bypass_csp=bool(context.pop("with_axe", False)), **context).new_page()
        )
        looked.append(made)
        made.page.goto(f"{uis[-1].base}/{view}")
        return made.page

    yield open_
    for one in looked:
        one.page.context.close()
    for ui in uis:
        ui.stop()
    assert [one.complaints for one in looked] == [[] for _ in looked]
