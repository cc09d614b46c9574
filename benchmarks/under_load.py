"""Latency under load, without coordinated omission: ``python -m benchmarks.under_load``.

First the capacity: two processes of 32 callers each add jobs as fast as they can for some seconds while a
worker runs them; what ends per second is the capacity of all of it together, on this machine. Then two
processes add jobs at 10 to 95 % of that, at times drawn beforehand (Poisson arrivals), whatever happened to
the jobs before. Each latency counts from the intended time, so a late call of the generator counts too. Each
tenth arrival is a flow of two nodes, and counts as two jobs. The handlers do nothing. Measured are

- add to start: until the handler starts;
- add to result: until the server has accepted the result, so that any client can read it;
- end to start: from the return of a node's handler to the start of the handler of the node after it;
- due to call: how late the generators were themselves, which compete for the same cores. It is part of the
  first two.

The rounds visit all loads in turns, each with the capacity measured in it; shown is the median of the rounds
for each quantile. The first fifth of each measurement, at most a second, does not count.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, Final

import redis
import typer
from rich.console import Console

from benchmarks import processes
from benchmarks.crew import Crew
from benchmarks.plots import plot
from benchmarks.processes import FIRST, OPEN, QUEUE, THEN
from benchmarks.report import machine_now
from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli.shell import summary_table

LOADS: Final = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95)
GENERATORS: Final = 2
CONCURRENCY: Final = 50
JOBS_PER_ARRIVAL: Final = 1.1
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
KINDS: Final = ("add to start", "add to result", "end to start", "due to call")
DRAIN_SECONDS: Final = 60.0

Latencies = dict[str, list[float]]


def main(
    seconds: Annotated[
        float, typer.Option(min=1, help="How long to measure each load, in each round.")
    ] = 8.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often to visit each load.")] = 3,
    *,
    quick: Annotated[bool, typer.Option(help="One round of two loads, a second each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Write a plot to this SVG file.")] = None,
) -> None:
    """Measure latencies at several shares of the capacity."""
    progress = Console(stderr=True)
    loads: tuple[float, ...] = LOADS
    if quick:
        seconds, rounds, loads = 1.0, 1, (0.1, 0.5)
    capacities: list[float] = []
    found: dict[float, list[Latencies]] = defaultdict(list)
    with EmbeddedServer() as server, redis.Redis.from_url(server.url.replace("valkey", "redis")) as client:
        machine = machine_now(client)
        for turn in range(rounds):
            capacities.append(capacity(server.url, client, seconds))
            progress.print(f"round {turn + 1}/{rounds}: {capacities[-1]:,.0f} jobs/s at most", style="dim")
            for load in loads[turn % len(loads) :] + loads[: turn % len(loads)]:
                rate = load * capacities[-1] / JOBS_PER_ARRIVAL
                found[load].append(latencies(measured(server.url, client, rate, seconds, turn)))
                progress.print(f"round {turn + 1}/{rounds}: {load:.0%} done", style="dim")
    tables = {kind: [row(load, found[load], kind) for load in loads] for kind in KINDS}
    if plot_to is not None:
        draw(plot_to, tables)
    if as_json:
        shown = {"machine": machine, "capacities, jobs/s": [round(one) for one in capacities]}
        json.dump(shown | {"latencies, ms": tables}, sys.stdout)
        return
    out = Console(width=None if sys.stdout.isatty() else 140)
    out.print(
        f"\n{machine}\ncapacity {', '.join(f'{one:,.0f}' for one in capacities)} jobs/s, one for each round"
    )
    for kind, rows in tables.items():
        out.print("\n", summary_table(f"{kind}, ms", rows))


def measured(url: str, client: Any, rate: float, seconds: float, seed: int) -> list[dict[str, float]]:
    """Run the generators and a worker; what happened to each job after the warm-up, and when."""
    client.flushdb()
    with tempfile.TemporaryDirectory() as folder, Crew(processes, Path(folder) / "processes.log") as crew:
        worker = crew.begin(
            "worker", "worker", url, CONCURRENCY, json.dumps({"record": f"{folder}/worker.record"})
        )
        generators = [
            crew.begin(f"generator {at}", "generator", url, 2 * seed + at, rate / GENERATORS, seconds, folder)
            for at in range(GENERATORS)
        ]
        crew.ready()
        Path(folder, OPEN).touch()
        begun = time.monotonic() + min(seconds / 5, 1.0)
        for one in generators:
            if one.process.wait(seconds + DRAIN_SECONDS):
                raise RuntimeError(Path(folder, "processes.log").read_text()[-2_000:])
        drained(client)
        worker.stop()
        return [job for job in events(Path(folder)) if job.get("due", job.get("released", 0)) >= begun]


def drained(client: Any) -> None:
    """Wait until nothing is left to run.

    Raises:
        RuntimeError: Not within a minute.
    """
    deadline = time.monotonic() + DRAIN_SECONDS
    while client.xlen(f"glide:{{{QUEUE}}}:stream") or client.zcard(
        f"glide:{{{QUEUE}}}:gmo:flows:state:running"
    ):
        if time.monotonic() > deadline:
            raise RuntimeError("the worker did not run all jobs")
        time.sleep(0.05)


def events(folder: Path) -> list[dict[str, float]]:
    """When each job was due, started, returned and accepted, as far as it has."""
    jobs: dict[str, dict[str, float]] = defaultdict(dict)
    for file in folder.glob("*.record"):
        for line in file.read_text().splitlines():
            what, job_id, when = line.split(" ")
            jobs[job_id][what] = float(when)
    for job_id, job in jobs.items():  # a node that waits for another one is due when that returns
        if job_id.endswith(f"~{THEN}"):
            job["released"] = jobs[job_id.removesuffix(THEN) + FIRST]["return"]
    return list(jobs.values())


def capacity(url: str, client: Any, seconds: float) -> float:
    """Jobs that end per second when as many as possible are added."""
    jobs = measured(url, client, 0.0, seconds, seed=0)
    ends = sorted(job["accepted"] for job in jobs if "accepted" in job)
    inner = ends[len(ends) // 10 : -len(ends) // 10]  # neither the begin nor the end
    return (len(inner) - 1) / (inner[-1] - inner[0])


def latencies(jobs: list[dict[str, float]]) -> Latencies:
    """In milliseconds, by kind."""
    found: Latencies = {kind: [] for kind in KINDS}
    for job in jobs:
        if "due" in job:
            found["add to start"].append(1_000 * (job["start"] - job["due"]))
            found["add to result"].append(1_000 * (job["accepted"] - job["due"]))
            found["due to call"].append(1_000 * (job["called"] - job["due"]))
        else:
            found["end to start"].append(1_000 * (job["start"] - job["released"]))
    return found


def row(load: float, rounds: list[Latencies], kind: str) -> dict[str, Any]:
    """The quantiles of one load, each the median of the rounds."""
    sorts = [sorted(one[kind]) for one in rounds]
    return {"load": f"{load:.0%}", "samples": sum(map(len, sorts))} | {
        name: round(
            statistics.median(values[min(int(len(values) * share), len(values) - 1)] for values in sorts), 2
        )
        for name, share in QUANTILES.items()
    }


def draw(file: Path, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Latency against load, one panel for each kind."""
    with plot(file, rows=2, columns=2, title="Latency under load") as axes:
        for axis, (kind, rows) in zip(axes, tables.items(), strict=True):
            for name in QUANTILES:
                loads = [float(one["load"].rstrip("%")) for one in rows]
                axis.plot(loads, [one[name] for one in rows], marker=".", label=name, linewidth=1)
            axis.set_title(kind, fontsize=9)
            axis.set_yscale("log")
            axis.minorticks_off()
            axis.set_ylabel("ms")
            axis.set_xlabel("load, % of capacity")
        axes[0].legend(fontsize=7)


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    app.command(help=__doc__)(main)
    app()
