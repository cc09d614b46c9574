"""The command that lists flows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.flow.view import between, short, status_json
from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    Url,
    console,
    print_json,
    print_rows,
    reports_errors,
)
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.durations import from_text
from glidemq_orchestrate.foundation.texts import shown
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
    full: Annotated[
        bool, typer.Option("--full", help="Show all columns, and each flow in one line.")
    ] = False,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """List flows, newest first."""
    labelled, _ = _label(label), _since(since, datetime.now(UTC))  # refuse invalid values before connecting
    with FlowProducer(url, prefix=prefix) as flows:
        now = flows.now()
        filters: dict[str, Any] = {"state": state, "label": labelled, "limit": limit + (limit > 0)}
        found = list(flows.list(**filters, since=_since(since, now)))
        found, has_more = found[:limit], len(found) > limit
    if as_json:
        print_json([status_json(flow) for flow in found])
    elif not found:
        console.print("No flows" + (" match all filters." if state or label or since else " yet."))
    else:
        print_rows(flow_table(found, now, full=full), whole=full)
        if has_more:
            console.print("There are more flows; --limit shows more.", style="dim")


def flow_table(flows: list[FlowStatus], now: datetime, *, full: bool) -> Table:
    """One row per flow. ``now``: the server's time; ``full``: all columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    titles = "flow", "name", "state", "nodes", "submitted", "took", "reason", "generation", "labels"
    columns = titles if full else titles[:-2] if any(flow.reason for flow in flows) else titles[:-3]
    for title in columns:
        table.add_column(
            title,
            justify="right" if title in ("generation", "nodes", "took") else "left",
            no_wrap=title != "reason",
            overflow="fold" if title in ("flow", "reason") else "ellipsis",
            min_width=max(len(flow.id) for flow in flows) if title == "flow" else None,
        )
    for flow in flows:
        took = between(flow.created_at, flow.finished_at or now)
        labels = ", ".join(f"{key}={value}" for key, value in flow.labels.items())
        nodes, began = f"{flow.completed:,}/{flow.total:,}", flow.created_at
        form = "%Y-%m-%d %H:%M:%S" if full else "%m-%d %H:%M"
        submitted = "" if began is None else began.astimezone().strftime(form)
        cells = (flow.id, flow.name, str(flow.state), nodes, submitted, took, short(flow.reason, 80))
        table.add_row(*map(Text, (*cells, str(flow.generation), labels)[: len(columns)]))
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
        if (age := from_text(text)) is not None:
            return now - age
        moment = datetime.fromisoformat(text)
        return moment.astimezone() if moment.tzinfo is None else moment
    except (ValueError, OverflowError) as exc:
        raise ConfigurationError(
            f"--since must be an age such as 90m, 2h or 7d, or a time such as 2026-01-31T06:00, "
            f"got {shown(text)}"
        ) from exc
