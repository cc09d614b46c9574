"""What opening flows in the console costs: ``python -m benchmarks.console [--nodes 100,10000,100000]``.

For each size, a real browser with an empty cache opens a flow of layers and one of a fan-out, and then one of
which half of the nodes have ended. It measures the time until the flow is named and until its graph is there,
the bytes that the browser got, and the calls and processor time of the server. Then twenty browsers look at
the same running flow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Annotated, Any, Final

import typer
from playwright.sync_api import Browser, sync_playwright
from redis import Redis
from rich.console import Console

from benchmarks.scaling import ROOT
from glidemq_orchestrate import Context, EmbeddedServer, Flow, FlowNode, FlowProducer, FlowSpec, Worker
from glidemq_orchestrate.cli.shell import summary_table
from tests.browser import browser_path

WIDTH: Final = 1_000
NOBODY: Final = "nobody"
HALF: Final = "half"
LOOKERS: Final = 20
SECONDS: Final = 10


def layers(count: int) -> FlowSpec:
    """Nodes that follow two of the layer before."""
    nodes = []
    for number in range(count):
        layer, at = divmod(number, WIDTH)
        after = [f"n-{layer - 1}-{at}", f"n-{layer - 1}-{(at + 1) % WIDTH}"] if layer else []
        nodes.append(FlowNode(f"n-{layer}-{at}", job="none", after=after))
    return FlowSpec("layers", nodes, queue=NOBODY)


def fan_out(count: int, name: str = "fan-out") -> FlowSpec:
    """A node that all others follow."""
    parts = [FlowNode(f"part[{at}]", job="none", after=["first"]) for at in range(count - 1)]
    return FlowSpec(
        name, [FlowNode("first", job="none"), *parts], queue=NOBODY if name == "fan-out" else HALF
    )


def run_half(url: str, flow: Flow) -> None:
    """Run half of the nodes of a flow in the queue that a worker serves meanwhile."""
    worker = Worker(url, queues=[HALF], concurrency=32)

    @worker.handler("none")
    async def none(_: Context) -> None:
        pass

    with worker.running():
        while (status := flow.status()).completed < status.total // 2:
            threading.Event().wait(0.1)


def server_cost(client: Any) -> tuple[int, float]:
    """The calls from clients, and the processor seconds so far."""
    stats, cpu = client.info("commandstats"), client.info("cpu")
    calls = sum(
        one["calls"]
        for name, one in stats.items()
        if name in ("cmdstat_fcall", "cmdstat_hscan", "cmdstat_sscan", "cmdstat_xread")
    )
    return calls, cpu["used_cpu_user"] + cpu["used_cpu_sys"]


SEEN: Final = """
    globalThis.seen = {};
    const note = (what, is) => { if (is && !seen[what]) seen[what] = performance.now(); };
    new MutationObserver(() => {
        const text = document.body?.innerText ?? "";
        note("head", /Restart the flow/.test(text));
        note("graph", /groups? of nodes/.test(text) && document.querySelector(".canvas canvas"));
    }).observe(document, {subtree: true, childList: true});
"""


def opened(browser: Browser, address: str) -> tuple[float, float, int]:
    """Seconds until a flow is named and until its graph is there, by the clock of the page; the bytes."""
    page = browser.new_page()
    page.add_init_script(SEEN)
    ended: list[Any] = []
    page.on("requestfinished", lambda request: ended.append(request))  # noqa: PLW0108  it sets an attribute
    page.goto(address)
    page.locator(".canvas canvas").first.wait_for(state="attached")
    page.get_by_text("groups of nodes").or_(page.get_by_text("group of nodes")).first.wait_for()
    seen = page.evaluate("seen")
    size = sum(request.sizes()["responseBodySize"] for request in ended)
    page.close()
    return seen["head"] / 1000, seen["graph"] / 1000, size


def main(
    nodes: Annotated[str, typer.Option(help="The sizes of flows, comma-separated.")] = "100,10000,100000",
) -> None:
    """Measure and print."""
    rows: list[dict[str, Any]] = []
    command = [sys.executable, "-m", "glidemq_orchestrate", "ui", "--port", "0"]
    with EmbeddedServer() as server, FlowProducer(server.url) as flows, sync_playwright() as playwright:
        client = Redis.from_url(server.url.replace("valkey://", "redis://"), decode_responses=True)
        for count in map(int, nodes.split(",")):
            for spec in (layers(count), fan_out(count)):
                flows.submit(spec, flow_id=f"{spec.name}-{count}")
            run_half(server.url, flows.submit(fan_out(count, "half-ended"), flow_id=f"half-ended-{count}"))
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        env = os.environ | {"GLIDEMQ_URL": server.url, "NO_COLOR": "1"}
        ui = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        try:
            assert ui.stdout is not None
            base = ui.stdout.readline().strip()
            opened(browser, f"{base}#/flows/fan-out-{nodes.split(',')[0]}")  # the first one imports
            for count in map(int, nodes.split(",")):
                for shape in ("layers", "fan-out", "half-ended"):
                    before = server_cost(client)
                    head, graph, size = opened(browser, f"{base}#/flows/{shape}-{count}")
                    after = server_cost(client)
                    rows.append({
                        "flow": f"{shape} of {count:,}",
                        "named s": f"{head:.2f}", "graph s": f"{graph:.2f}", "KB": f"{size / 1000:,.0f}",
                        "calls": after[0] - before[0], "server ms": f"{1000 * (after[1] - before[1]):.0f}",
                    })  # fmt: skip
            rows += lookers(browser, client, f"{base}#/flows/layers-{nodes.split(',')[-1]}")
        finally:
            ui.terminate()
            ui.wait()
            browser.close()
    Console(width=None if sys.stdout.isatty() else 120).print(
        summary_table("Opening flows in the console", rows)
    )


def lookers(browser: Browser, client: Any, address: str) -> list[dict[str, Any]]:
    """What one and twenty browsers that look at a flow cost the server in a second."""
    rows: list[dict[str, Any]] = []
    pages: list[Any] = []
    for count in (1, LOOKERS):
        while len(pages) < count:
            pages.append(page := browser.new_page())
            page.goto(address)
        threading.Event().wait(5)
        before = server_cost(client)
        pages[0].wait_for_timeout(SECONDS * 1000)
        after = server_cost(client)
        rows.append({
            "flow": f"{count} looking, a second", "named s": "", "graph s": "", "KB": "",
            "calls": round((after[0] - before[0]) / SECONDS, 1),
            "server ms": f"{1000 * (after[1] - before[1]) / SECONDS:.1f}",
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    typer.run(main)
