"""Prints groups of failures, for ``glidemq queue failures`` and ``glidemq flow failures``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import console, errors, print_json, print_rows, printable
from glidemq_orchestrate.clients.queue import FailureGroup, FailureGroups
from glidemq_orchestrate.foundation.suggestions import did_you_mean

REASON_CHARACTERS: Final = 80

GroupOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Only the failures of this group; see `failures`."),
]
Most = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of groups.")]


def print_failures(found: FailureGroups, most: int, *, as_json: bool) -> None:
    """Print the largest groups."""
    if as_json:
        print_json(found[:most])
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("group", "failed", "holds back", "first", "last", "example", "reason"):
        is_number = title in ("failed", "holds back")
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for group in found[:most]:
        example = group.samples[0]
        where = f"{example.flow_id}/{example.node}" if example.flow_id else str(example.job_id)
        reason = " ".join(example.reason.split())[:REASON_CHARACTERS]
        numbers = f"{group.count:,}", f"{group.held_back:,}" if group.held_back else ""
        cells = (group.group, *numbers, _at(group.first_at), _at(group.last_at), where, reason)
        table.add_row(*map(Text, cells))
    print_rows(table)
    if len(found) > most:
        console.print(f"{len(found) - most:,} more groups; --limit shows more", style="dim")
    if found.is_partial:
        console.print("Only the last failures were read; all numbers may be higher.", style="dim")
    elif found.held_back_is_partial:
        console.print("Not all of their flows were read; they may hold back more nodes.", style="dim")


def _at(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def explain_unchanged(what: str, group: str, found: Sequence[FailureGroup]) -> None:
    """Say on standard error why a command found nothing to do in a group."""
    one = next((one for one in found if one.group == group), None)
    if one is not None and one.nodes == one.count:
        text = f"The failures in group {group} are nodes of flows: glidemq flow retry FLOW_ID --group GROUP."
    elif one is None:
        names = [one.group for one in found]
        text = f"{what} has no failure in group {group}{did_you_mean(group, names) or '.'}"
    else:
        text = f"The failures in group {group} remain: their flows, or jobs that read their ends, still run."
    errors.print(printable(text), markup=False, highlight=False, soft_wrap=True)
