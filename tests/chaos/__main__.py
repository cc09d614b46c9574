"""Rounds of chaos from the command line: ``python -m tests.chaos --kills 10000``."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.status import Status

from tests.chaos.campaign import outcome_of
from tests.chaos.grounds import GROUNDS
from tests.chaos.round import Size
from tests.processes import mark

MOST_SHOWN: Final = 20


def main(  # noqa: PLR0917  an option is a parameter with a default
    seed: Annotated[int, typer.Option(help="The seed of the first round; each round has the next one.")] = 1,
    kills: Annotated[int, typer.Option(help="Continue until so many processes were killed.")] = 300,
    flows: Annotated[int, typer.Option(help="Flows of a round.")] = 60,
    seconds: Annotated[float, typer.Option(help="How long faults happen in a round.")] = 30.0,
    per_round: Annotated[int, typer.Option(help="Most kills of a round.")] = 150,
    pause: Annotated[float, typer.Option(help="Mean seconds between two faults.")] = 0.15,
    around: Annotated[float, typer.Option(help="Mean seconds between two faults of servers.")] = 3.0,
    ground: Annotated[str, typer.Option(help=f"The servers: {', '.join(GROUNDS)}.")] = "one",
    only: Annotated[str, typer.Option(help="Only these faults, comma-separated.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Keep the files of the rounds in this folder.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write the summary as JSON to this file.")] = None,
) -> None:
    """Kill, cut, freeze and restart while flows run; then check every promise. Exit code 1: one is broken."""
    mark()
    console, begun, total = Console(stderr=True, highlight=False), time.monotonic(), Counter[str]()
    outcomes: list[dict[str, Any]] = []
    losses: Counter[str] = Counter()
    size = Size(flows=flows, kills=per_round, seconds=seconds, pause=pause, around=around)
    with tempfile.TemporaryDirectory() as scratch:
        while total["kills"] < kills:
            folder = (keep or Path(scratch)) / f"seed-{seed}"
            if folder.exists():
                raise typer.BadParameter(f"{folder} exists; remove it", param_hint="--keep")
            with console.status(f"seed {seed}") as status:

                def show(text: str, number: int = seed, status: Status = status) -> None:
                    status.update(f"seed {number}: {text}")

                found = outcome_of(seed, folder, size, ground=ground, only=only, progress=show)
            outcomes.append(found)
            total["kills"] += sum(found["kills"].values())
            total["violations"] += len(found["violations"])
            losses.update(found["losses"])
            console.print(_line(found), markup=False, soft_wrap=True)
            for violation in found["violations"][:MOST_SHOWN]:
                console.print(f"  {violation}", markup=False, style="red", soft_wrap=True)
            seed += 1
    if summary is not None:
        result = {
            "seconds": round(time.monotonic() - begun, 1),
            **total,
            "losses": losses,
            "rounds": outcomes,
        }
        summary.write_text(json.dumps(result, indent=1) + "\n")
    raise typer.Exit(1 if total["violations"] else 0)


def _line(found: dict[str, Any]) -> str:
    return (
        f"seed {found['seed']}: {sum(found['kills'].values())} kills, "
        f"{sum(found['faults'].values())} faults, "
        f"{found['nodes']:,} nodes, {found['runs']:,} runs, settled after {found['settled_seconds']:.1f} s, "
        f"{_losses(found)}{len(found['violations'])} violations"
    )


def _losses(found: dict[str, Any]) -> str:
    """What is gone of what was acknowledged."""
    of = found["acknowledged"]
    return "".join(
        f"lost: {count} {what}{f' of {of[what]:,}' if what in of else ''}, "
        for what, count in found["losses"].items()
    )


if __name__ == "__main__":
    typer.run(main)
