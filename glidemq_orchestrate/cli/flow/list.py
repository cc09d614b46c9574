"""``glidemq flow list``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.flow.cells import short, status_json
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, print_json, reports_errors
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.durations import from_text
from glidemq_orchestrate.foundation.names import shown
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def list_(
    url: Url = None,
    state: Annotated[FlowState | None, typer.Option(help="List only flows in this state.")] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE", help="List only flows with this label, such as dag=nightly."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGE|TIME",
            help="List only flows submitted since: 90m, 2h, 7d, or 2026-01-31T06:00+01:00.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of flows.")] = 20,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """List flows, newest first."""
    labelled, _ = _label(label), _since(since, datetime.now(UTC))  # refuse invalid values before connecting
    with FlowProducer(url, prefix=prefix) as flows:
        now = flows.now()
        filters: dict[str, Any] = {"state": state, "label": labelled, "limit": limit}
        found = list(flows.list(**filters, since=_since(since, now)))
    if as_json:
        print_json([status_json(flow) for flow in found])
    elif not found:
        console.print("No flows" + (" match all filters." if state or label or since else " yet."))
    else:
        console.print(flow_table(found, now))


def flow_table(flows: list[FlowStatus], now: datetime) -> Table:
    """One row per flow. ``now``: the server's time."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("flow", "gen", "name", "state", "nodes", "submitted", "took", "labels", "reason"):
        right = title in ("gen", "nodes", "took")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for flow in flows:
        began, ended = flow.created_at, flow.finished_at or now
        took = "" if began is None else str(timedelta(seconds=round((ended - began).total_seconds())))
        labels = ", ".join(f"{key}={value}" for key, value in flow.labels.items())
        nodes = f"{flow.completed:,}/{flow.total:,}"
        submitted = "" if began is None else began.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        cells = (flow.id, str(flow.generation), flow.name, str(flow.state), nodes, submitted, took, labels)
        table.add_row(*map(Text, (*cells, short(flow.reason, 80))))
    return table


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, mark, value = text.partition("=")
    if not mark:
        raise ConfigurationError(f"--label must be KEY=VALUE, such as dag=nightly, got {shown(text)}")
    return key, value


def _since(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        if age := from_text(text):
            return now - age
        moment = datetime.fromisoformat(text)
        return moment.astimezone() if moment.tzinfo is None else moment
    except (ValueError, OverflowError) as exc:
        raise ConfigurationError(
            f"--since must be an age such as 90m, 2h or 7d, or a time such as 2026-01-31T06:00, "
            f"got {shown(text)}"
        ) from exc
