"""A console on the server of the test, and what it shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a module, none of which may be async: its loop runs in their thread."""
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415  unit tests do without it

    expect.set_options(timeout=SECONDS)
    path = browser_path()
    assert path, MISSING
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


class Served:
    """The console at a port of this process, which ``glidemq ui`` serves in one of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        import uvicorn  # noqa: PLC0415  unit tests do without it

        from glidemq_orchestrate.console import create_app  # noqa: PLC0415

        app = create_app(url, **options)
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
        listening = config.bind_socket()
        listening.listen(128)  # a request that comes before the server runs waits for it
        self.base = "http://{}:{}".format(*listening.getsockname())
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]})
        self._thread.start()

    def get(self, path: str, **options: Any) -> httpx.Response:
        """What it answers."""
        return httpx.get(f"{self.base}{path}", timeout=30, **options)

    def stop(self) -> None:
        """Stop it."""
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()


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
def serve() -> Iterator[Callable[..., Served]]:
    """Serves the console of a server."""
    served: list[Served] = []

    def start(url: str, **options: Any) -> Served:
        served.append(Served(url, **options))
        return served[-1]

    yield start
    for one in served:
        one.stop()


@pytest.fixture
def look(browser: Browser, url: str, serve: Callable[..., Served]) -> Iterator[Callable[..., Page]]:
    """Opens a view of the console at the server of the test."""
    looked: list[Looked] = []

    def open_(view: str = "", *, token: str = "", read_only: bool = False, **context: Any) -> Page:
        served = serve(url, token=token, read_only=read_only)
        made = Looked(
            browser.new_context(bypass_csp=bool(context.pop("with_axe", False)), **context).new_page()
        )
        looked.append(made)
        made.page.goto(f"{served.base}/{view}")
        return made.page

    yield open_
    for one in looked:
        one.page.context.close()
    assert [one.complaints for one in looked] == [[] for _ in looked]
