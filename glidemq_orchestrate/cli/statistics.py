"""``glidemq queue statistics``: how long the jobs of a queue waited and ran on a day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import typer
from rich.table import Column, Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    QueueName,
    Url,
    console,
    print_json,
    print_rows,
    reports_errors,
)
from glidemq_orchestrate.clients.queue import Durations, HandlerStatistics, Queue, QueueStatistics
from glidemq_orchestrate.errors import HandlerNotFound
from glidemq_orchestrate.foundation.suggestions import did_you_mean
from glidemq_orchestrate.foundation.texts import counted
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

COLUMNS: Final = (
    "done", "failed", "retried", "wait p50", "wait p95", "run mean", "run p50", "run p95", "run p99"
)  # fmt: skip
PERCENTILES: Final = (50, 95, 99)
MAX_BARS: Final = 20
BAR_WIDTH: Final = 40


@reports_errors
def statistics(
    queue: QueueName,
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A day in UTC, at most 30 days ago; today.")
    ] = None,
    handler: Annotated[str | None, typer.Option(help="Show only this handler.")] = None,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Show how long the jobs of a day waited and ran, by handler, with a histogram.

    Counts what workers of this package ran and reported: every five seconds, and when they stop.
    """
    with Queue(queue, url, prefix=prefix) as client:
        found = client.statistics(day.date() if day else None)
    rows = [one for one in found.handlers if handler in (None, one.handler)]
    if handler is not None and not rows:
        known = [one.handler for one in found.handlers]
        problem = f"queue {queue} has no statistics of handler {handler!r} on {found.day}"
        near = did_you_mean(handler, known) or f" (known: {', '.join(known) or 'none'})"
        raise HandlerNotFound({queue: [handler]}, {queue: known}, problem + near)
    if as_json:
        whole = {"day": found.day.isoformat(), **statistics_row(found)}
        print_json(whole | {"handlers": [{"handler": one.handler, **statistics_row(one)} for one in rows]})
        return
    if not rows:
        console.print(Text(f"No job has run in queue {queue} on {found.day} (UTC)."), style="dim")
        return
    table = Table(
        "handler",
        *(Column(name, justify="right") for name in COLUMNS),
        box=None,
        padding=(0, 2, 0, 0),
    )
    for one in rows:
        spans = [one.waiting.percentile(50), one.waiting.percentile(95)]
        spans += [one.running.mean]
        spans += [one.running.percentile(percent) for percent in PERCENTILES]
        counts = f"{one.running.count:,}", f"{one.failures:,}", f"{one.retries:,}"
        table.add_row(Text(one.handler or "(others)"), *counts, *map(short_span, spans))
    print_rows(table)
    shown = found if handler is None else rows[0]
    for title, durations in (("waiting", shown.waiting), ("running", shown.running)):
        if durations.count:
            console.print(Text(f"\n{title}"))
            print_rows(_bars(durations))


def statistics_row(one: HandlerStatistics | QueueStatistics) -> dict[str, Any]:
    """Statistics for JSON; durations in seconds."""
    return {
        "failures": one.failures,
        "retries": one.retries,
        **{name: _durations(found) for name, found in (("waiting", one.waiting), ("running", one.running))},
    }


def _durations(durations: Durations) -> dict[str, Any]:
    """Durations in seconds."""
    spans = {
        "mean": durations.mean,
        "deviation": durations.deviation,
        **{f"p{percent}": durations.percentile(percent) for percent in PERCENTILES},
    }
    return {
        "count": durations.count,
        **{name: None if span is None else span.total_seconds() for name, span in spans.items()},
        "buckets": [
            {"from": one.start.total_seconds(), "to": one.end.total_seconds(), "count": one.count}
            for one in durations.buckets
        ],
    }


def summary(durations: Mapping[str, Any]) -> str:
    """The percentiles of ``_durations`` in one line."""
    if not durations["count"]:
        return "no job"
    spans = (f"p{one} {short_span(timedelta(seconds=durations[f'p{one}']))}" for one in PERCENTILES)
    return f"{', '.join(spans)} ({counted(durations['count'], 'job')})"


def _bars(durations: Durations) -> Table:
    """The histogram; neighbouring buckets share a line so that it fits on a screen."""
    size = -(-len(durations.buckets) // MAX_BARS)
    groups = [durations.buckets[at : at + size] for at in range(0, len(durations.buckets), size)]
    counts = [sum(one.count for one in group) for group in groups]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for group, count in zip(groups, counts, strict=True):
        bar = "█" * max(round(count / max(counts) * BAR_WIDTH), 1)
        table.add_row(f"{short_span(group[0].start)} to {short_span(group[-1].end)}", bar, f"{count:,}")
    return table


def short_span(span: timedelta | None) -> str:
    """A duration with three digits, and its unit; ``-`` for None."""
    if span is None:
        return "-"
    seconds = span.total_seconds()
    for unit, least in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= least:
            return f"{seconds / least:.3g} {unit}"
    return f"{seconds * 1_000:.3g} ms"
