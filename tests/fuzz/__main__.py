"""``python -m tests.fuzz``: bad input for every entry of the package, many cases, repeatable by the seed."""

from __future__ import annotations

import faulthandler
import secrets
import sys
import time
from typing import Annotated, Final

import typer

from tests.fuzz.campaign import Report, run
from tests.fuzz.entries import ENTRIES
from tests.processes import spawned

QUIET_SECONDS: Final = 10.0
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def fuzz(
    cases: Annotated[
        int, typer.Option(help="How many cases in all; each entry gets its share.", min=1)
    ] = 10_000,
    seed: Annotated[
        int | None, typer.Option(help="The same seed has the same cases; random by default.")
    ] = None,
    entry: Annotated[str | None, typer.Option(help=f"Only this one: {', '.join(ENTRIES)}.")] = None,
) -> None:
    """Give bad input to every entry of the package. Exit code 1 when something it must not do was seen."""
    seed = secrets.randbelow(2**32) if seed is None else seed
    if entry is not None:
        if entry not in ENTRIES:
            raise typer.BadParameter(f"one of {', '.join(ENTRIES)}", param_hint="--entry")
        raise typer.Exit(_run_one(entry, seed, cases))
    typer.echo(f"{cases:,} cases, seed {seed}")
    total = sum(one.share for one in ENTRIES.values())
    ended = {
        name: _run_apart(name, seed, max(cases * one.share // total, 1)) for name, one in ENTRIES.items()
    }
    died = [f"the process of {name} died with {code}" for name, code in ended.items() if code not in (0, 1)]
    typer.echo("\n".join([*died, f"seed {seed}: {'violations' if any(ended.values()) else 'no violation'}"]))
    raise typer.Exit(int(any(ended.values())))


def _run_apart(name: str, seed: int, cases: int) -> int:
    """Run an entry in a process of its own: the others are run even if that dies."""
    command = [sys.executable, "-m", "tests.fuzz", "--entry", name, "--seed", seed, "--cases", cases]
    with spawned(command) as process:
        return int(process.wait())


def _run_one(name: str, seed: int, cases: int) -> int:
    last, known = time.monotonic(), 0

    def say(report: Report) -> None:
        nonlocal last, known
        if time.monotonic() - last > QUIET_SECONDS or len(report.findings) > known:
            last = time.monotonic()
            typer.echo(f"  {name} {report.cases:,} of {cases:,}, {len(report.findings)} violations")
            _print(*(f"  * {one.what}" for one in list(report.findings.values())[known:]))
            known = len(report.findings)

    report = run(ENTRIES[name], seed, cases, hard=True, progress=say)
    _print(str(report), f"  repeat: python -m tests.fuzz --entry {name} --seed {seed} --cases {cases}")
    return int(bool(report.findings))


def _print(*lines: str) -> None:
    for line in lines:
        typer.echo(line.encode("ascii", "backslashreplace").decode())


if __name__ == "__main__":
    faulthandler.enable()
    app()
