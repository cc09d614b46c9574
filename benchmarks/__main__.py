"""Compare libraries, and measure large flows: ``python -m benchmarks [--rounds N] [--quick] [--json]``."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from benchmarks import compare, report, sizes
from benchmarks.rivals import OURS, RIVALS, CannotInstall, Contender
from benchmarks.stage import Stage

QUICK: Final = 0.1
ALL: Final = ",".join(rival.name for rival in RIVALS)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many times to measure; medians are shown.")] = 3,
    *,
    quick: Annotated[bool, typer.Option(help="One round with a tenth of the jobs.")] = False,
    scale: Annotated[float, typer.Option(help="The share of the jobs to measure with.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    rivals: Annotated[str, typer.Option(help="The libraries to compare with, comma-separated.")] = ALL,
) -> None:
    """Measure and print."""
    progress = Console(stderr=True)
    contenders = installed([OURS, *chosen(rivals)], progress)
    if quick:
        rounds, scale = 1, QUICK
    rows = [*compare.job_rows(scale), *compare.flow_rows(scale)]
    with Stage(contenders) as stage:
        machine = report.machine(stage, shutil.which("node"))
        figures = compare.measure_all(stage, rows, rounds, progress)
        grown = sizes.measure(stage, scale, progress)
    if as_json:
        result: dict[str, Any] = {
            "machine": machine,
            "contenders": {one.name: {"packages": one.pins, "settings": one.settings} for one in contenders},
            "figures": compare.results(figures),
            "flow sizes": grown,
        }
        json.dump(result, sys.stdout, indent=2)
        return
    out = Console(width=None if sys.stdout.isatty() else 160)
    report.show(out, machine, contenders, figures, grown)


def chosen(names: str) -> list[Contender]:
    """The rivals of these names, separated by commas.

    Raises:
        typer.BadParameter: There is no rival of a name.
    """
    wanted = {name for name in names.split(",") if name}
    if unknown := wanted - {rival.name for rival in RIVALS}:
        raise typer.BadParameter(f"no rival is named {', '.join(sorted(unknown))}. Fix: choose from {ALL}")
    return [rival for rival in RIVALS if rival.name in wanted]


def installed(wanted: list[Contender], progress: Console) -> list[Contender]:
    """The contenders that are or could be installed; prints why the others could not be."""
    found = []
    for contender in wanted:
        try:
            contender.install()
        except CannotInstall as exc:
            progress.print(str(exc), style="red", markup=False)
        else:
            found.append(contender)
    return found


if __name__ == "__main__":
    typer.run(main)
