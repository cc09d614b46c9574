"""Runs histories from seeds; for those that break a promise, what broke and how to replay them."""

from __future__ import annotations

import sys
from typing import Annotated, Final, Literal

import typer

from tests.properties.simulation.history import Result, run_history
from tests.properties.simulation.plan import Path
from tests.properties.simulation.search import Report, search
from tests.properties.simulation.store import opened

EVERY: Final = 500
Choice = Literal["staged", "portable", "both"]
_PATHS: Final[dict[Choice, tuple[Path, ...]]] = {
    "staged": ("staged",),
    "portable": ("portable",),
    "both": ("staged", "portable"),
}


def main(
    seed: Annotated[int, typer.Option(help="The first seed; histories have consecutive ones.")] = 1,
    histories: Annotated[int, typer.Option(min=1, help="How many histories to run.")] = 1_000,
    path: Annotated[Choice, typer.Option(help="The path that flows take.")] = "both",
    keep_going: Annotated[bool, typer.Option(help="Do not stop at the first failure.")] = False,
    steps: Annotated[
        bool, typer.Option(help="Print every decision of one history, also a good one.")
    ] = False,
) -> None:
    """Run whole systems in simulated time against a real server; the same seed replays the same history."""
    with opened() as store:
        if steps:
            results = [run_history(store, str(seed), one) for one in _PATHS[path]]
            for result in results:
                _show(result)
            raise typer.Exit(int(any(result.problems for result in results)))
        stop_at = histories if keep_going else 1
        report = search(store, seed, _PATHS[path], most=histories, stop_at=stop_at, after_each=_progress)
    for result in report.failures[:5]:
        _show(result)
    if len(report.failures) > 5:
        seeds = ", ".join(f"{one.seed} ({one.plan.path})" for one in report.failures[5:])
        typer.echo(f"further failing seeds: {seeds}")
    _progress(report, is_last=True)
    raise typer.Exit(int(bool(report.failures)))


def _progress(report: Report, *, is_last: bool = False) -> None:
    if report.has_just_failed and not is_last:
        failed = report.failures[-1]
        typer.echo(f"seed {failed.seed}, path {failed.plan.path}: {failed.problems[0]}", err=True)
    if is_last or report.histories % EVERY == 0:
        hours = report.simulated_ms / 3_600_000
        typer.echo(
            f"{report.histories:,} histories, {report.calls:,} calls, {hours:,.1f} simulated hours, "
            f"{report.per_minute:,.0f} histories a minute, {len(report.failures)} failed",
            err=not is_last,
        )


def _show(result: Result) -> None:
    """Print a history: its plan, every decision, and what broke."""
    typer.echo(f"--- seed {result.seed}, path {result.plan.path}, decisions {result.digest}")
    typer.echo(result.plan)
    for number, line in enumerate(result.trace):
        typer.echo(f"{number:5} {line}")
    for problem in result.problems:
        typer.echo(f"BROKEN: {problem}")
    typer.echo(
        f"replay: {sys.executable.rsplit('/', 1)[-1]} -m tests.properties.simulation "
        f"--seed {result.seed} --path {result.plan.path} --steps"
    )


if __name__ == "__main__":
    typer.run(main)
