"""1,000 flows of 100 nodes at once: ``python -m benchmarks.many_flows``.

Four processes submit 250 each as fast as they can, while two workers run their nodes, which do nothing: a
third fan-ins of 101, a third meshes of 101 (layers of 50, each node after two), a third ladders (ten chains
of ten, joined). Shown are

- what was submitted and run per second, and the time of a flow from the begin of its submission to its end;
- fairness: the same for the flows that were submitted first, in the middle and last; how well the order of
  ends follows that of submissions (rank correlation: 1 is first come, first served); and the share that ended
  before the last one was submitted;
- what the server spends on a node: memory at the peak and at the end, function calls, reads of its sockets
  (each is half a round trip: one request or several that came in at once), and processor time.

Everything is on one machine and competes for its cores. The median run of the rounds is shown, by the time
that all took.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import redis
import typer
from rich.console import Console

from benchmarks import processes
from benchmarks.crew import Crew
from benchmarks.plots import plot
from benchmarks.processes import OPEN, QUEUE
from benchmarks.report import machine_now
from glidemq_orchestrate import EmbeddedServer, FlowProducer
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.flows import FlowStatus

SUBMITTERS: Final = 4
WORKERS: Final = 2
CONCURRENCY: Final = 50
LIMIT_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 0.25

Times = list[tuple[float, float, float, str]]  # submission began and ended, the flow ended; its shape


def main(
    flows: Annotated[int, typer.Option(min=10, help="How many.")] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often; the median is shown.")] = 3,
    *,
    quick: Annotated[bool, typer.Option(help="One round of 40 flows.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Write a plot to this SVG file.")] = None,
) -> None:
    """Submit many flows at once and see what becomes of them."""
    progress = Console(stderr=True)
    if quick:
        flows, rounds = 40, 1
    runs = []
    for turn in range(rounds):
        runs.append(run(flows))
        progress.print(f"round {turn + 1}/{rounds}: {runs[-1]['figures']}", style="dim", markup=False)
    runs.sort(key=lambda one: one["figures"]["seconds"])
    found = runs[len(runs) // 2]
    times: Times = found.pop("times")
    if plot_to is not None:
        draw(plot_to, times)
    if as_json:
        json.dump(found | {"seconds of all rounds": [one["figures"]["seconds"] for one in runs]}, sys.stdout)
        return
    out = Console(width=None if sys.stdout.isatty() else 140)
    out.print(f"\n{found['machine']}\n{flows:,} flows of 101 nodes, {rounds} rounds")
    rows = [{"figure": name, "": f"{value:,}"} for name, value in found["figures"].items()]
    out.print("\n", summary_table("Throughput, and the cost on the server", rows))
    out.print("\n", summary_table("From submission to end, s, by the order of submission", found["fairness"]))


def run(flows: int) -> dict[str, Any]:
    """One round on a new server."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
        home, log = Path(folder), Path(folder) / "processes.log"
        client: Any = redis.Redis.from_url(server.url.replace("valkey://", "redis://"), decode_responses=True)
        machine = machine_now(client)
        with Crew(processes, log) as crew, FlowProducer(server.url) as producer:
            for number in range(WORKERS):
                crew.begin(f"worker {number}", "worker", server.url, CONCURRENCY)
            submitters = [
                crew.begin(f"submitter {at}", "submitter", server.url, at, SUBMITTERS, flows, home)
                for at in range(SUBMITTERS)
            ]
            crew.ready()
            before = spent(client)
            (home / OPEN).touch()
            peak = wait_for_all(client, flows)
            after = spent(client)
            submitted = {
                at: (began, ended)
                for one in submitters
                for at, began, ended in json.loads(one.process.communicate(timeout=60)[0])
            }
            ends = {at: producer.get(f"flow-{at}").status() for at in submitted}
        client.close()
    times = sorted((*submitted[at], ended_at(end), end.name) for at, end in ends.items())
    return {"machine": machine, "times": times} | figures(times, ends, before, after, peak)


def spent(client: Any) -> dict[str, float]:
    """What the server has used so far."""
    info = client.info("all")
    fcalls = [found["calls"] for name, found in info.items() if name.startswith("cmdstat_fcall")]
    return {
        "memory": info["used_memory_dataset"],
        "calls": sum(fcalls),
        "reads": info["total_reads_processed"],
        "seconds": info["used_cpu_user"] + info["used_cpu_sys"],
    }


