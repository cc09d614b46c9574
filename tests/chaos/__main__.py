"""Rounds of chaos from the command line: ``python -m tests.chaos --kills 10000``."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.status import Status

from tests.chaos.campaign import outcome_of
from tests.chaos.grounds import GROUNDS
from tests.chaos.size import Size
from tests.processes import mark

MAX_SHOWN: Final = 20


def main(  # noqa: PLR0917  an option is a parameter with a default
    seed: Annotated[int, typer.Option(help="The seed of the first round; each round has the next one.")] = 1,
    kills: Annotated[int, typer.Option(help="Continue until so many processes were killed.")] = 300,
    flows: Annotated[int, typer.Option(help="Flows of a round.")] = 60,
    seconds: Annotated[float, typer.Option(help="How long faults happen in a round.")] = 30.0,
    per_round: Annotated[int, typer.Option(help="Most kills of a round.")] = 150,
    pause: Annotated[float, typer.Option(help="Mean seconds between two faults.")] = 0.15,
    around: Annotated[float, typer.Option(help="Mean seconds between two faults of servers.")] = 3.0,
    giant: Annotated[int, typer.Option(help="Nodes of the fan-out of one more flow.")] = 2_000,
    spark: Annotated[int, typer.Option(help="Flows with steps of Spark; 0: no Spark.")] = 4,
    arrays: Annotated[int, typer.Option(help="Flows with arrays.")] = 8,
    bridged: Annotated[
        float, typer.Option(help="Share of nodes behind the bridge to ChasquiMQ; 0: no bridge.", min=0, max=1)
    ] = 0.1,
    ground: Annotated[str, typer.Option(help=f"The servers: {', '.join(GROUNDS)}.")] = "one",
    only: Annotated[str, typer.Option(help="Only these faults, comma-separated.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Keep the files of the rounds in this folder.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write the summary as JSON to this file.")] = None,
) -> None:
    """Kill, cut, freeze and restart while flows run; then check every promise. Exit code 1: one is broken."""
    mark()
    console, begun, total = Console(stderr=True, highlight=False), time.monotonic(), Counter[str]()
    outcomes: list[dict[str, Any]] = []
    size = Size(
        flows=flows, kills=per_round, seconds=seconds, pause=pause, around=around, giant=giant, spark=spark,
        bridged=bridged, arrays=arrays,
    )  # fmt: skip
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
            console.print(_line(found), markup=False, soft_wrap=True)
            for violation in found["violations"][:MAX_SHOWN]:
                console.print(f"  {violation}", markup=False, style="red", soft_wrap=True)
            seed += 1
    if summary is not None:
        summary.write_text(_summary(outcomes, time.monotonic() - begun))
    raise typer.Exit(1 if total["violations"] else 0)


def _summary(rounds: Sequence[dict[str, Any]], seconds: float) -> str:
    """The totals, and a line for each round."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    head: dict[str, Any] = {"ground": rounds[0]["ground"], "commit": commit.stdout.strip()}
    head["seconds"] = round(seconds, 1)
    for name in ("kills", "faults", "acknowledged", "losses"):
        head[name] = dict(sum((Counter(found[name]) for found in rounds), Counter()))
    for name in ("flows", "nodes", "runs", "accepted"):
        head[name] = sum(found[name] for found in rounds)
    lines = ",\n  ".join(
        json.dumps({name: value for name, value in found.items() if name not in ("faults", "ground")})
        for found in rounds
    )
    return f'{json.dumps(head, indent=1)[:-2]},\n "rounds": [\n  {lines}\n ]\n}}\n'


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
