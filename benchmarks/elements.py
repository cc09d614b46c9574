"""Array nodes beside the maps, groups and arrays of other systems: ``python -m benchmarks.elements``.

Each system runs a function over a range in one process, in turn, several times; the table has the medians.
The elements of Celery, Dramatiq and BullMQ are jobs, those of HyperQueue processes. Slower systems have fewer
elements, so that each takes as long.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from benchmarks.rivals import ROOT, CannotInstall, Contender
from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli.shell import summary_table

OURS: Final = Contender("glidemq", "array node, one Worker, async handler")
SYSTEMS: Final = (
    OURS,
    replace(OURS, name="glidemq batch", settings="array node, one Worker, batches of 100"),
    Contender(
        "dask", "client.map, one worker process", ("distributed==2026.8.0", "dask==2026.8.0"), share=0.1
    ),
    Contender(
        "bullmq",
        "addBulk by 1,000, one Worker, async handlers",
        ("bullmq@6.7.0", "ioredis@6.0.0"),
        share=0.1,
    ),
    Contender(
        "celery",
        "group, one worker, pool solo, prefetch x128",
        ("celery[redis]==5.7.0", "hiredis==3.5.0"),
        share=0.03,
    ),
    Contender(
        "dramatiq",
        "group, results stored, one worker, 8 threads",
        ("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
        share=0.03,
    ),
    Contender("hyperqueue", "a job of programs `true`, one core", ("hyperqueue==0.27.0",), share=0.02),
)


def main(
    elements: Annotated[int, typer.Option(min=1_000, help="Elements of ours.")] = 200_000,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[str, typer.Option(help="Only the systems with this in their names.")] = "",
) -> None:
    """Measure and print elements a second."""
    found: dict[str, list[dict[str, float]]] = {}
    for system in [system for system in SYSTEMS if only in system.name] * rounds:
        try:
            system.install()
        except CannotInstall as exc:
            print(exc, file=sys.stderr)
            continue
        count = max(int(elements * system.share), 1_000)
        found.setdefault(system.name, []).append(measured(system, count) | {"elements": count})
    rows: list[dict[str, Any]] = []
    for system in SYSTEMS:
        if measures := found.get(system.name):
            rate = statistics.median(one["elements"] / (one["submit_s"] + one["run_s"]) for one in measures)
            each = statistics.median(one["submit_s"] / one["elements"] for one in measures)
            rows.append(
                {
                    "system": system.name,
                    "elements": f"{measures[0]['elements']:,.0f}",
                    "submit us each": f"{each * 1e6:.1f}",
                    "elements/s": f"{rate:,.0f}",
                    "settings": system.settings,
                }
            )
    Console().print(summary_table("A function over a range", rows))


def measured(system: Contender, count: int) -> dict[str, float]:
    """One run of a system, on a server of its own if it needs one."""
    python = str(system.home / "bin/python") if system.pins else sys.executable
    command = [python, "-m", "benchmarks.contenders.on_elements", system.name]
    if system.name == "bullmq":
        command = ["node", str(ROOT / "benchmarks/contenders/on_elements.mjs")]
    environment = {**os.environ, **system.environment}
    with EmbeddedServer() as server:
        command += [str(count), server.url.replace("valkey://", "redis://")]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{system.name}: {done.stderr[-2_000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    typer.run(main)
