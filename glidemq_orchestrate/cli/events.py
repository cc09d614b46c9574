"""``glidemq events``: the events of a queue, live."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer

from glidemq_orchestrate.cli.shell import Prefix, QueueOption, Url, errors, print_text, reports_errors
from glidemq_orchestrate.clients.events import Event, EventFilter, EventKind, EventReader
from glidemq_orchestrate.foundation.suggestions import nearest
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def events(
    queue: QueueOption,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start after this position; 0-0: with the oldest stored event; default: new events only.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new events.")] = True,
    kind: Annotated[
        list[str] | None, typer.Option(help="Print only events of this kind. Repeatable.")
    ] = None,
    job: Annotated[list[str] | None, typer.Option(help="Print only events of this job. Repeatable.")] = None,
    flow: Annotated[
        list[str] | None, typer.Option(help="Print only events of this flow. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Follow the events of a queue until Ctrl-C, one line each. A line marks a gap of lost events.

    The stored events, without waiting for new ones: --from 0-0 --no-follow.
    """
    where = EventFilter(kinds=kind or None, jobs=job or None, flows=flow or None)
    _hint(queue, kind or (), start, follow=follow)
    idle_timeout = None if follow else timedelta(milliseconds=100)
    with EventReader(
        queue, url, prefix=prefix, position=start, where=where, idle_timeout=idle_timeout
    ) as reader:
        for event in reader:
            print_text(_json(event) if as_json else _line(event))


def _hint(queue: str, kinds: Sequence[str], start: str | None, *, follow: bool) -> None:
    """Print which kinds are unknown and, in a terminal, that the command waits."""
    for kind in kinds:
        if kind not in tuple(EventKind):
            known = nearest(kind, EventKind)
            hint = f"did you mean {known}?" if known else f"known: {', '.join(EventKind)}."
            errors.print(f"Neither glide-mq nor this package writes {kind!r} events; {hint}", markup=False)
    if follow and errors.is_terminal:
        new = "new events" if start is None else f"events after {start}"
        errors.print(f"Waiting for {new} of queue {queue}; Ctrl-C ends this.", markup=False, style="dim")


def _json(event: Event) -> str:
    about: dict[str, str | int] = {
        "id": event.id,
        "kind": event.kind,
        "job": event.job_id,
        "flow": event.flow_id,
    }
    about |= {"generation": event.generation} if event.flow_id else {}
    return json.dumps(about | {"fields": dict(event.fields)})


def _line(event: Event) -> str:
    if event.is_gap:
        return f"{event.id}  events after this position were lost"
    # Payloads only with --json: the output of a terminal may be recorded.
    about = event.flow_id or event.job_id
    if event.generation:
        about += f" generation {event.generation}"
    return f"{event.id}  {event.kind}  {about}  {event.fields.get('name', '')}".rstrip()
