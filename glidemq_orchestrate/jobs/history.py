"""The history of a job: what happened to it, and when. ``lua/shared/history.lua`` records it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from glidemq_orchestrate import events
from glidemq_orchestrate.events import EventKind
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.job import START_FIELDS, started
from glidemq_orchestrate.jobs.job_hash import JobField, missing
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number

MAX_LINES: Final = 99
HELD: Final = ("active", "lost", "taken-back")
ENDS: Final = ("completed", "skipped", "failed")
_FIELDS: Final[tuple[JobField, ...]] = (
    *START_FIELDS, "timestamp", "failedReason", "gmo:skipped", "gmo:history",
)  # fmt: skip
_WANTED: Final = re.compile('"history": ?true')
_NEAR: Final = timedelta(seconds=5)
_MAX_PAGES: Final = 20  # of 100 events; the stream has about 1,000


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Something that happened to a job.

    Attributes:
        at: When, in server time.
        kind: ``added``; ``active``: a worker started it; ``completed``, ``skipped`` or ``failed``;
            ``retrying``: an attempt failed, and another one follows; ``retried``: a user ran it again;
            ``lost``: its worker was lost; ``taken-back``: a user took it from its worker; ``returned``: its
            worker handed it back; ``delay-changed``, ``priority-changed``, ``promoted``, ``suspended``,
            ``waiting-children``; ``tracked``: recording began. Without a record also other kinds of events.
        detail: The worker, the reason, or the new value; only the first 200 bytes of its first line.
    """

    at: datetime
    kind: str
    detail: str = ""

    @property
    def worker(self) -> str | None:
        """The worker that started, lost or gave back the job; None for other entries, or if unknown."""
        return (self.detail or None) if self.kind in HELD else None


class JobHistory(list[HistoryEntry]):
    """What happened to a job, oldest first.

    ``is_partial``: entries may be missing, as the job records none, recorded more than 99, was tracked later,
    or ran on a Node worker.
    """

    is_partial = False


def noted(queue: QueueKeys, job_id: str, change: Call[None], now_ms: int, *entry: str) -> Op[None]:
    """Change a job, and add kind and detail to its history; without one, only the change is sent."""
    calls: list[Call[Any]] = [change, _records(queue, job_id)]
    _, is_recorded = yield from ask_all(calls)
    if is_recorded:
        yield from ask(note(queue, job_id, now_ms, *entry))


def _records(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether a job records a history; ``lua/shared/history.lua`` has the same rule."""

    def decode(reply: Any) -> bool:
        recorded, options = reply
        return recorded is not None or _WANTED.search(options or "") is not None

    return job_hash.get_some(queue, job_id, ("gmo:history", "opts"), decode)


def begin(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Let a tracked job record its history from now on."""
    yield from ask(note(queue, job_id, now_ms, "tracked", "", "1"))


def note(queue: QueueKeys, job_id: str, now_ms: int, *words: str) -> Call[int]:
    """Add an entry to the history of a job that records one: kind, detail and, to begin to record, 1."""
    return function("gmo_note_history", [queue.job(job_id)], (now_ms, job_id, *words), replies.integer)


def history(queue: QueueKeys, job_id: str) -> Op[JobHistory]:
    """Read the history of a job."""
    fields = yield from ask(_fields(queue, job_id))
    if "state" not in fields:
        raise missing(queue, job_id)
    text = fields.get("gmo:history")
    if text is None:
        found = yield from _from_events(queue, job_id, number(fields.get("timestamp")))
    else:
        found = _recorded(text)
    known = len(found)
    found += [fact for fact in _facts(fields) if not _has(found, fact, exact=text is not None)]
    is_foreign = any(entry.kind == EventKind.ACTIVE for entry in found[known:])
    is_tracked_later = any(entry.kind == "tracked" for entry in found)
    entries = JobHistory(sorted(found, key=lambda entry: entry.at))
    created = moment(fields.get("timestamp"))
    if created is not None and text is not None:
        entries.insert(0, HistoryEntry(created, EventKind.ADDED))
    entries.is_partial = text is None or known >= MAX_LINES or is_foreign or is_tracked_later
    return entries


def _fields(queue: QueueKeys, job_id: str) -> Call[dict[JobField, str]]:
    def decode(reply: Any) -> dict[JobField, str]:
        return {name: value for name, value in zip(_FIELDS, reply, strict=True) if value is not None}

    return job_hash.get_some(queue, job_id, _FIELDS, decode)


def _recorded(text: str) -> list[HistoryEntry]:
    """The recorded lines; what is not valid is omitted."""
    found = []
    for line in readable(text).split("\n"):
        ms, kind, detail = (*line.split(" ", 2), "", "")[:3]
        at = moment(ms)
        if at is not None and kind:
            found.append(HistoryEntry(at, kind, detail))
    return found


def _facts(fields: Mapping[JobField, str]) -> list[HistoryEntry]:
    """What the fields of a job show: when it was added, last started, and ended."""
    state = fields.get("state", "")
    begun = moment(started(*map(fields.get, START_FIELDS)))
    ended = moment(fields.get("finishedOn")) if state in ENDS else None
    found = [] if begun is None else [HistoryEntry(begun, EventKind.ACTIVE)]
    if ended is not None and "gmo:skipped" in fields:
        found.append(HistoryEntry(ended, "skipped", _short(fields["gmo:skipped"])))
    elif ended is not None:
        reason = fields.get("failedReason", "") if state == "failed" else ""
        found.append(HistoryEntry(ended, state, _short(reason)))
    if "gmo:history" not in fields and (created := moment(fields.get("timestamp"))):
        found.insert(0, HistoryEntry(created, EventKind.ADDED))
    return found


def _short(text: str) -> str:
    return readable(text).partition("\n")[0][:200]


def _has(found: Sequence[HistoryEntry], fact: HistoryEntry, *, exact: bool) -> bool:
    """Whether a fact is known already: recorded at that very time, or an event of about that time."""
    return any(
        entry.kind == fact.kind and (entry.at == fact.at if exact else entry.at >= fact.at - _NEAR)
        for entry in found
    )


def _from_events(queue: QueueKeys, job_id: str, since_ms: int) -> Op[list[HistoryEntry]]:
    """What the events of the queue still say about a job, at most about the last 1,000 of them."""
    found = list[HistoryEntry]()
    position = f"{max(since_ms - int(_NEAR.total_seconds() * 1000), 0)}-0"
    for _ in range(_MAX_PAGES):
        page = yield from events.read(queue, position, None)
        for event in page:
            if event.job_id == job_id and event.kind not in (EventKind.PROGRESS, EventKind.USAGE):
                detail = event.fields.get("failedReason") or event.fields.get("priority") or ""
                found.append(HistoryEntry(event.at, event.kind, _short(detail)))
        if len(page) < events.READ_COUNT:
            break
        position = page[-1].id
    return found
