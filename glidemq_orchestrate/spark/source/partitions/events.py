"""The events of queues: in parts by time, and between two positions, counted to detect losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.errors import GlideMQError, ProtocolError
from glidemq_orchestrate.events import Event, event_of
from glidemq_orchestrate.jobs import pages
from glidemq_orchestrate.spark.source.partitions.part import At, Span, Times, cut_stream, entries, extent
from glidemq_orchestrate.wire.call import Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE: Final = 200
QUEUES_PER_TRIP: Final = 200


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the events of a queue: the id of the last event before it, and the number until then."""

    id: str = "0-0"
    count: int = 0


START: Final = Mark()


def plan(prefix: str, queues: Sequence[str], times: Times, size: int) -> Op[list[tuple[str, Span]]]:
    """The parts in which the events of queues can be read, with their queues."""
    found: list[tuple[str, Span]] = []
    for first in range(0, len(queues), QUEUES_PER_TRIP):
        some = [QueueKeys(prefix, queue) for queue in queues[first : first + QUEUES_PER_TRIP]]
        lengths = yield from ask_all([pages.length(queue, "events") for queue in some])
        for queue, length in zip(some, lengths, strict=True):
            if length:
                spans = yield from cut_stream(queue.key("events"), times, length, size)
                found += [(queue.queue, span) for span in spans]
    return found


def page(span: Span, at: At | None) -> Op[tuple[list[Event], At | None]]:
    """The next page of a part, which begins with None."""
    found = yield from ask(entries(span.key, at.low if at else span.low, span.high, PAGE))
    events = [event_of(entry_id, fields) for entry_id, fields in found]
    return events, At(f"({events[-1].id}") if len(events) == PAGE else None


def marks(prefix: str, queues: Sequence[str], *, oldest: bool = False) -> Op[dict[str, Mark]]:
    """The position after the newest event of each queue, or before the oldest stored event."""
    found: dict[str, Mark] = {}
    for first in range(0, len(queues), QUEUES_PER_TRIP):
        some = queues[first : first + QUEUES_PER_TRIP]
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
