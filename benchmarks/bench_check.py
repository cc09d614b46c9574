"""Whether a job or node takes more instructions than it did: ``python -m benchmarks.bench_check``.

Compares the counts of ``instructions`` with the figures in ``results/instructions.json``. Those hold for one
version of Python, with its compiler, and of Valkey; with any other the check fails and says so. ``--renew``
writes the figures of now, also those of other works with ``--works``. Works that run a flow have none: how
many nodes a call carries depends on how busy the machine is.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import redis
import typer
from rich.console import Console

from benchmarks.instructions import cost
from benchmarks.rivals import ROOT
from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli.shell import summary_table

FIGURES: Final = Path(__file__).parent / "results/instructions.json"
MAX_RATIO: Final = 1.15
SIDES: Final = ("client", "server")

Costs: TypeAlias = dict[str, dict[str, int]]
"""The instructions of each side, by work."""


def main(
    renew: Annotated[bool, typer.Option("--renew", help="Write the figures of now.")] = False,  # noqa: FBT002  typer
    works: Annotated[
        str, typer.Option(help="What to count, comma-separated; by default all in the file.")
    ] = "",
) -> None:
    """Count, print, and exit with 1 if a figure is exceeded; some minutes."""
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is needed; on Debian: apt-get install valgrind")
    known, versions = json.loads(FIGURES.read_text()), versions_here()
    if not renew and (problem := other_versions(known["versions"], versions)):
        raise SystemExit(problem)
    found = counted(works.split(",") if works else list(known["instructions"]))
    if renew:
        kept = known["instructions"] if known["versions"] == versions else {}
        written = {"versions": versions, "instructions": kept | found}
        FIGURES.write_text(json.dumps(written, indent=2) + "\n")
        return
    again = sorted({work for work, _, _ in exceeded(known["instructions"], found)})
    for work, costs in counted(again).items():  # a busy machine adds to them, and takes nothing away
        found[work] = {side: min(number, found[work][side]) for side, number in costs.items()}
    Console().print(summary_table("Instructions per job or node", rows(known["instructions"], found)))
    if excess := exceeded(known["instructions"], found):
        lines = [
            f"{work}: the {side} takes {ratio:.2f} times the instructions" for work, side, ratio in excess
        ]
        fix = "Fix: spend fewer, or make bench-renew, and give the reason in the commit"
        raise SystemExit("\n".join([*lines, fix]))


def counted(works: list[str]) -> Costs:
    """The instructions of each side for these works, several at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool, Console(stderr=True).status("counting"):
        costs = {(work, side): pool.submit(cost, ROOT, work, side) for work in works for side in SIDES}
        return {work: {side: costs[work, side].result() for side in SIDES} for work in works}


def exceeded(known: Costs, found: Costs) -> list[tuple[str, str, float]]:
    """Work, side and ratio of each figure that is exceeded by more than ``MAX_RATIO`` allows."""
    return [one for one in ratios(known, found) if one[2] > MAX_RATIO]


def ratios(known: Costs, found: Costs) -> Iterator[tuple[str, str, float]]:
    """Work, side and ratio of each count; a work without a figure raises ``KeyError``."""
    for work, costs in found.items():
        for side, number in costs.items():
            yield work, side, number / known[work][side]


def rows(known: Costs, found: Costs) -> list[dict[str, Any]]:
    """The table to print."""
    return [
        {"work": work, "instructions of the": side, "figure": known[work][side], "here": found[work][side]}
        | {"ratio": f"{ratio:.3f}"}
        for work, side, ratio in ratios(known, found)
    ]


def versions_here() -> dict[str, str]:
    """The versions on which the counts depend."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url.replace("valkey", "redis")) as client:
        valkey = str(client.info("server")["valkey_version"])
    return {"python": f"{platform.python_version()}, {platform.python_compiler()}", "valkey": valkey}


def other_versions(known: dict[str, str], here: dict[str, str]) -> str:
    """Why the figures cannot be compared with counts of these versions; '' if they can."""
    others = [
        f"{name} {known.get(name)}, not {version}"
        for name, version in here.items()
        if version != known.get(name)
    ]
    return f"the figures hold for {' and '.join(others)}: nothing was compared" if others else ""


if __name__ == "__main__":
    typer.run(main)
