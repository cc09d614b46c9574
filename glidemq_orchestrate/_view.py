"""How flows look in a terminal. Takes values, returns things that rich can print; asks no server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.flow import FlowStatus, NodeStatus
from glidemq_orchestrate.job import JobState

_LOOKS: Final = {
    JobState.COMPLETED: ("✔", "green"),
    JobState.FAILED: ("✘", "bold red"),
    JobState.ACTIVE: ("▶", "bold cyan"),
    JobState.WAITING: ("…", "yellow"),
    JobState.DELAYED: ("◷", "yellow"),
}
_BLOCKED: Final = ("·", "dim")
FOLD_FROM: Final = 5


def flow_view(status: FlowStatus, nodes: Sequence[NodeStatus]) -> RenderableType:
    """Header, bar and table; nodes that differ only by a number share a row while all is well."""
    failed = Text(f", {status.failed} failed", style="red") if status.failed else Text()
    head = Text("  ").join(
        [
            Text(status.name, style="bold"),
            Text(status.id, style="dim"),
            Text(status.state, style=_colour(status)),
            Text(f"{status.completed}/{status.total} completed") + failed,
        ]
    )
    bar = Table.grid()
    bar.add_row(ProgressBar(total=status.total, completed=status.completed + status.failed, width=60))
    reason = Text(status.reason, style="red") if status.reason else Text()
    return Group(head, bar, node_table(nodes), reason)


def node_table(nodes: Sequence[NodeStatus]) -> Table:
    """One row for a node or a folded group of nodes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "node", "queue", "state", "seconds", "tries", "after", "detail"):
        right = title in ("seconds", "tries")
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "detail")
    for group in _folded(nodes):
        # As Text, since names and reasons may look like markup.
        cells = _single(group[0]) if len(group) == 1 else _fold(group)
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


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


def _single(node: NodeStatus) -> tuple[Text | str, ...]:
    mark, style = _LOOKS.get(node.state, _BLOCKED)
    seconds = "" if node.seconds is None else f"{node.seconds:.1f}"
    tries = str(node.attempts) if node.attempts > 1 else ""
    state = Text(_word(node.state), style=style)
    return (
        Text(mark, style=style),
        node.name,
        node.queue,
        state,
        seconds,
        tries,
        _names(node.after),
        _detail(node),
    )


def _fold(group: Sequence[NodeStatus]) -> tuple[Text | str, ...]:
    counts = Counter(node.state for node in group)
    state = Text(", ").join(
        Text(f"{count} {_word(state)}", style=_LOOKS.get(state, _BLOCKED)[1])
        for state, count in counts.most_common()
    )
    seconds = [node.seconds for node in group if node.seconds is not None]
    done = counts[JobState.COMPLETED] == len(group)
    moving = seconds or counts[JobState.ACTIVE]
    mark, style = _LOOKS[JobState.COMPLETED] if done else _LOOKS[JobState.ACTIVE] if moving else _BLOCKED
    name = f"{group[0].name} … {group[-1].name} ({len(group)})"
    longest = f"≤ {max(seconds):.1f}" if seconds else ""
    return Text(mark, style=style), name, group[0].queue, state, longest, "", _names(group[0].after), ""


def _folded(nodes: Sequence[NodeStatus]) -> Iterable[list[NodeStatus]]:
    """Group five and more neighbours that differ only by a number; one that failed stands alone."""
    run: list[NodeStatus] = []
    for node in [*nodes, None]:
        if run and (node is None or _family(node) != _family(run[0])):
            yield from [run] if len(run) >= FOLD_FROM else ([one] for one in run)
            run = []
        if node is not None:
            run.append(node)


def _family(node: NodeStatus) -> tuple[object, ...]:
    if node.state is JobState.FAILED or node.attempts > 1:
        return (node.name,)
    return re.sub(r"\d+", "#", node.name), node.queue, node.after


def _word(state: JobState) -> str:
    return "blocked" if state is JobState.WAITING_CHILDREN else str(state)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)})"


def _detail(node: NodeStatus) -> str:
    if node.state is JobState.FAILED:
        return node.reason
    if node.state is JobState.ACTIVE and isinstance(node.progress, dict):
        return ", ".join(f"{name} {value}" for name, value in node.progress.items())
    return "" if node.progress is None or node.state is not JobState.ACTIVE else str(node.progress)


def _colour(status: FlowStatus) -> str:
    return {"completed": "green", "failed": "bold red", "cancelled": "yellow"}.get(status.state, "cyan")


def _cell(value: Any) -> str:
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
