"""``glidemq flow watch``, and following a flow until it ends; the exit code reflects its outcome."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Final, NoReturn

import typer
from rich.live import Live

from glidemq_orchestrate.cli.flow.options import FlowIdArgument, Timeout
from glidemq_orchestrate.cli.flow.showing import print_flow
from glidemq_orchestrate.cli.flow.view import flow_view, short
from glidemq_orchestrate.cli.shell import (
    Prefix,
    Url,
    console,
    errors,
    print_json,
    print_text,
    reports_errors,
    stop_with,
)
from glidemq_orchestrate.clients.flows import Flow, FlowProducer
from glidemq_orchestrate.errors import TransportError, WaitTimeout
from glidemq_orchestrate.flows.status import FlowState, Wait
from glidemq_orchestrate.flows.watched import FlowChange, NodeChange
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

FAILED: Final = 1
TIMED_OUT: Final = 3
INTERRUPTED: Final = 130
REFRESH_SECONDS: Final = 0.4
STEP_SECONDS: Final = 5
OUTAGE_SECONDS: Final = 60
REFRESH_SHARE: Final = 5  # at most a fifth of the time is spent on reading all nodes
HEAD_LINES: Final = 8
WAITS_REST: Final = timedelta(seconds=2)
MAX_NAMED: Final = 3
QUIET_SECONDS: Final = 10.0


class OutagePatience:
    """Tolerates an unreachable server for up to a minute: it may be restarting."""

    def __init__(self) -> None:
        self._since = self._last = -math.inf

    def tolerate(self, exc: TransportError) -> None:
        """Pause, or raise the error if it is permanent or the outage has lasted too long."""
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
    """Wait until a flow has ended, show it, and exit with the code of its outcome.

    ``changed``: see ``print_flow``.
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
        errors.print(f"The flow continues. To watch it: glidemq flow watch {flow.id}", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    print_flow(flow, as_json=as_json, changed=changed)
    end_with(flow)


def end_with(flow: Flow) -> NoReturn:
    """Exit with the code of a flow that has ended: 0 only if it completed."""
    if flow.status().state is FlowState.COMPLETED:
        raise typer.Exit(0)
    errors.print(
        f"To run the nodes again that did not complete: glidemq flow retry {flow.id}. "
        f"With a corrected flow file: glidemq flow submit FILE --id {flow.id} --retry-failed. "
        f"To run all nodes again: glidemq flow restart {flow.id}",
        markup=False,
        highlight=False,
    )
    raise typer.Exit(FAILED)


def _wait(flow: Flow, deadline: float, screen: Live | None) -> None:
    outage = OutagePatience()
    waiting = _WaitLines(flow, None, as_json=False, write=_print_error)
    while True:
        pause: float = STEP_SECONDS
        try:
            if screen is not None:
                pause = _draw(flow, screen)
            flow.wait(timeout=timedelta(seconds=max(min(pause, deadline - time.monotonic()), 0)))
        except WaitTimeout as exc:
            if screen is None:
                waiting.update(())
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"{exc}. To watch it: glidemq flow watch {flow.id}") from exc
        except TransportError as exc:
            outage.tolerate(exc)
        else:
            return


def _print_error(line: str) -> None:
    errors.print(line, markup=False, highlight=False)


def _draw(flow: Flow, screen: Live) -> float:
    """Draw the present state; returns the seconds until it should be drawn again."""
    began = time.monotonic()
    rows = max(console.height - HEAD_LINES, 5)
    status, nodes = flow.status(), flow.nodes()
    view = flow_view(status, nodes, now=flow.now(), rows=rows, waits=flow.waits(nodes))
    screen.update(view)
    return max(REFRESH_SECONDS, (time.monotonic() - began) * REFRESH_SHARE)


def print_changes(flow: Flow, *, after: str | None, as_json: bool, timeout: float | None) -> NoReturn:
    """Print one line per change until the flow has ended, then exit with its code."""
    try:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        waiting = _WaitLines(flow, after, as_json=as_json)
        for changes in _batches(flow, after, deadline):
            for change in changes:
                if as_json:
                    print_json(asdict(change), indent=None)
                else:
                    print_text(_line(change))
            if not (changes and isinstance(changes[-1], FlowChange)):
                waiting.update(changes)
            sys.stdout.flush()
    except WaitTimeout as exc:
        stop_with(exc, TIMED_OUT)
    end_with(flow)


