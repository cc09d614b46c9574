"""Reading the events stream of a queue from a position."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command
from glidemq_orchestrate.wire.codec import decode, readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, read_progress, span

__all__ = ["Event", "EventFilter"]

READ_COUNT = 100


def first_event(queue: QueueKeys) -> Call[str | None]:
    """The id of the oldest event that has not been trimmed; None without one."""
    words = ("XRANGE", queue.key("events"), "-", "+", "COUNT", 1)
    return command(*words, decode=lambda reply: reply[0][0] if reply else None)


def has_lost_events(queue: QueueKeys) -> Call[bool]:
    """Whether events were ever trimmed; an error without a stream."""

    def decode(reply: Any) -> bool:
        info = replies.mapping(reply)
        return int(info["entries-added"]) > int(info["length"])

    return command("XINFO", "STREAM", queue.key("events"), decode=decode)


def read_events(queue: QueueKeys, position: str, count: int, block_ms: int | None) -> Call[Any]:
    """Events after ``position``; waits at most ``block_ms`` for one, not at all if it is None."""
    block: tuple[str | int, ...] = () if block_ms is None else ("BLOCK", block_ms)
    words = ("XREAD", "COUNT", count, *block, "STREAMS", queue.key("events"), position)
    return command(
        *words, decode=replies.stream_entries, blocks_for=None if block_ms is None else block_ms / 1000
    )


class EventKind(StrEnum):
    """The events that glide-mq and this package write. Other kinds are plain strings."""

    ADDED = "added"
    PROMOTED = "promoted"
    ACTIVE = "active"
    PROGRESS = "progress"
    USAGE = "usage"
    COMPLETED = "completed"
    RETRYING = "retrying"
    FAILED = "failed"
    EXPIRED = "expired"
    STALLED = "stalled"
    REVOKED = "revoked"
    REMOVED = "removed"
    PRIORITY_CHANGED = "priority-changed"
    DELAY_CHANGED = "delay-changed"
    WAITING_CHILDREN = "waiting-children"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    PAUSED = "paused"
    CLEANED = "cleaned"
    DRAINED = "drained"
    RETRIED = "retried"
    GROUP_RATE_LIMITED = "group-rate-limited"
    SCHEDULER_CHANGED = "scheduler.changed"
    """A schedule was written that is due before all others of its queue."""
    LIMITS_CHANGED = "limits.changed"
    """The concurrency or the rate limit of the queue was set."""
    FLOW_COMPLETED = "flow.completed"
    FLOW_FAILED = "flow.failed"
    FLOW_CANCELLED = "flow.cancelled"
    EVENTS_LOST = "gmo.events-lost"
    """Inserted by the reader: events after its position were trimmed before they were read."""


_POSITION: Final = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?", re.ASCII)
_COUNTS: Final = frozenset({EventKind.CLEANED, EventKind.DRAINED, EventKind.RETRIED})


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the events stream.

    Attributes:
        id: The position after it: reading continues there.
        kind: A value of ``EventKind``, or another string.
        job_id: The job; empty for events of a flow. Unprocessed: see ``job`` and ``count``.
        flow_id: The flow, for ``flow.*`` events; otherwise empty.
        fields: The other fields, as stored: all strings.
    """

    id: str
    kind: str
    job_id: str
    flow_id: str
    fields: Mapping[str, str]

    @property
    def at(self) -> datetime:
        """When the server stored it; ``datetime.max`` if the id holds no valid time."""
        return moment(self.id.partition("-")[0]) or datetime.max.replace(tzinfo=UTC)

    @property
    def is_gap(self) -> bool:
        """Whether events before this one were lost: then read the state of jobs and flows again."""
        return self.kind == EventKind.EVENTS_LOST

    @property
    def job(self) -> str | None:
        """The id of the job; None for events of the whole queue and for those with a ``count``."""
        is_queue = self.kind in (EventKind.PAUSED, EventKind.RESUMED) and self.job_id == "0"
        return None if self.kind in _COUNTS or is_queue else self.job_id or None

    @property
    def count(self) -> int | None:
        """For ``cleaned``, ``drained`` and ``retried``: the number of jobs."""
        return _whole(self.job_id) if self.kind in _COUNTS else None

    @property
    def generation(self) -> int:
        """For ``flow.*`` events: the generation of the flow, from 0; 0 for all other events."""
        return (_whole(self.fields.get("generation")) or 0) if self.flow_id else 0

    @property
    def result(self) -> Any:
        """For ``completed``: what the handler returned. Raises DecodeError if it is not valid JSON."""
        return decode(self.fields.get("returnvalue"), where=f"result of job {self.job_id}")

    @property
    def progress(self) -> Any:
        """For ``progress`` and ``usage``: the reported value."""
        return read_progress(self.fields.get("data"))

    @property
    def failed_reason(self) -> str | None:
        """For ``failed`` and ``retrying``: why."""
        reason = self.fields.get("failedReason")
        return None if reason is None else readable(reason)

    @property
    def attempts_made(self) -> int | None:
        """For ``retrying``: the number of attempts so far."""
        return _whole(self.fields.get("attemptsMade"))

    @property
    def delay(self) -> timedelta | None:
        """For ``retrying`` and ``delay-changed``: the pause before the next attempt."""
        delay_ms = _whole(self.fields.get("delay"))
        return None if delay_ms is None else span(delay_ms)

    @property
    def priority(self) -> int | None:
        """For ``priority-changed``: the new priority."""
        return _whole(self.fields.get("priority"))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a reader returns: all by default. A gap is always returned."""

    kinds: Collection[str] | None = None
    jobs: Collection[str] | None = None
    flows: Collection[str] | None = None

    def __post_init__(self) -> None:
        """Refuse a string: ``in`` would match any part of it."""
        check_fields(self, ConfigurationError)

    def takes(self, event: Event) -> bool:
        """Whether the event matches."""
        return event.is_gap or (
            (self.kinds is None or event.kind in self.kinds)
            and (self.jobs is None or event.job in self.jobs)
            and (self.flows is None or event.flow_id in self.flows)
        )


def last_event(queue: QueueKeys) -> Call[Event | None]:
    """The newest event; None without one."""

    def decode_entry(reply: Any) -> Event | None:
        return event_of(reply[0][0], replies.pairs(reply[0][1] or [])) if reply else None

    return command("XREVRANGE", queue.key("events"), "+", "-", "COUNT", 1, decode=decode_entry)


def tail(queue: QueueKeys) -> Op[str]:
    """The position after the newest event."""
    return after((yield from ask(last_event(queue))))


def after(event: Event | None) -> str:
    """The position after an event; the start of the stream without one."""
    return event.id if event else "0-0"


def read(queue: QueueKeys, position: str, block_ms: int | None) -> Op[list[Event]]:
    """Up to 100 events after a position; waits at most ``block_ms`` for the first (None: not at all)."""
    return _events((yield from ask(_reading(queue, position, block_ms))))


def read_with_gap(queue: QueueKeys, position: str, block_ms: int | None) -> Op[list[Event]]:
    """``read``; if events after the position were trimmed away, the first one returned is a gap."""
    # Events trimmed between the two calls may be reported as lost although they were read; never the reverse.
    check_position(position)
    streams, first = yield from ask_all([_reading(queue, position, block_ms), first_event(queue)])
    events = _events(streams)
    is_gap = bool(events) and entry_order(first or "0-0") > entry_order(position)
    if is_gap and entry_order(position) == (0, 0):  # the start of the stream: the server's count decides
        is_gap = yield from ask(has_lost_events(queue))
    return [Event(position, EventKind.EVENTS_LOST, "", "", {}), *events] if is_gap else events


def check_position(position: str) -> str:
    """Return the position if it is valid for a stream.

    Raises:
        ConfigurationError: It is not.
    """
    if not _POSITION.fullmatch(position) or max(map(int, position.split("-"))) >= 2**64:
        raise ConfigurationError(f"{position!r:.60} is not a position of an event reader")
    return position


def _reading(queue: QueueKeys, position: str, block_ms: int | None) -> Call[Any]:
    wait = None if block_ms is None else max(block_ms, 1)  # BLOCK 0 would wait forever
    return read_events(queue, position, READ_COUNT, wait)


def _events(streams: Mapping[str, list[tuple[str, dict[str, str]]]]) -> list[Event]:
    return [event_of(entry_id, fields) for entries in streams.values() for entry_id, fields in entries]


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(float(text))
    except (ValueError, OverflowError):
        return None


def event_of(entry_id: str, fields: Mapping[str, str]) -> Event:
    """The event that an entry of the stream holds."""
    rest = {name: value for name, value in fields.items() if name not in ("event", "jobId", "flowId")}
    return Event(entry_id, fields.get("event", ""), fields.get("jobId", ""), fields.get("flowId", ""), rest)


def entry_order(entry_id: str) -> tuple[int, int]:
    """The sort key of an entry."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)
