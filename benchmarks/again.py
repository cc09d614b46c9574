"""What it costs to run a flow again: ``python -m benchmarks.again``.

A flow of layers, each node after two of the layer before, is submitted and run by one process that only
finishes jobs. Then it runs again in each of the ways below, in turns, and each is compared with the
submission of a new flow of the same size in the same round. Shown is the median of the rounds: seconds until
the call returns, and until the first node may run, server milliseconds, and the slowest single call, all of
which count what is cleaned up of the generation before.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final

import redis
import typer
from rich.console import Console

from benchmarks.report import machine_now
from glidemq_orchestrate import EmbeddedServer, Flow, FlowNode, FlowProducer, FlowSpec, Worker
from glidemq_orchestrate.cli.shell import summary_table

QUEUE: Final = "work"
WIDTH: Final = 100
SWEEP_SECONDS: Final = 600.0

Begin = Callable[[FlowProducer, FlowSpec, str], Flow]
WAYS: Final[dict[str, Begin]] = {
    "submit a new flow": lambda flows, spec, flow_id: flows.submit(spec, flow_id=f"{flow_id}-new"),
    "submit with restart": lambda flows, spec, flow_id: flows.submit(
        spec, flow_id=flow_id, on_existing="restart"
    ),
    "flow.restart()": lambda flows, _, flow_id: _restarted(flows.get(flow_id)),
    "the last node changed": lambda flows, spec, flow_id: flows.submit(
        _changed(spec), flow_id=flow_id, on_existing="retry_failed"
    ),
    "rerun the last node": lambda flows, spec, flow_id: _rerun(flows.get(flow_id), spec.nodes[-1]),
    "rerun one that 54 follow": lambda flows, spec, flow_id: _rerun(
        flows.get(flow_id), spec.nodes[-1 - 9 * WIDTH]
    ),
}


def main(
    nodes: Annotated[int, typer.Option(min=WIDTH, max=100_000, help="How large the flow is.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often; the median is shown.")] = 3,
    *,
    quick: Annotated[bool, typer.Option(help="One round of 1,000 nodes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Compare what running a flow again costs with submitting it."""
    progress = Console(stderr=True)
    if quick:
        nodes, rounds = 1_000, 1
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    machine = ""
    for turn in range(rounds):
        for way, begin in WAYS.items():
            machine, figures = run(begin, nodes)
            found[way].append(figures)
            progress.print(f"round {turn + 1}/{rounds}: {way}: {figures}", style="dim", markup=False)
    rows = [
        {"way": way, **{name: statistics.median(one[name] for one in runs) for name in runs[0]}}
        for way, runs in found.items()
    ]
    base = statistics.median(one["seconds"] for one in next(iter(found.values())))
    ratios = [statistics.median(one["seconds"] for one in runs) / base for runs in found.values()]
    shown = [{**row, "ratio": round(ratio, 2)} for row, ratio in zip(rows, ratios, strict=True)]
    if as_json:
        json.dump({"machine": machine, "nodes": nodes, "rounds": rounds, "ways": shown}, sys.stdout)
        return
    out = Console(width=None if sys.stdout.isatty() else 140)
    out.print(f"\n{machine}\n{nodes:,} nodes, {rounds} rounds")
    texts = [{name: str(value) for name, value in row.items()} for row in shown]
    out.print("\n", summary_table("Running a flow again", texts))


def layers(nodes: int) -> FlowSpec:
    """Layers of 100 nodes, each after two of the layer before."""
    made = []
    for at in range(nodes):
        row, place = divmod(at, WIDTH)
        before = [f"n{(row - 1) * WIDTH + (place + step) % WIDTH}" for step in (0, 1)] if row else []
        made.append(FlowNode(f"n{at}", queue=QUEUE, job="nothing", data={"at": at}, after=before))
    return FlowSpec("layers", made)


def run(begin: Begin, nodes: int) -> tuple[str, dict[str, float]]:
    """Run the flow on a new server, then once more in this way."""
    spec = layers(nodes)
    with EmbeddedServer() as server, FlowProducer(server.url) as flows:
        client: Any = redis.Redis.from_url(server.url.replace("valkey://", "redis://"), decode_responses=True)
        machine = machine_now(client)
        worker = Worker(url=server.url, queues=[QUEUE], concurrency=200)
        worker.handler("nothing")(_nothing)
        flow = flows.submit(spec, flow_id="f")
        with worker.running():
            flow.wait()
        client.config_set("slowlog-log-slower-than", 1_000)
        client.slowlog_reset()
        before = _used(client)
        began = time.monotonic()
        again = begin(flows, spec, "f")
        took = time.monotonic() - began
        spent = _used(client) - before
        slowest = max((entry["duration"] / 1000 for entry in client.slowlog_get(128)), default=1.0)
        began = time.monotonic()
        with worker_again(server.url).running():
            again.wait()
        rest = time.monotonic() - began
        client.close()
    return machine, {
        "seconds": round(took, 3),
        "server ms": round(1000 * spent, 1),
        "slowest call, ms": round(slowest, 2),
        "seconds to run it": round(rest, 2),
    }


def worker_again(url: str) -> Worker:
    """A worker for the second run."""
    worker = Worker(url=url, queues=[QUEUE], concurrency=200)
    worker.handler("nothing")(_nothing)
    return worker


async def _nothing(_: Any) -> None:
    return None


def _restarted(flow: Flow) -> Flow:
    flow.restart()
    return flow


def _rerun(flow: Flow, node: FlowNode) -> Flow:
    flow.rerun(node.name)
    return flow


def _changed(spec: FlowSpec) -> FlowSpec:
    return replace(spec, nodes=[*spec.nodes[:-1], replace(spec.nodes[-1], data="changed")])


def _used(client: Any) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


if __name__ == "__main__":
    typer.run(main)
