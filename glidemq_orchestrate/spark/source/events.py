"""The table of events: in parts by time, and between two positions, counted to detect losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.errors import GlideMQError, ProtocolError
from glidemq_orchestrate.events import Event, event_of
from glidemq_orchestrate.jobs.pages import length
from glidemq_orchestrate.spark.source.jobs import count, queues_of, text
from glidemq_orchestrate.spark.source.options import RetryingClient
from glidemq_orchestrate.spark.source.part import Position, Span, cut_stream, entries, grouped
from glidemq_orchestrate.spark.source.scan import Scan
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, command, parts
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

PAGE: Final = 200
QUEUES_PER_TRIP: Final = 200
Part: TypeAlias = tuple[tuple[str, Span], ...]
Row: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the events of a queue: the id of the last event before it, and the number until then."""

    id: str = "0-0"
    count: int = 0


START: Final = Mark()


def plan(client: RetryingClient, scan: Scan) -> list[Part]:
    """The parts in which the events are read, with small parts combined."""
    queues = queues_of(client, scan.queues)
    found = client.ask(lambda: _spans(client.prefix, queues, scan))
    return list(grouped(found, [span.size for _, span in found], scan.rows))


def rows(client: RetryingClient, part: Part, scan: Scan) -> Iterator[list[Row]]:
    """The rows of a part, page by page."""
    del scan  # the part contains the whole selection
    for queue, span in part:
        for events in pages(client, span):
            yield [row(queue, event) for event in events]


def pages(client: RetryingClient, span: Span) -> Iterator[list[Event]]:
    """The events of a part, page by page."""
    return (found for found in client.pages(partial(_page, span)) if found)


def row(queue: str, event: Event) -> Row:
    """The row of an event."""
    fields: Mapping[str, str] = {text(name) or "": text(value) or "" for name, value in event.fields.items()}
    return (
        queue, event.id, number(event.id.partition("-")[0]), text(event.kind), text(event.job),
        text(event.flow_id), count(str(event.generation)) if event.flow_id else None, fields,
    )  # fmt: skip


def _spans(prefix: str, queues: Sequence[str], scan: Scan) -> Op[list[tuple[str, Span]]]:
    """The parts in which the events of queues can be read, with their queues."""
    found: list[tuple[str, Span]] = []
    for some in parts([QueueKeys(prefix, queue) for queue in queues], QUEUES_PER_TRIP):
        lengths = yield from ask_all([length(queue, "events") for queue in some])
        for queue, size in zip(some, lengths, strict=True):
            if size:
                spans = yield from cut_stream(queue.key("events"), scan.times, size, scan.rows)
                found += [(queue.queue, span) for span in spans]
    return found


def _page(span: Span, at: Position | None) -> Op[tuple[list[Event], Position | None]]:
    """The next page of a part, which begins with None."""
    found = yield from ask(entries(span.key, at.low if at else span.low, span.high, PAGE))
    events = [event_of(entry_id, fields) for entry_id, fields in found]
    return events, Position(f"({events[-1].id}") if len(events) == PAGE else None


def extent(key: str) -> Call[tuple[str, int, int]]:
    """The newest id that a stream ever had, and its past and present numbers of entries; fails without it."""

    def decode(reply: Any) -> tuple[str, int, int]:
        info = replies.mapping(reply)
        return str(info["last-generated-id"]), int(info["entries-added"]), int(info["length"])

    return command("XINFO", "STREAM", key, decode=decode)


def marks(prefix: str, queues: Sequence[str], *, oldest: bool = False) -> Op[dict[str, Mark]]:
    """The position after the newest event of each queue, or before the oldest stored event."""
    found: dict[str, Mark] = {}
    for some in parts(queues, QUEUES_PER_TRIP):
        asking = [extent(QueueKeys(prefix, queue).key("events")) for queue in some]
        for queue, reply in zip(some, (yield from ask_each(asking)), strict=True):
            if isinstance(reply, ProtocolError):  # no event yet
                found[queue] = START
            elif isinstance(reply, GlideMQError):
                raise reply
            else:
                newest, added, kept = reply
                found[queue] = Mark(START.id, added - kept) if oldest else Mark(newest, added)
    return found


def between(queue: QueueKeys, low: Mark, high: Mark) -> Span:
    """The events between two positions."""
    return Span("stream", queue.key("events"), f"({low.id}", high.id, max(high.count - low.count, 0))
