"""Puts defects in and plays rounds until each is found: ``python -m tests.chaos.mutate``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from tests.chaos.campaign import outcome_of
from tests.chaos.faults import AROUND, BRIDGE, PROCESSES, VERSIONS
from tests.chaos.mutations import BY_NAME, CLEAN, DEFECTS, Defect
from tests.processes import mark

FAULTS: Final = ",".join(fault.__name__ for fault in (*PROCESSES, *BRIDGE, *AROUND) if fault not in VERSIONS)


def problems_without(seed: int) -> list[str]:
    """What a round without a defect reports: nothing."""
    with tempfile.TemporaryDirectory() as folder:
        found: list[str] = outcome_of(seed, Path(folder) / "round", CLEAN, only=FAULTS)["violations"]
    return found


def rounds_until_found(defect: Defect, seed: int, most: int) -> dict[str, Any]:
    """Play rounds with a defect until one reports something, at most so many; what that was."""
    for number in range(most):
        with defect.applied(), tempfile.TemporaryDirectory() as folder:
            found = outcome_of(
                seed + number, Path(folder) / "round", defect.size, ground=defect.ground, defect=defect.name,
                only=defect.faults or FAULTS,
            )  # fmt: skip
        if violations := found["violations"]:
            first = violations[0]
            return {"defect": defect.name, "rounds": number + 1, "reports": len(violations), "first": first}
    return {"defect": defect.name, "rounds": most, "reports": 0, "first": ""}


def main(
    seed: Annotated[int, typer.Option(help="The seed of the first round with each defect.")] = 1,
    rounds: Annotated[int, typer.Option(help="Most rounds with a defect.")] = 8,
    only: Annotated[str, typer.Option(help="Only the defects with this in their names.")] = "",
    summary: Annotated[Path | None, typer.Option(help="Write the summary as JSON to this file.")] = None,
) -> None:
    """Every defect that is put in on purpose must be found. Exit code 1: one is not."""
    mark()
    console, results = Console(stderr=True, highlight=False), []
    if problems := problems_without(seed):
        raise SystemExit("\n".join(["without any defect:", *problems]))
    for name in [defect.name for defect in DEFECTS if only in defect.name]:
        result = rounds_until_found(BY_NAME[name], seed, rounds)
        results.append(result)
        said = (
            f"found in round {result['rounds']}: {result['first'][:150]}"
            if result["reports"]
            else "NOT FOUND"
        )
        console.print(f"{name}: {said}", markup=False, soft_wrap=True)
    if summary is not None:
        summary.write_text(json.dumps({"seed": seed, "defects": results}, indent=1) + "\n")
    raise typer.Exit(0 if all(result["reports"] for result in results) else 1)


if __name__ == "__main__":
    typer.run(main)