def wait_for_all(client: Any, flows: int) -> float:
    """Wait until all flows have ended; returns the highest memory that was seen."""
    deadline, peak = time.monotonic() + LIMIT_SECONDS, 0.0
    while client.zcard(f"glide:{{{QUEUE}}}:gmo:flows:state:completed") < flows:
        peak = max(peak, float(client.info("memory")["used_memory_dataset"]))
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all of {flows} flows have ended within {LIMIT_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
    return peak


def ended_at(status: FlowStatus) -> float:
    """When a flow has completed, by the clock of the server, which is that of this machine."""
    if status.state != "completed" or status.finished_at is None:
        raise RuntimeError(f"flow {status.id} is {status.state}: {status.reason}")
    return status.finished_at.timestamp()


def figures(
    times: Times, ends: dict[int, FlowStatus], before: dict[str, float], after: dict[str, float], peak: float
) -> dict[str, Any]:
    """What is shown, from when each flow began and ended."""
    begun, last_in = times[0][0], max(time[1] for time in times)
    last_out = max(time[2] for time in times)
    nodes = sum(end.total for end in ends.values())
    took = sorted(out - came for came, _, out, _ in times)
    cost = {name: (after[name] - before[name]) / nodes for name in before}
    by_end = sorted(range(len(times)), key=lambda at: times[at][2])
    order = statistics.correlation(by_end, list(range(len(times))))
    return {
        "figures": {
            "nodes": nodes,
            "seconds": round(last_out - begun, 2),
            "flows submitted per second": round(len(times) / (last_in - begun), 1),
            "nodes run per second": round(nodes / (last_out - begun)),
            "submission to end p50, s": round(statistics.median(took), 2),
            "submission to end p95, s": round(took[int(len(took) * 0.95)], 2),
            "submission to end max, s": round(took[-1], 2),
            "rank correlation of submissions and ends": round(order, 3),
            "ended before the last was submitted, %": round(
                100 * sum(out < last_in for _, _, out, _ in times) / len(times), 1
            ),
            "bytes per node at the peak": round((peak - before["memory"]) / nodes),
            "bytes per node at the end": round(cost["memory"]),
            "function calls per node": round(cost["calls"], 3),
            "socket reads per node": round(cost["reads"], 3),
            "server µs of processor per node": round(cost["seconds"] * 1e6, 1),
        },
        "fairness": fairness(times),
    }


def fairness(times: Times) -> list[dict[str, Any]]:
    """The time to the end of those that came first, in the middle and last."""
    tenth = max(len(times) // 10, 1)
    middle = len(times) // 2 - tenth // 2
    parts = {
        "first tenth": times[:tenth],
        "middle tenth": times[middle : middle + tenth],
        "last tenth": times[-tenth:],
        **{
            shape: [time for time in times if time[3] == shape]
            for shape in sorted({time[3] for time in times})
        },
    }
    rows = []
    for name, part in parts.items():
        took = sorted(out - came for came, _, out, _ in part)
        rows.append(
            {
                "which": name,
                "flows": len(part),
                "p50": f"{statistics.median(took):.2f}",
                "p95": f"{took[int(len(took) * 0.95)]:.2f}",
                "max": f"{took[-1]:.2f}",
            }
        )
    return rows


def draw(file: Path, times: Times) -> None:
    """Each fourth flow from its submission to its end, and how many have ended."""
    begun = times[0][0]
    with plot(file, rows=2, title=f"{len(times):,} flows of 101 nodes at once") as (flow, ended):
        for shape in sorted({time[3] for time in times}):
            points = [(came - begun, out - came) for came, _, out, kind in times[::4] if kind == shape]
            flow.plot(*zip(*points, strict=True), ".", markersize=2, label=shape)
        flow.set_ylabel("submission to end, s")
        flow.set_xlabel("submitted after, s")
        flow.legend(fontsize=7)
        for label, when in (
            ("submitted", [time[1] for time in times]),
            ("ended", [time[2] for time in times]),
        ):
            ended.plot(sorted(at - begun for at in when)[::10], range(1, len(when) + 1, 10), label=label)
        ended.set_ylabel("flows")
        ended.set_xlabel("after, s")
        ended.legend(fontsize=7)


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    app.command(help=__doc__)(main)
    app()
