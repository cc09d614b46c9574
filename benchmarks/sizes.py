"""Our flows from 1,000 to 100,000 nodes: time and memory per node, and the longest single server call."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console

from benchmarks.rivals import OURS
from benchmarks.stage import Stage

SIZES: Final = (1_000, 10_000, 100_000)
SHAPES: Final = ("mesh", "fan-in", "fan-out")
CONCURRENCY: Final = 50
LOG_FROM_US: Final = 500
LIMIT_US: Final = 5_000
MAX_LOGGED: Final = 20_000


def measure(stage: Stage, scale: float, progress: Console) -> list[dict[str, Any]]:
    """One row for each shape and size."""
    stage.client.config_set("slowlog-log-slower-than", LOG_FROM_US)
    stage.client.config_set("slowlog-max-len", MAX_LOGGED)
    rows = []
    for shape in SHAPES:
        for nodes in dict.fromkeys(max(int(size * scale), 100) for size in SIZES):
            progress.print(f"{shape} of {nodes:,} nodes", style="dim")
            rows.append(grown(stage, shape, nodes))
    return rows


def grown(stage: Stage, shape: str, size: int) -> dict[str, Any]:
    """Submit a flow and run it to its end; returns its row."""
    producer = stage.producers[OURS.name]
    with stage.worker_at_gate(OURS, CONCURRENCY) as (_, folder):
        longest_call(stage.client)
        before = used_memory(stage.client)
        submitted = producer.ask("submit", shape=shape, size=size)
        held = used_memory(stage.client) - before
        longest_submit = longest_call(stage.client)
        completed = producer.ask("wait", folder=str(folder))
        left = used_memory(stage.client) - before
    return {
        "shape": shape,
        "nodes": size,
        "submit_us/node": submitted * 1e6 / size,
        "complete_us/node": completed * 1e6 / size,
        "bytes/node": held // size,
        "bytes/node_at_the_end": left // size,
        "longest_call_of_submit": longest_submit,
        "longest_call_after": longest_call(stage.client),
    }


def used_memory(client: Any) -> int:
    """Bytes that the server uses for data."""
    return int(client.info("memory")["used_memory_dataset"])


def longest_call(client: Any) -> str:
    """The slowest call since the last check, and how many exceeded the limit."""
    entries = [one for one in client.slowlog_get(MAX_LOGGED) if b"LOG" not in one["command"][:8].upper()]
    client.slowlog_reset()
    entries = [one for one in entries if not one["command"].upper().startswith(b"FLUSHALL")]
    if not entries:
        return f"< {LOG_FROM_US / 1_000} ms"
    entry = max(entries, key=lambda found: found["duration"])
    words = entry["command"].split(b" ", 2)  # arguments may be of any bytes
    name = (words[1] if words[0].upper() == b"FCALL" else words[0]).decode()
    over = sum(one["duration"] > LIMIT_US for one in entries)
    return f"{entry['duration'] / 1_000:.1f} ms {name}" + (f", {over} over 5 ms" if over else "")
