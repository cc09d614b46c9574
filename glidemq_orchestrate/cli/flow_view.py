"""What ``glidemq flow`` prints, and how it follows a flow to its end."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import as_json_value, console, errors, say, say_json, stop_with
from glidemq_orchestrate.cli.view import flow_view
from glidemq_orchestrate.clients.producer import Flow
from glidemq_orchestrate.errors import TransportError, WaitTimeout
from glidemq_orchestrate.flows.change import FlowChange, NodeChange
from glidemq_orchestrate.flows.spec import FlowState, FlowStatus

FAILED: Final = 1
TIMED_OUT: Final = 3
INTERRUPTED: Final = 130
REFRESH_SECONDS: Final = 0.4
STEP_SECONDS: Final = 3600
OUTAGE_SECONDS: Final = 60
REFRESH_SHARE: Final = 5  # at most one part in so many of the time goes into reading all nodes
HEAD_LINES: Final = 8
SHOWN_CHARACTERS: Final = 500


class Outage:
    """Bears with a server that is away, for a minute at most: one that comes back is no reason to give up."""

    def __init__(self) -> None:
        self._since = self._last = -math.inf

    def bear(self, exc: TransportError) -> None:
        """Wait a little; raise what happened when that is no use or has lasted too long."""
        now = time.monotonic()
        if now - self._last > OUTAGE_SECONDS / 2:
            self._since = now
        self._last = now
        if not exc.retryable or now - self._since > OUTAGE_SECONDS:
            raise exc
        time.sleep(REFRESH_SECONDS)


def follow(flow: Flow, *, live: bool, as_json: bool, timeout: float | None = None) -> NoReturn:
    """Wait until a flow has ended, show it, and end with the exit code that tells how it ended."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    try:
        if live and not as_json and console.is_terminal:
            with Live(console=console, refresh_per_second=8, transient=True) as screen:
                _wait(flow, deadline, screen)
        else:
            _wait(flow, deadline, None)
    except WaitTimeout as exc:
        stop_with(exc, TIMED_OUT)
    except KeyboardInterrupt:
        errors.print(f"The flow goes on. Watch it again: glidemq flow watch {flow.id}", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    show(flow, as_json=as_json)
    end_with(flow)


def end_with(flow: Flow) -> NoReturn:
    """End with the exit code of a flow that has ended: 0 only when it completed."""
    raise typer.Exit(0 if flow.status().state is FlowState.COMPLETED else FAILED)


def _wait(flow: Flow, deadline: float, screen: Live | None) -> None:
    outage = Outage()
    while True:
        pause: float = STEP_SECONDS
        try:
            if screen is not None:
                pause = _draw(flow, screen)
            flow.wait(timeout=timedelta(seconds=max(min(pause, deadline - time.monotonic()), 0)))
        except WaitTimeout as exc:
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"the flow goes on; watch it: glidemq flow watch {flow.id}") from exc
        except TransportError as exc:
            outage.bear(exc)
        else:
            return


def _draw(flow: Flow, screen: Live) -> float:
    """Draw the flow as it is; answers for how many seconds that will do."""
    began = time.monotonic()
    rows = max(console.height - HEAD_LINES, 5)
    screen.update(flow_view(flow.status(), flow.nodes(), now=datetime.now(UTC), rows=rows))
    return max(REFRESH_SECONDS, (time.monotonic() - began) * REFRESH_SHARE)


def show(flow: Flow, *, as_json: bool) -> None:
    """Print a flow as it is now."""
    status, nodes = flow.status(), flow.nodes()
    if not as_json:
        console.print(flow_view(status, nodes, now=datetime.now(UTC)))
        return
    shown = [{**asdict(node), "seconds": node.seconds} for node in nodes]
    say_json({"flow": asdict(status), "nodes": shown, "results": dict(flow.results())})


def print_changes(flow: Flow, *, after: str | None, as_json: bool, timeout: float | None) -> NoReturn:
    """Print a line for each change until the flow has ended, then end with its exit code."""
    try:
        for change in _changes(flow, after, math.inf if timeout is None else time.monotonic() + timeout):
            if as_json:
                say_json(asdict(change), indent=None)
            else:
                say(_line(change))
            sys.stdout.flush()
    except WaitTimeout as exc:
        stop_with(exc, TIMED_OUT)
    end_with(flow)


def _changes(flow: Flow, after: str | None, deadline: float) -> Iterator[NodeChange | FlowChange]:
    outage = Outage()
    while True:
        left = None if deadline == math.inf else timedelta(seconds=max(deadline - time.monotonic(), 0))
        try:
            for change in flow.watch(after=after, timeout=left):
                after = change.position
                yield change
        except TransportError as exc:
            outage.bear(exc)
        else:
            return


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
