"""``glidemq flow watch``."""

from __future__ import annotations

from typing import Annotated

import typer

from glidemq_orchestrate.cli.flow.follow import follow, print_changes
from glidemq_orchestrate.cli.flow.options import FlowIdArgument, Timeout
from glidemq_orchestrate.cli.shell import Prefix, Url, console, reports_errors
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


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
