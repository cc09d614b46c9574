"""Draws the pictures of the README: ``make pictures``."""

from __future__ import annotations

import random
import threading
import time
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from glidemq_orchestrate import Client, EmbeddedServer, FlowNode, FlowSpec, Worker
from glidemq_orchestrate.cli.flow.view import flow_view

FOLDER: Final = Path(__file__).parents[1] / "pictures"
LAST: Final = 39
BLUE, GREEN, GREY, RED = "#2f6fb5", "#2e8b57", "#555", "#b5502f"
# Left, top, width, height, colour, and the lines of each box.
BOXES: Final = (
    (10, 40, 190, 70, BLUE, ("Airflow task", "deferred: no worker slot")),
    (10, 130, 190, 70, BLUE, ("Dagster asset", "one step of a run")),
    (10, 220, 190, 70, BLUE, ("Python, command line", "glidemq flow submit")),
    (310, 100, 210, 130, RED, ("Valkey or Redis", "jobs, results, events", "one flow: all or nothing")),
    (630, 40, 200, 70, GREEN, ("Python worker", "async, threads, processes")),
    (630, 130, 200, 70, GREEN, ("Spark worker", "warm session, one JVM")),
    (630, 220, 200, 70, GREEN, ("Node.js worker", "glide-mq")),
)
# From, to, and what is written above the arrow.
ARROWS: Final = (
    ((200, 75), (310, 140), ""),
    ((200, 165), (310, 165), "flow"),
    ((200, 255), (310, 195), ""),
    ((520, 140), (630, 75), ""),
    ((520, 165), (630, 165), "jobs"),
    ((520, 195), (630, 255), ""),
)
HEAD: Final = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 330" font-family="sans-serif" font-size="14">
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" orient="auto-start-reverse">
<path d="M0 0 8 4 0 8z" fill="{GREY}"/></marker></defs>
<rect width="840" height="330" fill="#fff"/>"""


def overview() -> str:
    """The whole, as SVG: who submits, the server, who works."""
    parts = [HEAD]
    for left, top, width, height, colour, lines in BOXES:
        parts.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" fill="{colour}" '
            f'fill-opacity="0.1" stroke="{colour}"/>'
        )
        first = top + height / 2 - 10 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            weight = "bold" if number == 0 else "normal"
            parts.append(
                f'<text x="{left + width / 2}" y="{first + 20 * number}" text-anchor="middle" '
                f'font-weight="{weight}" fill="#222">{escape(line)}</text>'
            )
    for (x1, y1), (x2, y2), label in ARROWS:
        parts.append(
            f'<line x1="{x1 + 4}" y1="{y1}" x2="{x2 - 4}" y2="{y2}" stroke="{GREY}" '
            'marker-start="url(#tip)" marker-end="url(#tip)"/>'
        )
        if label:
            parts.append(
                f'<text x="{(x1 + x2) / 2}" y="{y1 - 8}" text-anchor="middle" fill="{GREY}">{label}</text>'
            )
    parts.append(
        f'<text x="420" y="316" text-anchor="middle" fill="{GREY}">An event of the flow wakes the task; '
        "a result is accepted from one attempt only.</text></svg>"
    )
    return "\n".join(parts) + "\n"


def flow_show() -> str:
    """What ``glidemq flow show`` prints of a running flow, as SVG."""
    go_on = threading.Event()
    with EmbeddedServer() as server, Client(server.url) as client:
        worker = Worker(server.url, queues=["etl"], concurrency=50)

        def step(ctx: Any) -> None:
            time.sleep(random.uniform(0.1, 0.4))  # noqa: S311
            if ctx.data == LAST:
                go_on.wait(60)

        for name in ("extract", "weather", "clean", "join", "report"):
            worker.handler(name)(step)
        months = [FlowNode(f"clean[{i}]", job="clean", data=i, after=["extract"]) for i in range(LAST + 1)]
        nodes = [
            FlowNode("extract"),
            FlowNode("weather"),
            *months,
            FlowNode("join", after=["weather", *(node.name for node in months)]),
            FlowNode("report", after=["join"]),
        ]
        with worker.running():
            spec = FlowSpec("nightly", queue="etl", nodes=nodes)
            flow = client.flows.submit(spec, flow_id="nightly-2026-01-01")
            for _ in flow.watch(timeout=60):
                found = flow.nodes()
                if sum(node.state == "completed" for node in found) == len(nodes) - 3:
                    break
            console = Console(record=True, width=104, file=StringIO())
            console.print(flow_view(flow.status(), found, now=flow.now(), waits=flow.waits(found)))
            go_on.set()
            flow.wait(timeout=60)
    return console.export_svg(title="glidemq flow show nightly-2026-01-01", unique_id="flow-show")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "overview.svg").write_text(overview(), encoding="utf-8")
    (FOLDER / "flow-show.svg").write_text(flow_show(), encoding="utf-8")
