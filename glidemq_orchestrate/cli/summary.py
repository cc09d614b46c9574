"""Tables of results for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def summary_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A small table of results; the columns are the keys of the first row."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 3, 0, 0))
    columns = list(rows[0]) if rows else []
    for name in columns:
        table.add_column(
            name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right"
        )
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    return table


def _cell(value: Any) -> str:
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
