"""Drawings of flows for a terminal, and values in the cells of tables, made without a server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from glidemq_orchestrate.cli.shell import as_json_value
from glidemq_orchestrate.flows.elements import summary_of
from glidemq_orchestrate.flows.forms.drawing import DrawnGroup, fold, layout
from glidemq_orchestrate.flows.forms.drawing import Group as Folded
from glidemq_orchestrate.flows.status import FlowStatus, NodeStatus, Wait, critical_path
from glidemq_orchestrate.jobs.states import JobState

_STYLES: Final = {
    JobState.COMPLETED: ("✔", "green"),
    JobState.FAILED: ("✘", "bold red"),
    JobState.SKIPPED: ("⤼", "dim"),
    JobState.ACTIVE: ("▶", "bold cyan"),
    JobState.WAITING: ("…", "yellow"),
    JobState.DELAYED: ("◷", "yellow"),
}
_NO_WAITS: Final[Mapping[str, Wait]] = {}
_LABEL: Final = "."
_WIDEST: Final = 1_000
_BLOCKED: Final = ("·", "dim")
FOLD_FROM: Final = 5
MAX_ALONE: Final = 5
BAR: Final = 20
_CONSEQUENCES: Final = ("upstream failed: ", "cancelled: ")


def flow_view(
    status: FlowStatus,
    nodes: Sequence[NodeStatus],
    *,
    now: datetime | None = None,
    rows: int | None = None,
    waits: Mapping[str, Wait] = _NO_WAITS,
) -> RenderableType:
    """Header, bar and tree; fan-outs are folded, and the critical path is marked.

    Args:
        status: The record.
        nodes: All nodes, dependencies before dependents.
        now: The present time, for the durations of running nodes; None: these are not shown.
        rows: Maximum number of lines of the tree; failed and active nodes are shown first.
        waits: Why nodes wait; see ``Flow.waits``.
    """
    failed = Text(f", {status.failed:,} failed", style="red") if status.failed else Text()
    skipped = Text(f", {status.skipped:,} skipped", style="dim") if status.skipped else Text()
    parts = [
        Text(status.name, style="bold"),
        Text(status.id + (f" generation {status.generation}" if status.generation else ""), style="dim"),
        Text(status.state, style=_colour(status)),
        Text(f"{status.completed:,}/{status.total:,} completed") + failed + skipped,
    ]
    if seconds := between(status.created_at, status.finished_at or now):
        parts.append(Text(seconds))
    bar = Table.grid()
    bar.add_row(ProgressBar(total=status.total, completed=status.total - status.open, width=60))
    nodes = [_as_it_waits(node, now) if node.name in waits else node for node in nodes]
    path = critical_path(nodes)
    tree = [node_table(nodes, path=path, now=now, rows=rows, waits=waits)]
    foot = [Text(status.reason, style="red")] if status.reason else []
    return Group(Text("  ").join(parts), bar, *tree, *foot, *_path_line(nodes, path, now))


def _as_it_waits(node: NodeStatus, now: datetime | None) -> NodeStatus:
    """A node as it is shown: it is not active if a worker holds it back."""
    if node.state is not JobState.ACTIVE or now is None or node.silent_for(now) is not None:
        return node
    return replace(node, state=JobState.WAITING, started_at=None)


def node_table(
    nodes: Sequence[NodeStatus],
    *,
    path: Sequence[str] = (),
    now: datetime | None = None,
    rows: int | None = None,
    waits: Mapping[str, Wait] = _NO_WAITS,
) -> Table:
    """The nodes as a tree: a row for each node or folded group."""
    has_queues = len({node.queue for node in nodes}) > 1
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("node", *(["queue"] if has_queues else []), "state", "time", "tries", "after", "detail"):
        right = title in ("time", "tries")
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "detail")
    causes = [node.name for node in nodes if _is_cause(node)][:MAX_ALONE]
    groups = fold(nodes, at_least=FOLD_FROM, alone=lambda node: node.name in causes)
    shown = _shown(groups, rows)
    places = layout(groups)
    indented = set(_first_of_branches(places))
    for guides, group in _lines(places, shown):
        queue = [Text(group.nodes[0].queue)] if has_queues else []
        is_below_it = len(group.after) == 1 and id(group) in indented
        after = [] if is_below_it else [groups[number].label for number in group.after]
        node, *cells = _cells(group, set(path), now, waits)
        table.add_row(Text(guides, style="dim") + node, *queue, *cells[:3], _names(after), cells[3])
    if len(shown) < len(groups):
        table.add_row(Text(f"… {len(groups) - len(shown):,} more lines", style="dim"))
    return table


def _first_of_branches(places: Sequence[DrawnGroup[NodeStatus]]) -> Iterator[int]:
    """The ids of the groups that are indented directly below the group that they follow."""
    for place in places:
        for branch in place.branches:
            yield id(branch[0].group)
            yield from _first_of_branches(branch)


def _shown(groups: Sequence[Folded[NodeStatus]], limit: int | None) -> set[int]:
    """The ids of the groups to show when there are more than ``limit``: failed and active nodes first."""
    if limit is None or len(groups) <= limit:
        return set(map(id, groups))
    interest = {JobState.FAILED: 0, JobState.ACTIVE: 1, JobState.COMPLETED: 3, JobState.SKIPPED: 3}
    interest[JobState.WAITING_CHILDREN] = 4
    ranked = sorted(groups, key=lambda group: min(interest.get(node.state, 2) for node in group.nodes))
    return set(map(id, ranked[: max(limit - 1, 1)]))


def _lines(places: Sequence[DrawnGroup[NodeStatus]], shown: set[int]) -> list[tuple[str, Folded[NodeStatus]]]:
    """The shown groups from top to bottom, each with the guides of the tree before it."""
    order: list[Folded[NodeStatus] | None] = []
    drawn = _drawn(places, shown, order)
    lines = Console(width=_WIDEST, color_system=None).render_lines(drawn, pad=False)
    guides = ("".join(segment.text for segment in line).rstrip(_LABEL) for line in lines)
    return [
        (guide, group) for guide, group in zip(guides, order, strict=True) if group and id(group) in shown
    ]


def _drawn(
    places: Sequence[DrawnGroup[NodeStatus]], shown: set[int], order: list[Folded[NodeStatus] | None]
) -> Group:
    """A tree of the shown groups and their ancestors, without names; appends its lines to ``order``."""
    drawn: list[RenderableType] = []
    for place in places:
        at, tree = len(order), Tree(_LABEL)
        order.append(place.group)
        for branch in place.branches:
            if (inside := _drawn(branch, shown, order)).renderables:
                tree.add(inside)
        if tree.children:
            drawn.append(tree)
        elif id(place.group) in shown:
            drawn.append(Text(_LABEL))
        else:
            del order[at]
    return Group(*drawn)


def _is_cause(node: NodeStatus) -> bool:
    """Whether a node failed on its own, not because of another node."""
    return node.state is JobState.FAILED and not node.reason.startswith(_CONSEQUENCES)


def _path_line(nodes: Sequence[NodeStatus], path: Sequence[str], now: datetime | None) -> list[Text]:
    if len(path) < 2:
        return []
    known = {node.name: node for node in nodes}
    took = between(known[path[0]].started_at, known[path[-1]].finished_at or now)
    names = [*path[:4], "…", *path[-3:]] if len(path) > 8 else path
    line = Text("◆ critical path: ", style="yellow") + Text(" → ".join(names))
    return [line + Text(f"  {took}", style="dim")]


def _cells(
    group: Folded[NodeStatus], path: set[str], now: datetime | None, waits: Mapping[str, Wait]
) -> tuple[Text, Text, Text, Text, Text]:
    """Name, state, time, tries and detail; as Text, since names and reasons may look like markup."""
    nodes = group.nodes
    mark, style = _mark(nodes)
    on_path = Text(" ◆", style="yellow") if any(node.name in path for node in nodes) else Text()
    name = Text(mark, style=style) + Text(f" {group.label}") + on_path
    tries = max(node.attempts for node in nodes)
    shown_tries = Text(f"{'≤ ' if group.is_folded else ''}{tries}" if tries > 1 else "")
    if not group.is_folded:
        (node,) = nodes
        time = between(node.started_at, node.finished_at or now) if _has_run(node) else ""
        detail = Text(_detail(node, waits))
        return name, Text(_word(node.state), style=style), Text(time), shown_tries, detail
    counts = Counter(node.state for node in nodes)
    states = [
        Text(f"{count:,} {_word(state)}", style=_style(state)[1]) for state, count in counts.most_common()
    ]
    state = Text(f"{len(nodes):,} nodes: ") + Text(", ").join(states)
    longest = max((node.seconds for node in nodes if node.seconds is not None), default=None)
    reason = next((node.reason for node in nodes if node.state is JobState.FAILED), "")
    if not reason and (waiting := [node.name for node in nodes if node.name in waits]):
        first = min(waiting, key=lambda name: waits[name].is_turn)
        same = sum(str(waits[name]) == str(waits[first]) for name in waiting)
        reason = f"{first} waits: {waits[first]}" if same == 1 else f"{same} wait: {waits[first]}"
    return name, state, Text("" if longest is None else f"≤ {_duration(longest)}"), shown_tries, Text(reason)


def _mark(nodes: Sequence[NodeStatus]) -> tuple[str, str]:
    """The mark and style of a group: of its failed or active nodes, if any."""
    states = {node.state for node in nodes}
    for state in (JobState.FAILED, JobState.ACTIVE):
        if state in states:
            return _style(state)
    if len(states) > 1 and JobState.COMPLETED in states:  # some have run, others will
        return _style(JobState.ACTIVE)
    return _style(next(iter(states)))


def _style(state: JobState) -> tuple[str, str]:
    return _STYLES.get(state, _BLOCKED)


def _has_run(node: NodeStatus) -> bool:
    return node.state is JobState.ACTIVE or node.seconds is not None


def between(start: datetime | None, end: datetime | None) -> str:
    """The duration from start to end as shown; empty if one of them is unknown."""
    return "" if start is None or end is None else _duration((end - start).total_seconds())


def _duration(seconds: float) -> str:
    """A duration as shown: ``0.4 s``, ``2 min 05 s``, ``3 h 20 min``."""
    whole = max(seconds, 0.0)
    if whole < 60:
        return f"{whole:.1f} s"
    minutes, rest = divmod(round(whole), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _word(state: JobState) -> str:
    return "blocked" if state is JobState.WAITING_CHILDREN else str(state)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)})"


def _detail(node: NodeStatus, waits: Mapping[str, Wait]) -> str:
    if node.ignored:
        return f"ignored: {node.reason}"
    if node.state in (JobState.FAILED, JobState.SKIPPED):
        return node.reason
    if node.name in waits:
        return f"waits: {waits[node.name]}"
    if (counts := summary_of(node.progress)) is not None:
        return _elements(counts)
    if node.state is JobState.ACTIVE and isinstance(node.progress, dict):
        return ", ".join(f"{name} {value}" for name, value in node.progress.items())
    return "" if node.progress is None or node.state is not JobState.ACTIVE else str(node.progress)


def _elements(counts: Mapping[str, int]) -> str:
    """The counts of an array with a bar."""
    total, ended = counts["elements"], counts["completed"] + counts["failed"] + counts["skipped"]
    filled = BAR * ended // total if total else BAR
    others = [f"{counts[name]:,} {name}" for name in ("failed", "skipped") if counts[name]]
    bar = "█" * filled + "░" * (BAR - filled)
    return ", ".join([f"{bar} {ended:,} of {total:,} elements", *others])


def _colour(status: FlowStatus) -> str:
    return {"completed": "green", "failed": "bold red", "cancelled": "yellow"}.get(status.state, "cyan")


NAMED: Final = 20


def status_json(status: FlowStatus) -> dict[str, Any]:
    """The status of a flow for ``--json``."""
    return {name: value for name, value in asdict(status).items() if name != "stored_as"}


def wait_json(waits: Mapping[str, Wait], node: NodeStatus) -> dict[str, Any] | None:
    """Why a node waits, and until when, for ``--json``; None if it does not wait."""
    found = waits.get(node.name)
    return None if found is None else asdict(found)


def changed_line(what: str, names: Sequence[str]) -> str:
    """A line about changed nodes."""
    if not names:
        return "Nothing was changed."
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{what}: {', '.join(names[:NAMED])}{more}"


def short(value: Any, limit: int | None, hint: str = "") -> str:
    """A value as the text of a cell, cut to ``limit`` characters; ``hint`` says how to see all of it."""
    text = value if isinstance(value, str) else None
    if isinstance(value, datetime):
        text = value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if text is None:
        text = json.dumps(value, default=as_json_value, ensure_ascii=False)
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text):,} characters{hint})"
