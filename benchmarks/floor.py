"""How near the server comes to the least that the format costs: ``python -m benchmarks.floor [--json]``.

``floor.lua`` has only the commands that a job needs in the format of glide-mq, and in ours for nodes: it
reads what a job may have, but acts on nothing, and knows no repeats and no limits. Its calls are as large as
ours. The figures are the processor time of the server's main thread per job, the best of some rounds, each on
a new server, since noise only ever adds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import redis
import typer
from rich.console import Console

from benchmarks.workload import DATA, QUEUE, RESULT, flow, serve
from glidemq_orchestrate import EmbeddedServer, FlowProducer, NewJob, Queue
from glidemq_orchestrate.cli.shell import summary_table

COUNT: Final = 10_000
QUICK: Final = 200
ROUNDS: Final = 7
STAGED, RELEASED, TAKEN, PER_TRIP = 50, 100, 50, 8
PREFIX: Final = f"glide:{{{QUEUE}}}:"
TOKEN: Final = "gmo-worker-etl-node-17-31415-9f86d0-30000ms-0123456789abcdef"  # noqa: S105  of an attempt
Work = Callable[[str, redis.Redis, int], None]


def submit_bare(_: str, client: redis.Redis, count: int) -> None:
    """Write and release the nodes of a fan-in."""
    data = json.dumps(DATA)
    calls: list[tuple[Any, ...]] = []
    for start in range(0, count, STAGED):
        words: list[str] = []
        for at in range(start, min(start + STAGED, count)):
            words += (f"f.n{at}", data, f'[{at},"{QUEUE}","f.n{at}","work"]', f"{PREFIX}f.end")
        calls.append(("floor_stage", 1, PREFIX, *words))
    calls += [("floor_release", 1, PREFIX)] * (count // RELEASED + 1)
    for start in range(0, len(calls), PER_TRIP):
        pipeline = client.pipeline(transaction=False)
        for call in calls[start : start + PER_TRIP]:
            pipeline.fcall(*call)
        pipeline.execute()


def drain_bare(_: str, client: redis.Redis, count: int) -> None:
    """Start and complete jobs."""
    client.xgroup_create(f"{PREFIX}stream", "workers", "0", mkstream=True)
    result, ended, left = json.dumps(RESULT), list[Any](), count
    while left or ended:
        words = (str(time.time_ns() // 1_000_000), TOKEN, str(TAKEN), *ended)
        rows: Any = client.fcall("floor_turn", 1, PREFIX, *words)
        left -= len(rows)
        ended = [word for row in rows for word in (row[0], row[1], result)]


def submit(url: str, _: redis.Redis, count: int) -> None:
    """The same with the library."""
    with FlowProducer(url) as flows:
        flows.submit(flow("fan-in", count), flow_id="f")


def drain(url: str, _: redis.Redis, count: int) -> None:
    """The same with the library."""
    serve(url, count)


def add(url: str, _: redis.Redis, count: int) -> None:
    """Add jobs to drain."""
    with Queue(QUEUE, url) as queue:
        queue.add_many([NewJob("work", DATA) for _ in range(count)])


def nothing(_: str, __: redis.Redis, ___: int) -> None:
    """No preparation."""


WORKS: Final[dict[str, tuple[Work, Work, Work]]] = {
    "submit a node of a fan-in": (nothing, submit_bare, submit),
    "drain a job at 50": (add, drain_bare, drain),
}


def main(
    *,
    quick: Annotated[bool, typer.Option(help="One round with few jobs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure and print; about a minute."""
    count, rounds = (QUICK, 1) if quick else (COUNT, ROUNDS)
    found: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for name, (prepare, bare, ours) in WORKS.items():
            for side, work in (("commands alone", bare), ("ours", ours)):
                used = measured(prepare, work, count)
                found[name, side] = min(used, found.get((name, side), used))
    rows = [
        {"µs of the server to": name}
        | {side: round(found[name, side], 1) for side in ("commands alone", "ours")}
        for name in WORKS
    ]
    if as_json:
        json.dump(rows, sys.stdout)
    else:
        Console().print(summary_table("The least that the format costs", rows))


def measured(prepare: Work, work: Work, count: int) -> float:
    """Microseconds of a new server per job: one that has run for long has a slower memory."""
    with EmbeddedServer() as server:
        client = redis.Redis.from_url(server.url.replace("valkey://", "redis://"))
        client.function_load(Path(__file__).with_suffix(".lua").read_text())
        add(server.url, client, 1)  # loads the library
        client.flushall()
        prepare(server.url, client, count)
        before = processor(client)
        work(server.url, client, count)
        used = processor(client) - before
        client.close()
    return used * 1e6 / count


def processor(client: redis.Redis) -> float:
    """Seconds of processor time of the server's main thread."""
    used: Any = client.info("cpu")
    return float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])


if __name__ == "__main__":
    typer.run(main)
