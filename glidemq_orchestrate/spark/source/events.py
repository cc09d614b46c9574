"""The rows of the table of events: a read of the stored events, and a stream of future events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from glidemq_orchestrate.events import Event
from glidemq_orchestrate.spark.source.jobs import count, queues_of, text
from glidemq_orchestrate.spark.source.options import Link
from glidemq_orchestrate.spark.source.partitions import events as ops
from glidemq_orchestrate.spark.source.partitions.part import Span, packed
from glidemq_orchestrate.spark.source.scan import Scan
from glidemq_orchestrate.wire.stored import number

Part: TypeAlias = tuple[tuple[str, Span], ...]
Row: TypeAlias = Sequence[Any]


def plan(link: Link, wanted: Scan) -> list[Part]:
    """The parts in which the events are read, with small parts combined."""
    queues = queues_of(link, wanted)
    found = link.ask(lambda: ops.plan(link.prefix, queues, wanted.times, wanted.rows))
    return list(packed(found, [span.size for _, span in found], wanted.rows))


def rows(link: Link, part: Part, wanted: Scan) -> Iterator[list[Row]]:
    """The rows of a part, page by page."""
    del wanted  # the part contains the whole selection
    for queue, span in part:
        for events in pages(link, span):
            yield [row(queue, event) for event in events]


def pages(link: Link, span: Span) -> Iterator[list[Event]]:
    """The events of a part, page by page."""
    return (found for found in link.pages(partial(ops.page, span)) if found)


def row(queue: str, event: Event) -> Row:
    """The row of an event."""
    fields: Mapping[str, str] = {text(name) or "": text(value) or "" for name, value in event.fields.items()}
    return (
        queue, event.id, number(event.id.partition("-")[0]), text(event.kind), text(event.job),
        text(event.flow_id), count(str(event.generation)) if event.flow_id else None, fields,
    )  # fmt: skip
