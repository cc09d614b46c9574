"""Following a flow until it ends, which gives the exit code."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

import typer
from rich.live import Live

from glidemq_orchestrate.cli.flow.cells import short
from glidemq_orchestrate.cli.flow.show import print_flow
from glidemq_orchestrate.cli.flow.view import flow_view
from glidemq_orchestrate.cli.shell import console, errors, say, say_json, stop_with
from glidemq_orchestrate.clients.flow import Flow
from glidemq_orchestrate.errors import TransportError, WaitTimeout
from glidemq_orchestrate.flows.change import FlowChange, NodeChange
from glidemq_orchestrate.flows.spec import FlowState

FAILED: Final = 1
TIMED_OUT: Final = 3
INTERRUPTED: Final = 130
REFRESH_SECONDS: Final = 0.4
STEP_SECONDS: Final = 3600
OUTAGE_SECONDS: Final = 60
REFRESH_SHARE: Final = 5  # at most one part in so many of the time goes into reading all nodes
HEAD_LINES: Final = 8
WAITS_REST: Final = timedelta(seconds=2)
MOST_NAMED: Final = 3


class Outage:
    """Tolerates an unreachable server for a minute at most: it may be restarting."""

    def __init__(self) -> None:
        self._since = self._last = -math.inf

    def tolerate(self, exc: TransportError) -> None:
        """Wait a little, or raise the error when it is permanent or the outage has lasted too long."""
        now = time.monotonic()
        if now - self._last > OUTAGE_SECONDS / 2:
            self._since = now
        self._last = now
        if not exc.retryable or now - self._since > OUTAGE_SECONDS:
            raise exc
        time.sleep(REFRESH_SECONDS)


def show_or_follow(
    flow: Flow,
    *,
    wait: bool,
    watch: bool,
    timeout: float | None,
    as_json: bool,
    changed: Sequence[str] | None = None,
) -> None:
    if wait:
        follow(flow, live=watch, as_json=as_json, timeout=timeout, changed=changed)
    print_flow(flow, as_json=as_json, changed=changed)


def follow(
    flow: Flow,
    *,
    live: bool,
    as_json: bool,
    timeout: float | None = None,
    changed: Sequence[str] | None = None,
) -> NoReturn:
    """Wait until a flow has ended, show it, and exit with the code for how it ended.

    ``changed``: as for ``print_flow``.
    """
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
        errors.print(f"The flow continues. Watch it again: glidemq flow watch {flow.id}", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    print_flow(flow, as_json=as_json, changed=changed)
    end_with(flow)


def end_with(flow: Flow) -> NoReturn:
    """Exit with the code of a flow that has ended: 0 only when it completed."""
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
                raise WaitTimeout(f"the flow continues; watch it: glidemq flow watch {flow.id}") from exc
        except TransportError as exc:
            outage.tolerate(exc)
        else:
            return


def _draw(flow: Flow, screen: Live) -> float:
    """Draw the flow as it is; returns the seconds until it should be drawn again."""
    began = time.monotonic()
    rows = max(console.height - HEAD_LINES, 5)
    status, nodes = flow.status(), flow.nodes()
    view = flow_view(status, nodes, now=datetime.now(UTC), rows=rows, waits=flow.waits(nodes))
    screen.update(view)
    return max(REFRESH_SECONDS, (time.monotonic() - began) * REFRESH_SHARE)


def print_changes(flow: Flow, *, after: str | None, as_json: bool, timeout: float | None) -> NoReturn:
    """Print one line per change until the flow has ended, then exit with its code."""
    try:
        deadline, waiting = math.inf if timeout is None else time.monotonic() + timeout, _Waiting(flow)
        for changes in _batches(flow, after, deadline):
            for change in changes:
                if as_json:
                    say_json(asdict(change), indent=None)
                else:
                    say(_line(change))
            if not as_json and not (changes and isinstance(changes[-1], FlowChange)):
                waiting.say_news()
            sys.stdout.flush()
    except WaitTimeout as exc:
        stop_with(exc, TIMED_OUT)
    end_with(flow)


def _batches(flow: Flow, after: str | None, deadline: float) -> Iterator[Sequence[NodeChange | FlowChange]]:
    outage = Outage()
    while True:
        left = None if deadline == math.inf else timedelta(seconds=max(deadline - time.monotonic(), 0))
        try:
            for changes in flow.watch_batches(after=after, timeout=left, rest=WAITS_REST):
                after = changes[-1].position if changes else after
                yield changes
        except TransportError as exc:
            outage.tolerate(exc)
        else:
            return


class _Waiting:
    """Says what waits for something else than its turn, why and until when: once, while that holds."""

    def __init__(self, flow: Flow) -> None:
        self._flow, self._said, self._next = flow, dict[str, str](), 0.0

    def say_news(self) -> None:
        began = time.monotonic()
        if began < self._next:
            return
        try:
            found = self._flow.waits()
        except TransportError:  # the watch itself tells how long that lasts
            return
        took = time.monotonic() - began
        self._next = began + max(WAITS_REST.total_seconds(), took * REFRESH_SHARE)
        told = {name: str(wait) for name, wait in found.items() if not wait.is_turn}
        news: dict[str, list[str]] = {}
        for name, text in told.items():
            if self._said.get(name) != text:
                news.setdefault(text, []).append(name)
        self._said = told
        for text, names in news.items():
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            about = ", ".join(names[:MOST_NAMED]) + more
            say("  ".join([datetime.now().astimezone().strftime("%H:%M:%S"), about, "waits", text]))


def _line(change: NodeChange | FlowChange) -> str:
    about = change.node if isinstance(change, NodeChange) else f"flow {change.flow}"
    words = [change.at.astimezone().strftime("%H:%M:%S"), about, str(change.state)]
    if isinstance(change, NodeChange) and change.attempts > 1:
        words.append(f"(attempt {change.attempts})")
    if isinstance(change, NodeChange) and change.state == "active" and change.progress is not None:
        words.append(short(change.progress, 100))
    return "  ".join([*words, change.reason] if change.reason and change.state != "completed" else words)
