"""What a flow costs the server and the client, per node, from 100 to 10,000 nodes.

Every figure is also given as a multiple of a no-op server call measured in the same run, interleaved with the
rest, since machines differ and are noisy. ``python -m benchmarks.flows [--json]``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import redis
from rich.console import Console

from glidemq_orchestrate import EmbeddedServer, FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate._view import summary_table

SIZES: Final = (100, 1_000, 10_000)
ROUNDS: Final = 5
WIDTH: Final = 50


def layered(size: int) -> FlowSpec:
    """Layers of 50 nodes; each node waits for two of the layer before."""
    nodes = []
    for index in range(size):
        after = [f"n{index - WIDTH}", f"n{(index - WIDTH) // WIDTH * WIDTH}"] if index >= WIDTH else []
        nodes.append(FlowNode(f"n{index}", queue="bench", job="noop", after=after))
    return FlowSpec(f"layered-{size}", nodes)


def commandstats(client: redis.Redis) -> tuple[int, int]:
    """Calls and microseconds that server functions have taken so far."""
    stats: Any = client.info("commandstats")
    fcall = stats.get("cmdstat_fcall", {"calls": 0, "usec": 0})
    return int(fcall["calls"]), int(fcall["usec"])


def noop_microseconds(client: redis.Redis) -> float:
    """Server time of one call that does nothing."""
    client.config_resetstat()
    pipe = client.pipeline(transaction=False)
    for _ in range(2_000):
        pipe.fcall("glidemq_version", 0)
    pipe.execute()
    calls, spent = commandstats(client)
    return spent / calls


def submissions(url: str, client: redis.Redis) -> Iterator[dict[str, Any]]:
    """One row a size: medians of interleaved rounds."""
    samples: dict[int, list[tuple[float, float, float, int]]] = {size: [] for size in SIZES}
    noop: list[float] = []
    with FlowProducer(url) as flows:
        flows.submit(layered(1))
        for _ in range(ROUNDS):
            noop.append(noop_microseconds(client))
            for size in SIZES:
                client.flushall()
                client.config_resetstat()
                client.slowlog_reset()
                spec = layered(size)
                begun = time.perf_counter()
                flows.submit(spec)
                wall = time.perf_counter() - begun
                calls, spent = commandstats(client)
                longest = max((entry["duration"] for entry in client.slowlog_get(1_000)), default=0)
                samples[size].append((wall, spent, longest, calls))
    base = statistics.median(noop)
    for size, rows in samples.items():
        wall, spent, longest, calls = (statistics.median(column) for column in zip(*rows, strict=True))
        yield {
            "nodes": size,
            "client_ms": wall * 1_000,
            "client_us_per_node": wall * 1e6 / size,
            "server_us_per_node": spent / size,
            "in_noop_calls": spent / size / base,
            "calls": int(calls),
            "longest_call_ms": longest / 1_000,
        }


def main() -> None:
    """Measure and print."""
    with EmbeddedServer() as server:
        client = redis.Redis.from_url(server.url.replace("valkey://", "redis://"), decode_responses=True)
        client.config_set("slowlog-log-slower-than", 500)
        client.config_set("slowlog-max-len", 1_000)
        rows = list(submissions(server.url, client))
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(summary_table("Submitting a layered flow", rows))


if __name__ == "__main__":
    main()
