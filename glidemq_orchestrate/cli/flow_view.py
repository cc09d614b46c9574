"""What ``glidemq flow`` prints, and how it follows a flow to its end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate._view import flow_view
from glidemq_orchestrate.cli.job import as_json_value
from glidemq_orchestrate.cli.shell import console, errors, stop_with
from glidemq_orchestrate.errors import TransportError, WaitTimeout
from glidemq_orchestrate.flow import FlowState, FlowStatus
from glidemq_orchestrate.flow_change import FlowChange, NodeChange
from glidemq_orchestrate.producer import Flow

FAILED: Final = 1
TIMED_OUT: Final = 3
INTERRUPTED: Final = 130
REFRESH_SECONDS: Final = 0.4
REFRESH_SHARE: Final = 5  # at most one part in so many of the time goes into reading all nodes
HEAD_LINES: Final = 8
SHOWN_CHARACTERS: Final = 500


def follow(flow: Flow, *, live: bool, as_json: bool, timeout: float | None = None) -> NoReturn:
    """Wait until a flow has ended, show it, and end with the exit code that tells how it ended."""
    limit = None if timeout is None else timedelta(seconds=timeout)
    try:
        if live and not as_json and console.is_terminal:
            _watch_live(flow, limit)
        else:
            flow.wait(timeout=limit)
    except WaitTimeout as exc:
        stop_with(exc, TIMED_OUT)
    except KeyboardInterrupt:
        errors.print(f"The flow goes on. Watch it again: glidemq flow watch {flow.id}", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    show(flow, as_json=as_json)
    end_with(flow.status().state)


def end_with(state: FlowState) -> NoReturn:
    """End with the exit code of a flow that has ended: 0 only when it completed."""
    raise typer.Exit(0 if state is FlowState.COMPLETED else FAILED)


def _watch_live(flow: Flow, timeout: timedelta | None) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while True:
            began = time.monotonic()
            try:
                status = flow.status()
                if status.state.is_terminal:
                    return
                rows = max(console.height - HEAD_LINES, 5)
                live.update(flow_view(status, flow.nodes(), now=datetime.now(UTC), rows=rows))
                pause = max(REFRESH_SECONDS, (time.monotonic() - began) * REFRESH_SHARE)
                flow.wait(timeout=timedelta(seconds=pause))
            except WaitTimeout:
                pass
            except TransportError as exc:
                if not exc.retryable:
                    raise
                time.sleep(REFRESH_SECONDS)  # a server that comes back is no reason to stop watching
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(f"flow {flow.id} is still running; watch it: glidemq flow watch {flow.id}")


def show(flow: Flow, *, as_json: bool) -> None:
    """Print a flow as it is now."""
    status, nodes = flow.status(), flow.nodes()
    if not as_json:
        console.print(flow_view(status, nodes, now=datetime.now(UTC)))
        return
    shown = [{**asdict(node), "seconds": node.seconds} for node in nodes]
    print_json({"flow": asdict(status), "nodes": shown, "results": dict(flow.results())})


def print_changes(flow: Flow, *, after: str | None, as_json: bool, timeout: float | None) -> NoReturn:
    """Print a line for each change until the flow has ended, then end with its exit code."""
    limit = None if timeout is None else timedelta(seconds=timeout)
    state = flow.status().state
    try:
        for change in flow.watch(after=after, timeout=limit):
            typer.echo(json.dumps(asdict(change), default=as_json_value) if as_json else _line(change))
            sys.stdout.flush()
            if isinstance(change, FlowChange):
                state = change.state
    except WaitTimeout as exc:
        stop_with(exc, TIMED_OUT)
    end_with(state)


def _line(change: NodeChange | FlowChange) -> str:
    about = change.node if isinstance(change, NodeChange) else f"flow {change.flow}"
    words = [change.at.astimezone().strftime("%H:%M:%S"), about, str(change.state)]
    if isinstance(change, NodeChange) and change.attempts > 1:
        words.append(f"(attempt {change.attempts})")
    if isinstance(change, NodeChange) and change.state == "active" and change.progress is not None:
        words.append(_short(change.progress, 100))
    return "  ".join([*words, change.reason] if change.reason and change.state != "completed" else words)


def flow_table(flows: list[FlowStatus]) -> Table:
    """One row a flow, the newest first."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("flow", "name", "state", "nodes", "submitted", "took", "labels", "reason"):
        right = title in ("nodes", "took")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    now = datetime.now(UTC)
    for flow in flows:
        began, ended = flow.created_at, flow.finished_at or now
        took = "" if began is None else str(timedelta(seconds=round((ended - began).total_seconds())))
        labels = ", ".join(f"{key}={value}" for key, value in flow.labels.items())
        nodes = f"{flow.completed:,}/{flow.total:,}"
        submitted = "" if began is None else began.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        cells = (flow.id, flow.name, str(flow.state), nodes, submitted, took, labels, _short(flow.reason, 80))
        table.add_row(*map(Text, cells))
    return table


def node_table(row: Mapping[str, Any], *, full: bool) -> Table:
    """What is known of a node, one line each; long values are cut unless all of them is wanted."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in row.items():
        if value in (None, "", [], {}, ()) and name not in ("data", "result"):
            continue
        if isinstance(value, Mapping) and name == "inputs":
            for key, part in value.items():
                table.add_row(f"input {key}", Text(_short(part, None if full else SHOWN_CHARACTERS)))
            continue
        text = "\n".join(value) if name == "logs" else _short(value, None if full else SHOWN_CHARACTERS)
        table.add_row(name.replace("_", " "), Text(text))
    return table


def _short(value: Any, most: int | None) -> str:
    text = value if isinstance(value, str) else None
    if isinstance(value, datetime):
        text = value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if text is None:
        text = json.dumps(value, default=as_json_value, ensure_ascii=False)
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text):,} characters; --full shows all)"


def print_json(value: Any) -> None:
    """Print a document for programs."""
    typer.echo(json.dumps(value, default=as_json_value, indent=2))
