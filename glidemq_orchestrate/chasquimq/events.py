"""Reading the events of a queue of ChasquiMQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.events import check_position
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.stored import moment, span

COUNT: Final = 100
STEP_MS: Final = 1_000
REMEMBERED: Final = 10_000
MAX_MICROSECONDS: Final = 10**16

Entries = list[tuple[str, dict[str, str]]]


class ChasquiEventKind(StrEnum):
    """The events that workers write. Other kinds are plain strings."""

    WAITING = "waiting"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRY_SCHEDULED = "retry-scheduled"
    DLQ = "dlq"
    DRAINED = "drained"
    DELAYED = "delayed"


@dataclass(frozen=True, slots=True)
class ChasquiEvent:
    """One event.

    Attributes:
        id: Its position; reading continues after it.
        kind: A value of ``ChasquiEventKind``, or another string.
        job_id: The job; None for events of the queue, and of entries that are no jobs.
        name: The name of the job; empty if the event has none.
        fields: The other fields, as stored: all strings.
        is_repeat: Whether this reader has seen an event of this kind for the same job and attempt: the job
            was handed out again, or added again with the same id.
    """

    id: str
    kind: str
    job_id: str | None
    name: str
    fields: Mapping[str, str]
    is_repeat: bool = False

    @property
    def at(self) -> datetime | None:
        """When it happened, by the clock of the worker."""
        return moment(self.fields.get("ts"))

    @property
    def attempt(self) -> int | None:
        """The number of the run, from 1; for ``dlq`` how many runs there were."""
        return _whole(self.fields.get("attempt"))

    @property
    def reason(self) -> str | None:
        """For ``failed`` the text of the exception, for ``dlq`` a value of ``DeadReason``."""
        reason = self.fields.get("reason")
        return None if reason is None else readable(reason)

    @property
    def duration(self) -> timedelta | None:
        """For ``completed`` and ``failed``: how long the handler ran."""
        micros = _whole(self.fields.get("duration_us"))
        return None if micros is None else timedelta(microseconds=min(micros, MAX_MICROSECONDS))

    @property
    def backoff(self) -> timedelta | None:
        """For ``retry-scheduled``: the pause before the next run."""
        backoff_ms = _whole(self.fields.get("backoff_ms"))
        return None if backoff_ms is None else span(backoff_ms)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def event_of(entry_id: str, fields: Mapping[str, str], *, is_repeat: bool = False) -> ChasquiEvent:
    """The event that an entry holds."""
    rest = {name: value for name, value in fields.items() if name not in ("e", "id", "n")}
    job_id = readable(fields.get("id", "")) or None
    return ChasquiEvent(
        entry_id, readable(fields.get("e", "")), job_id, readable(fields.get("n", "")), rest, is_repeat
    )


def last_entry(keys: ChasquiKeys) -> Call[str]:
    """The position of the newest event; ``0-0`` without one."""
    words = ("XREVRANGE", keys.key("events"), "+", "-", "COUNT", 1)
    return command(*words, decode=lambda reply: reply[0][0] if reply else "0-0")


def read(keys: ChasquiKeys, position: str, wait_ms: int) -> Call[Entries]:
    """The events after a position; waits for the first."""

    def decode(reply: Any) -> Entries:
        return [entry for entries in replies.stream_entries(reply).values() for entry in entries]

    words = ("XREAD", "COUNT", COUNT, "BLOCK", max(wait_ms, 1), "STREAMS", keys.key("events"), position)
    return command(*words, decode=decode, blocks_for=wait_ms / 1000)


@dataclass(slots=True)
class EventStream:
    """A reader of the events of one queue.

    Attributes:
        keys: The keys of the queue.
        clock: For the idle time.
        position: The last event that was read; None: only events from now on.
        idle_ms: The reader ends after this long without an event; None: never.
        seen: The last events that may be repeated.
    """

    keys: ChasquiKeys
    clock: Clock
    position: str | None
    idle_ms: int | None
    seen: dict[tuple[str, str, str], None] = field(default_factory=dict)
    last_ms: int | None = None

    def step(self) -> Op[Sequence[ChasquiEvent]] | None:
        """The operation that reads the next events; None after the idle time."""
        now_ms = self.clock.monotonic_ms()
        self.last_ms = now_ms if self.last_ms is None else self.last_ms
        if self.idle_ms is not None and now_ms - self.last_ms >= self.idle_ms:
            return None
        return self._read()

    def end(self) -> None:
        """There is nothing to clean up."""

    def _read(self) -> Op[Sequence[ChasquiEvent]]:
        if self.position is None:
            self.position = yield from ask(last_entry(self.keys))
        wait_ms = STEP_MS if self.idle_ms is None else min(STEP_MS, self.idle_ms)
        found = yield from ask(read(self.keys, self.position, wait_ms))
        if found:
            self.position, self.last_ms = found[-1][0], self.clock.monotonic_ms()
        return [event_of(*entry, is_repeat=self._is_repeat(entry[1])) for entry in found]

    def _is_repeat(self, fields: Mapping[str, str]) -> bool:
        mark = (fields.get("e", ""), fields.get("id", ""), fields.get("attempt", ""))
        if not (mark[1] and mark[2]):
            return False
        is_known = mark in self.seen
        self.seen[mark] = None
        if len(self.seen) > REMEMBERED:
            del self.seen[next(iter(self.seen))]
        return is_known


def stream(keys: ChasquiKeys, clock: Clock, position: str | None, idle_ms: int | None) -> EventStream:
    """A reader that begins after a position.

    Raises:
        ConfigurationError: The position is not valid.
    """
    return EventStream(keys, clock, position and check_position(position), idle_ms)
