"""Where a worker process spends its time, and the server beside it: ``python -m benchmarks.profile_worker``.

First without a profiler, for accurate shares; then with one, for the functions behind them.
"""

from __future__ import annotations

import cProfile
import pstats
import threading
from typing import Annotated, Any

import redis
import typer
from rich.console import Console

from benchmarks.compare import drain_numbers
from benchmarks.contenders.on_glidemq import Producer, work_with
from benchmarks.report import shares
from benchmarks.rivals import OURS
from benchmarks.stage import Stage
from glidemq_orchestrate import EmbeddedServer, Worker
from glidemq_orchestrate.cli.shell import summary_table


def main(
    jobs: Annotated[int, typer.Option(min=100)] = 20_000,
    concurrency: Annotated[int, typer.Option(min=1)] = 50,
    lines: Annotated[int, typer.Option(min=1, help="Functions to list.")] = 30,
) -> None:
    """Drain a queue twice and print."""
    out = Console()
    with Stage([OURS]) as stage:
        stage.client.config_resetstat()
        numbers = drain_numbers(stage.drained(OURS, concurrency, jobs), concurrency)
        figures = {figure: {OURS.name: number} for figure, number in numbers.items()}
        out.print(summary_table(f"{jobs:,} jobs, a worker process", shares(figures, OURS, (concurrency,))))
        out.print("\n", summary_table("Calls of the server", calls_of(stage.client)))
    profile = cProfile.Profile()
    profiled(profile, jobs, concurrency)
    pstats.Stats(profile).sort_stats("tottime").print_stats(lines)


def calls_of(client: Any) -> list[dict[str, Any]]:
    """The server's statistics by command, the most expensive first."""
    stats = client.info("commandstats")
    rows = [
        {
            "command": name.removeprefix("cmdstat_"),
            "calls": found["calls"],
            "total_ms": found["usec"] / 1_000,
            "us_per_call": float(found["usec_per_call"]),
        }
        for name, found in stats.items()
    ]
    return sorted(rows, key=lambda row: -row["total_ms"])[:12]


def profiled(profile: cProfile.Profile, jobs: int, concurrency: int) -> None:
    """Drain a queue in this process and thread."""
    with EmbeddedServer() as server:
        url = server.url.replace("valkey://", "redis://")
        producer = Producer(url)
        producer.add_in_bulk(jobs)

        def run(worker: Worker) -> None:
            waiter = threading.Thread(target=stop_when_empty, args=(url, worker))
            waiter.start()
            profile.runcall(worker.run)
            waiter.join()

        work_with(url, concurrency, run)


def stop_when_empty(url: str, worker: Worker) -> None:
    """Stop the worker once no job is left; checks every tenth of a second, to leave it the CPU."""
    client = redis.Redis.from_url(url)
    ended = threading.Event()
    while client.xlen("glide:{bench}:stream"):
        ended.wait(0.1)
    worker.stop()
    client.close()


if __name__ == "__main__":
    typer.run(main)
