"""Writes and fires schedulers: once per slot, with any number of Python and Node workers.

A Node worker holds the lock from reading the entries until its transaction has written them. While it is
held, our functions refuse. They also compare the entry with the text from which the new state was computed.
So neither side can fire a slot that the other has fired.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    PayloadTooLarge,
    ScheduleBusy,
    ScheduleNotFound,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.values import SCHEDULE
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.schedules import entries
from glidemq_orchestrate.schedules.entries import StoredSchedule, Texts
from glidemq_orchestrate.schedules.schedule import JobTemplate, Schedule, ScheduleEntry
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, isolated
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES, is_utf8
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

AGAIN_MS: Final = 50
MIN_MS: Final = 20
SHARE: Final = 8  # an eighth of the time that a run has taken passes before its end is checked again
REPORTED_MS: Final = 2_000  # our worker reports the end of its job; this covers its death
LEASE_MS: Final = 1_000
SKIPPED_MS: Final = 60_000
SEARCH_PAGE: Final = 200
SEARCH_PAGES: Final = 5
CLOCKS_APART_MS: Final = 60_000
_IDENTITY: Final = ("pattern", "every", "repeatAfterComplete", "tz", "startDate", "endDate")


def upsert(
    queue: QueueKeys, name: str, schedule: Schedule, template: JobTemplate, now_ms: int
) -> Op[ScheduleEntry]:
    """Write a schedule; an unchanged schedule keeps its next time, or stays finished.

    Raises:
        ConfigurationError: The schedule has no slot, or the template does not fit it.
        ScheduleBusy: A worker is firing; nothing was written.
    """
    made = _new_entry(name, schedule, template)
    seen = yield from _texts(queue, name)
    old = StoredSchedule.parse(seen.newest)
    if old is not None and any(old.wire.get(key) != made.wire.get(key) for key in _IDENTITY):
        old = None
    if old is not None:
        made = made.with_values(iterationCount=old.number("iterationCount"), lastRun=old.wire.get("lastRun"))
    keeps = old is not None and old.is_live
    stored = made.with_values(nextRun=old.wire.get("nextRun") if old and keeps else made.first_run(now_ms))
    return (yield from _store(queue, name, seen, stored, now_ms, paused=bool(seen.paused)))


def _store(  # noqa: PLR0913  an entry
    queue: QueueKeys, name: str, seen: Texts, stored: StoredSchedule, now_ms: int, *, paused: bool
) -> Op[ScheduleEntry]:
    """Write an entry where it belongs: to the finished ones, the paused ones, or those of one library."""
    if stored.is_over or stored.is_finished:
        stored, paused = stored.with_values(nextRun=None), False
        texts = Texts(finished=stored.text)
    elif paused:
        texts = Texts(paused=stored.text)
    else:
        texts = Texts(own=stored.text) if stored.is_ours else Texts(shared=stored.text)
    # A service that restarts changes nothing; finished schedules stay finished.
    if texts != seen or stored.is_finished:
        yield from _put(queue, name, seen, texts, stored.number("nextRun") or now_ms, now_ms)
    return stored.entry(name, python_only=stored.is_ours, paused=paused)


def pause(queue: QueueKeys, name: str, now_ms: int) -> Op[ScheduleEntry]:
    """Keep a schedule from firing, where no worker looks for it.

    Raises:
        ScheduleNotFound, ConfigurationError: There is none, or its text is not a schedule.
        ScheduleBusy: A worker is firing; nothing was changed.
    """
    return (yield from _move(queue, name, now_ms, pauses=True))


def resume(queue: QueueKeys, name: str, now_ms: int) -> Op[ScheduleEntry]:
    """Let a paused schedule fire again, from the next slot on.

    Raises:
        ScheduleNotFound, ConfigurationError: There is none, or its text is not a schedule.
        ScheduleBusy: A worker is firing; nothing was changed.
    """
    return (yield from _move(queue, name, now_ms, pauses=False))


def _move(queue: QueueKeys, name: str, now_ms: int, *, pauses: bool) -> Op[ScheduleEntry]:
    seen = yield from _texts(queue, name)
    entry = _found(queue, name, seen)
    if not (seen.shared or seen.own if pauses else seen.paused):
        return entry
    stored = StoredSchedule.parse(seen.newest)
    if stored is None:
        raise ConfigurationError(f"schedule {name!r} of queue {queue.queue} is broken: {entry.broken}")
    if entry.paused and not entry.broken:
        return (yield from _store(queue, name, seen, stored.resumed(now_ms), now_ms, paused=False))
    # Unchanged, whoever wrote it: Node may understand what we do not.
    if pauses:
        texts = Texts(paused=seen.newest)
    else:
        texts = Texts(own=seen.newest) if stored.is_ours else Texts(shared=seen.newest)
    yield from _put(queue, name, seen, texts, stored.number("nextRun") or now_ms, now_ms)
    return _shown(name, texts)


def _new_entry(name: str, schedule: Schedule, template: JobTemplate) -> StoredSchedule:
    """The stored form of a new schedule, checked."""
    SCHEDULE.check(name)
    wire = template.to_wire()
    if schedule.logical_time and not isinstance(wire.get("data", {}), dict):
        raise ConfigurationError("logical_time needs data that is an object")
    stored = StoredSchedule(schedule.to_wire() | {"iterationCount": 0, "template": wire or None})
    if stored.first_run(stored.number("startDate")) is None:
        raise ConfigurationError(f"schedule {name!r} would never run: it has no slot between start and end")
    if len(stored.text.encode()) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"schedule {name} is larger than {MAX_PAYLOAD_BYTES:,} bytes")
    return stored


def remove(queue: QueueKeys, name: str, now_ms: int) -> Op[bool]:
    """Remove a schedule; returns whether there was one. Jobs that it added remain.

    Raises:
        ScheduleBusy: A worker is firing; nothing was removed.
    """
    seen = yield from _texts(queue, name)
    if not any(seen):
        return False
    yield from _put(queue, name, seen, Texts(), now_ms, now_ms)
    return True


def get(queue: QueueKeys, name: str) -> Op[ScheduleEntry]:
    """Read one schedule."""
    return _found(queue, name, (yield from _texts(queue, name)))


def find_all(queue: QueueKeys) -> Op[list[ScheduleEntry]]:
    """All schedules by name; unusable ones have ``broken`` set."""
    every = yield from ask_all([entries.entries(queue, where) for where in entries.ALL])
    active = {name for texts in every[: len(entries.HASHES)] for name in texts}
    found = [
        _shown(name, Texts(**{where: text}))
        for where, texts in zip(Texts._fields, every, strict=True)
        for name, text in texts.items()
        if where in {"shared", "own"} or name not in active
    ]
    return sorted(found, key=lambda entry: entry.name)


def _found(queue: QueueKeys, name: str, texts: Texts) -> ScheduleEntry:
    if not any(texts):
        raise ScheduleNotFound(f"no schedule {name} in queue {queue.queue}")
    return _shown(name, texts)


def _shown(name: str, texts: Texts) -> ScheduleEntry:
    stored = StoredSchedule.parse(texts.newest) or StoredSchedule({})
    is_paused = not (texts.shared or texts.own) and bool(texts.paused)
    is_ours = stored.is_ours if is_paused else bool(texts.own)
    found = stored.entry(name, python_only=is_ours, paused=is_paused)
    return replace(found, broken=StoredSchedule.flaw(name, texts.newest))


def _texts(queue: QueueKeys, name: str) -> Op[Texts]:
    return Texts(*(yield from ask_all([entries.entry(queue, at, name) for at in entries.ALL])))


def _put(  # noqa: PLR0913, PLR0917  an entry
    queue: QueueKeys,
    name: str,
    seen: Texts,
    texts: Texts,
    check_ms: int,
    now_ms: int,
) -> Op[None]:
    if (yield from ask(entries.put(queue, name, seen, texts, check_ms, now_ms))) != "put":
        raise ScheduleBusy(f"schedule {name} of queue {queue.queue} is being fired or changed")


def tick(queue: QueueKeys, clock: Clock) -> Op[int]:
    """Fire due schedules and repair stuck ones. Returns when the next slot is due (ms), or -1. Idempotent.

    Reads only due entries, by an index. Periodically, one caller walks over all entries to find those written
    by Node clients. An entry that cannot be fired is logged once, and does not delay others.
    """
    began, looked = clock.now_ms(), list[entries.Checked]()
    while True:
        now_ms = clock.now_ms()
        due = yield from ask(entries.due(queue, looked, now_ms, until_ms=began, lease_ms=LEASE_MS))
        if due.walk:
            yield from _walk(queue, began, prunes=due.walk == "index")
        times = yield from _fire_due(queue, due.rows, clock)
        looked = [
            (member, now_ms + LEASE_MS, now_ms + SKIPPED_MS if at is None else at)
            for member, at in times.items()
        ]
        if not due.rows and not due.walk:
            return due.next_ms


def _fire_due(queue: QueueKeys, rows: Iterable[tuple[str, ...]], clock: Clock) -> Op[dict[str, int | None]]:
    """Fire due entries in one trip; returns when to check each again, None if it is skipped."""

    def what(member: str) -> str:
        return f"schedule {entries.place(member)[1]!r} of queue {queue.queue}"

    times: dict[str, int | None] = {}
    shots: dict[str, Shot] = {}
    for member, text, last in rows:
        # A broken entry is not deleted: its writer may understand it.
        found = yield from isolated(_visit(queue, member, text, last, clock.now_ms()), what(member))
        if isinstance(found, Shot):
            shots[member] = found
        else:
            times[member] = found
    replies = yield from ask_each([shot.call for shot in shots.values()])
    for (member, shot), reply in zip(shots.items(), replies, strict=True):
        times[member] = yield from isolated(shot.end(reply, clock.now_ms()), what(member))
    return times


def _walk(queue: QueueKeys, now_ms: int, *, prunes: bool) -> Op[None]:
    """Add entries that Node clients have written to the index, and remove those that they have removed."""
    seen: set[str] = set()
    for where in entries.HASHES:
        cursor = ""
        while cursor != "0":
            cursor, texts = yield from ask(entries.entries_page(queue, where, cursor or "0"))
            if where == entries.SHARED and texts:
                yield from _pause_again(queue, texts, now_ms)
            timed, others = dict[str, int](), dict[str, int]()
            for name, text in texts.items():
                slot = (StoredSchedule.parse(text) or StoredSchedule({})).slot
                (others if slot is None else timed)[entries.member(where, name)] = slot or now_ms
            seen.update(timed, others)
            yield from ask_all(
                [
                    *([entries.set_check_times(queue, timed, "LT")] if timed else []),
                    *([entries.set_check_times(queue, others, "NX")] if others else []),
                ]
            )
    first = 0
    while prunes and (members := (yield from ask(entries.index_page(queue, first)))):
        first += len(members)
        gone = [member for member in members if not entries.is_member(member)]
        missing = [member for member in members if member not in seen and entries.is_member(member)]
        found = yield from ask_all([entries.entry(queue, *entries.place(member)) for member in missing])
        gone += [member for member, text in zip(missing, found, strict=True) if not text]
        if gone:
            yield from ask(entries.forget(queue, gone))
            first -= len(gone)


def _pause_again(queue: QueueKeys, texts: dict[str, str], now_ms: int) -> Op[None]:
    """Pause what a Node client has written although it is paused, and take it out of ``texts``.

    A service in Node that upserts its schedules at each start knows no pause.
    """
    for name, old in (yield from ask(entries.paused(queue, list(texts)))).items():
        text = texts.pop(name)
        seen, texts_now = Texts(shared=text, paused=old), Texts(paused=text)
        yield from ask(entries.put(queue, name, seen, texts_now, now_ms, now_ms))


@dataclass(frozen=True, slots=True)
class Shot:
    """An entry to fire, and when to check it again afterwards."""

    call: Call[list[str]]
    check_ms: int

    def end(self, reply: list[str] | GlideMQError, now_ms: int) -> Op[int]:
        """When to check it again, by the reply; raises the reply if it is an error."""
        yield from ()
        if isinstance(reply, GlideMQError):
            raise reply
        return self.check_ms if reply[0] == "fired" else now_ms + AGAIN_MS


def _visit(queue: QueueKeys, member: str, text: str, last: str, now_ms: int) -> Op[Shot | int | None]:
    """Check one entry; returns how to fire it, or when to check again, or None if that is unknown."""
    where, name = entries.place(member)
    stored = StoredSchedule.parse(text)
    if stored is None or not (stored.is_timed and is_utf8(name) and is_utf8(text)):
        raise ConfigurationError(StoredSchedule.flaw(name, text))
    slot, repeat = stored.number("nextRun"), stored.number("repeatAfterComplete")
    is_in_flight = not slot and repeat and stored.number("lastRun")
    if not (slot or is_in_flight):
        return None
    if slot > now_ms and not stored.is_over:
        return slot
    data, then = list[str](), stored.with_values(nextRun=None)
    if not stored.is_over:
        ended: int | Runs = now_ms
        if is_in_flight:
            ended = yield from _end_of_last_run(queue, name, stored, last, now_ms)
        elif stored.wire.get("overlap") is False and last:
            ended = yield from _end(queue, last.partition(" ")[0], now_ms)
        if isinstance(ended, Runs):
            return ended.check_ms(stored, now_ms)
        if is_in_flight:
            then = stored.with_values(nextRun=ended + repeat)
        else:
            data, then = _due(stored, slot, now_ms)
    check_ms = then.number("nextRun") or now_ms + MIN_MS
    fire = entries.fire(queue, where, name, seen=text, then=then, data=data, check_ms=check_ms, now_ms=now_ms)
    return Shot(fire, check_ms)


def _due(stored: StoredSchedule, slot: int, now_ms: int) -> tuple[list[str], StoredSchedule]:
    """The data of the jobs to add, and the next state, which is finished if these are the last."""
    data = [stored.payload(at) for at in stored.due_slots(now_ms)]
    count, limit = stored.number("iterationCount") + len(data), stored.number("limit")
    following = None if limit and count >= limit else stored.following(slot, now_ms)
    return data, stored.with_values(lastRun=now_ms, iterationCount=count, nextRun=following)


@dataclass(frozen=True, slots=True)
class Runs:
    """The last run of an entry may not have ended. ``is_reported``: our worker will report its end."""

    is_reported: bool = False

    def check_ms(self, stored: StoredSchedule, now_ms: int) -> int:
        """When to check for its end again: after an eighth of the time that it has taken."""
        taken = now_ms - stored.number("lastRun")
        return now_ms + max(taken // SHARE, REPORTED_MS if self.is_reported else MIN_MS)


def _end(queue: QueueKeys, job_id: str, now_ms: int) -> Op[int | Runs]:
    """When a job ended; now if it was removed."""
    state, finished, token = yield from ask(entries.job_end(queue, job_id))
    if state is not None and state not in (JobState.COMPLETED, JobState.FAILED):
        return Runs(is_reported=state == JobState.ACTIVE and token is not None)
    return number(finished) or now_ms


def _end_of_last_run(
    queue: QueueKeys, name: str, stored: StoredSchedule, last: str, now_ms: int
) -> Op[int | Runs]:
    """When the job of the newest firing ended; now if it was removed."""
    job_id, _, fired = last.partition(" ")
    if fired != str(stored.number("lastRun")):  # a Node worker fired it and does not store the job's id
        found = yield from _search(queue, name, stored.number("lastRun"))
        if found is None:
            return Runs()
        job_id = found
    return (yield from _end(queue, job_id, now_ms)) if job_id else now_ms


def _search(queue: QueueKeys, name: str, fired_ms: int) -> Op[str | None]:
    """The job that a schedule added then; '' if it was removed, None if too many newer jobs precede it."""
    newest = yield from ask(entries.newest_id(queue))
    for page in range(SEARCH_PAGES):
        top = newest - page * SEARCH_PAGE
        ids = [str(number) for number in range(top, max(top - SEARCH_PAGE, 0), -1)]
        origins = yield from ask_all([entries.job_origin(queue, job_id) for job_id in ids])
        for job_id, (schedule, added) in zip(ids, origins, strict=True):
            at = number(added, fired_ms) or fired_ms
            if schedule == name and at >= fired_ms:
                return job_id
            if at < fired_ms - CLOCKS_APART_MS:
                return ""
        if top <= SEARCH_PAGE:
            return ""
    return None