def _batches(flow: Flow, after: str | None, deadline: float) -> Iterator[Sequence[NodeChange | FlowChange]]:
    outage = OutagePatience()
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


class _WaitLines:
    """Prints which nodes wait, why, and until when: again only after a change.

    Nodes that wait for their turn are printed only after some time without a change.
    """

    def __init__(
        self, flow: Flow, position: str | None, *, as_json: bool, write: Callable[[str], None] = print_text
    ) -> None:
        self._flow, self._position, self._as_json, self._write = flow, position, as_json, write
        self._printed, self._next, self._quiet_since = dict[str, str](), 0.0, time.monotonic()

    def update(self, changes: Sequence[NodeChange | FlowChange]) -> None:
        began = time.monotonic()
        if changes:
            self._position, self._quiet_since = changes[-1].position, began
        if began < self._next:
            return
        try:
            found = self._flow.waits()
        except TransportError:  # the watch itself handles the outage
            return
        took = time.monotonic() - began
        self._next = began + max(WAITS_REST.total_seconds(), took * REFRESH_SHARE)
        is_quiet = began - self._quiet_since >= QUIET_SECONDS
        due = {
            name: wait
            for name, wait in found.items()
            if not wait.is_turn or is_quiet or name in self._printed
        }
        news: dict[str, list[str]] = {}
        for name, wait in due.items():
            if self._printed.get(name) != (text := _kind(wait)):
                news.setdefault(text, []).append(name)
        self._printed = {name: _kind(wait) for name, wait in due.items()}
        for names in news.values():
            self._print(names, due[names[0]])

    def _print(self, names: Sequence[str], wait: Wait) -> None:
        now = self._flow.now()
        if self._as_json:
            print_json({"nodes": names, "wait": wait, "at": now, "position": self._position}, indent=None)
            return
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        about = ", ".join(names[:MAX_NAMED]) + more
        self._write("  ".join([now.astimezone().strftime("%H:%M:%S"), about, f"waits: {wait}"]))


def _kind(wait: Wait) -> str:
    """The key for not printing a wait twice. The end of a wait for a turn may change often (rate limits)."""
    return wait.reason if wait.is_turn else str(wait)


def _line(change: NodeChange | FlowChange) -> str:
    about = change.node if isinstance(change, NodeChange) else f"flow {change.flow}"
    words = [change.at.astimezone().strftime("%H:%M:%S"), about, str(change.state)]
    if isinstance(change, NodeChange) and change.attempts > 1:
        words.append(f"(attempt {change.attempts})")
    if isinstance(change, NodeChange) and change.state == "active" and change.progress is not None:
        words.append(short(change.progress, 100))
    return "  ".join([*words, change.reason] if change.reason and change.state != "completed" else words)


@reports_errors
def watch(
    flow_id: FlowIdArgument,
    url: Url = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="POSITION", help="Print only changes after this position of an earlier watch."),
    ] = None,
    timeout: Timeout = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print one line per change, even in a terminal.")
    ] = False,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, for each change.")
    ] = False,
) -> None:
    """Follow a flow until it ends: as a live tree in a terminal, otherwise with one line per change.

    Lines also show, every two seconds, which nodes wait for something other than their turn, why, and until
    when; after ten seconds without a change also which nodes wait for their turn.

    With --json, node changes have node, state, at, attempts, reason, progress and position; the last line has
    flow instead of node. Lines about waits have nodes and wait (reason, until, is_turn) instead, and the
    position of the last change. With --after every difference is printed exactly once, however old the
    position is; nothing is printed if the flow has not run since it ended.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        if as_json or lines or after is not None or not console.is_terminal:
            print_changes(flow, after=after, as_json=as_json, timeout=timeout)
        follow(flow, live=True, as_json=False, timeout=timeout)
