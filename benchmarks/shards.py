"""What shards cost the servers of a cluster, and how evenly they share the work.

``python -m benchmarks.shards [--quick] [--json]``. On three primaries, flows of one queue are submitted and
run by a worker, with and without twelve shards, in interleaved rounds. The processor time of each primary
counts, not the duration: on a machine with fewer cores than processes, more primaries are not faster. What
idle queues cost in the same time is measured first, and taken off.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from glidemq_orchestrate import Client, FlowNode, FlowSpec, FlowState, Handlers, Worker
from glidemq_orchestrate.cli.shell import summary_table
from tests.server.connections.topologies import Primaries, running_primaries

SHARDS: Final = (0, 12)
FLOWS: Final = 48
WIDTH: Final = 200
ROUNDS: Final = 5
CONCURRENCY: Final = 64


def spec() -> FlowSpec:
    """A root, a fan-out, and a node that follows it."""
    middle = [FlowNode(f"m{number}", after=["root"], job="nothing") for number in range(WIDTH)]
    nodes = [FlowNode("root", job="nothing"), *middle]
    return FlowSpec(
        "f", [*nodes, FlowNode("end", after=[node.name for node in middle], job="nothing")], queue="q"
    )


async def nothing(_ctx: object) -> int:
    """Do nothing."""
    return 1


def used(primaries: Primaries) -> list[float]:
    """The seconds of processor time that each primary has used."""
    every = [server.client.info("cpu") for server in primaries.servers]
    return [float(found["used_cpu_user"]) + float(found["used_cpu_sys"]) for found in every]


def measured(primaries: Primaries, shards: int, flows: int) -> tuple[float, float]:
    """The microseconds of all primaries for a node, and the share of the busiest one."""
    for server in primaries.servers:
        server.client.flushall()
    handlers = Handlers()
    handlers.handler("nothing")(nothing)
    worker = Worker(
        primaries.url, queues=["q"], shards=shards or None, concurrency=CONCURRENCY, handlers=handlers
    )
    with worker.running(), Client(primaries.url) as client:
        begun, idle_from = time.monotonic(), used(primaries)
        time.sleep(2)
        rested = time.monotonic() - begun
        idle = [(now - then) / rested for now, then in zip(used(primaries), idle_from, strict=True)]
        begun, before = time.monotonic(), used(primaries)
        running = [client.flows.submit(spec(), flow_id=f"flow-{number}") for number in range(flows)]
        for flow in running:
            assert flow.wait(timeout=300).state is FlowState.COMPLETED
        took = time.monotonic() - begun
        cost = [
            now - then - rest * took for now, then, rest in zip(used(primaries), before, idle, strict=True)
        ]
    return sum(cost) / (flows * (WIDTH + 2)) * 1e6, max(cost) / sum(cost)


def main() -> None:
    """Measure and print."""
    is_quick = "--quick" in sys.argv
    found: dict[int, list[tuple[float, float]]] = {shards: [] for shards in SHARDS}
    with tempfile.TemporaryDirectory() as folder, running_primaries(Path(folder)) as primaries:
        for server in primaries.servers:
            server.client.config_set("appendfsync", "everysec")
        for _ in range(1 if is_quick else ROUNDS):
            for shards in random.sample(SHARDS, len(SHARDS)):
                found[shards].append(measured(primaries, shards, 4 if is_quick else FLOWS))
    rows: list[dict[str, Any]] = [
        {
            "shards": shards,
            "server_us_a_node": round(statistics.median(cost for cost, _ in every), 1),
            "busiest_primary": f"{statistics.median(share for _, share in every):.0%}",
        }
        for shards, every in found.items()
    ]
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(summary_table("Flows on three primaries", rows))


if __name__ == "__main__":
    main()
