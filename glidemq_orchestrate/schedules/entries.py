"""Stored schedules: their JSON, read leniently, and the calls for their hashes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, ProtocolError
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.schedules.cron import Cron
from glidemq_orchestrate.schedules.schedule import (
    MAX_CAUGHT_UP,
    CatchUp,
    Schedule,
    ScheduleEntry,
    needs_python,
)
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.codec import encode, is_utf8
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys
from glidemq_orchestrate.wire.stored import moment, number

LOGICAL_TIME: Final = "logicalTime"
_MAX: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """The JSON of an entry, read leniently; ``flaw`` is why it cannot be fired."""

    wire: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> StoredSchedule | None:
        """Read a stored entry; None when it is not a JSON object."""
        try:
            wire = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return cls(wire) if isinstance(wire, dict) else None

    @classmethod
    def flaw(cls, name: str, text: str) -> str:
        """Why an entry cannot be fired, for any content; empty for one that can."""
        stored = cls.parse(text)
        if not is_utf8(name):
            return "its name is not UTF-8"
        if stored is None or not is_utf8(text):
            return "it is not a JSON object in UTF-8"
        if not is_utf8(stored.text):
            return "a string in it has a lone surrogate"
        try:
            stored.payload(0)
            is_timed = stored.is_timed
        except (GlideMQError, TypeError, AttributeError) as exc:
            return str(exc) if isinstance(exc, GlideMQError) else f"{type(exc).__name__}"
        return "" if is_timed else "it has no pattern, every or repeatAfterComplete"

    @property
    def text(self) -> str:
        """The JSON to store, keys in glide-mq's order."""
        order = ("pattern", "every", "repeatAfterComplete", "tz", "startDate", "endDate", "limit",
                 "iterationCount", "template", "lastRun", "nextRun")  # fmt: skip
        first = {name: self.wire[name] for name in order if self.wire.get(name) is not None}
        rest = {name: value for name, value in self.wire.items() if name not in order and value is not None}
        return json.dumps(first | rest, separators=(",", ":"), ensure_ascii=False)

    def number(self, name: str) -> int:
        """A whole number of the entry; 0 for anything else."""
        value = self.wire.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return int(value) if is_number and abs(value) <= _MAX else 0  # type: ignore[arg-type]  # checked

    @property
    def template(self) -> Mapping[str, Any]:
        """The job to add; empty when none is stored."""
        value = self.wire.get("template")
        return value if isinstance(value, dict) else {}

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the jobs."""
        value = self.template.get("opts")
        return value if isinstance(value, dict) else {}

    @property
    def cron(self) -> Cron | None:
        """The cron pattern, or None."""
        pattern = self.wire.get("pattern")
        return Cron.parse(pattern, self.wire.get("tz")) if isinstance(pattern, str) else None

    @property
    def is_timed(self) -> bool:
        """Whether it has a time to fire."""
        return bool(self.cron or self.number("every") or self.number("repeatAfterComplete"))

    @property
    def follows_its_end(self) -> bool:
        """Whether the next run depends on the end of the last one."""
        return bool(self.number("repeatAfterComplete")) or self.wire.get("overlap") is False

    @property
    def slot(self) -> int | None:
        """When it is due, if that depends only on the time; otherwise None."""
        return None if self.follows_its_end else self.number("nextRun") or None

    @property
    def is_over(self) -> bool:
        """Whether its last run has been fired or its end has passed."""
        limit, end, due = self.number("limit"), self.number("endDate"), self.number("nextRun")
        return bool(limit and self.number("iterationCount") >= limit) or bool(end and due > end)

    @property
    def is_live(self) -> bool:
        """Whether it has a next time, or its last run decides it."""
        # 0 with a last run: its job still runs, and a fresh start would add a second one.
        return bool(self.number("nextRun") or (self.number("repeatAfterComplete") and self.number("lastRun")))

    @property
    def is_ours(self) -> bool:
        """Whether only Python workers can fire it."""
        return needs_python(self.wire)

    @property
    def is_finished(self) -> bool:
        """Whether it has no further run, and so is stored with the finished entries."""
        return self.wire.get("nextRun") is None

    def with_values(self, **values: Any) -> StoredSchedule:
        """A copy with other values."""
        return replace(self, wire={**self.wire, **values})

    def first_run(self, now_ms: int) -> int | None:
        """The first slot of a new entry; None when it has none."""
        start, every = self.number("startDate"), self.number("every")
        if cron := self.cron:
            run = cron.after(max(now_ms, start) - 1)
        elif every:
            run = now_ms + every if not start else max(start, start - (start - now_ms) // every * every)
        else:
            run = max(now_ms, start)
        return self._within(run)

    def following(self, slot_ms: int, now_ms: int) -> int | None:
        """The slot after firing at ``now_ms``; 0 while the run continues; None when there is no more."""
        every = self.number("every")
        if cron := self.cron:
            return self._within(cron.after(now_ms))
        if every:
            return self._within(slot_ms + (max(now_ms - slot_ms, 0) // every + 1) * every)
        return 0

    def resumed(self, now_ms: int) -> StoredSchedule:
        """The entry after a pause: slots that have passed are omitted."""
        slot = self.number("nextRun")
        if slot > now_ms or (not slot and self.is_live):
            return self
        if slot and self.number("every"):
            return self.with_values(nextRun=self.following(slot, now_ms))
        return self.with_values(nextRun=self.first_run(now_ms))

    def due_slots(self, now_ms: int) -> list[int]:
        """The slots to run now by the catch-up policy, oldest first."""
        slot, policy = self.number("nextRun"), self.wire.get("catchUp")
        if policy not in (CatchUp.LAST, CatchUp.ALL):
            return [slot]
        bound = 1 if policy == CatchUp.LAST else min(self.number("catchUpLimit") or 1, MAX_CAUGHT_UP)
        if limit := self.number("limit"):
            bound = min(bound, limit - self.number("iterationCount"))
        until = min(now_ms, self.number("endDate") or now_ms)
        return self._backwards(slot, until, bound) or [slot]

    def _backwards(self, first_ms: int, until_ms: int, bound: int) -> list[int]:
        """The newest slots between two times, at most ``bound``, oldest first."""
        every, cron, slots = self.number("every"), self.cron, list[int]()
        if not every and not cron:
            return []
        at = until_ms
        while len(slots) < bound:
            found = cron.at_or_before(at) if cron else first_ms + (at - first_ms) // every * every
            if found is None or found < first_ms:
                break
            slots.append(found)
            at = found - 1
        return slots[::-1]

    def _within(self, run: int | None) -> int | None:
        """The slot, or None when it is after the end of the schedule."""
        end = self.number("endDate")
        return None if run is None or (end and run > end) else run

    def payload(self, slot_ms: int) -> str:
        """The data of the job of a slot."""
        data = self.template.get("data", {})
        if self.wire.get("logicalTime") is True and isinstance(data, dict):
            at = datetime.fromtimestamp(slot_ms / 1000, UTC)
            data = {**data, LOGICAL_TIME: at.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        return encode(data, where="data of a schedule's template")

    def entry(self, name: str, *, python_only: bool, paused: bool = False) -> ScheduleEntry:
        """The entry as users see it."""
        job, data = self.template.get("name"), self.template.get("data")
        return ScheduleEntry(
            name=name,
            schedule=self._schedule(),
            job=job if isinstance(job, str) and job else name,
            data=data,
            options=self.options,
            iterations=self.number("iterationCount"),
            last_run=moment(str(self.number("lastRun") or "")),
            next_run=None if paused else moment(str(self.number("nextRun") or "")),
            python_only=python_only,
            finished=self.is_finished,
            broken=self.flaw(name, self.text),
            paused=paused,
        )

    def _schedule(self) -> Schedule | None:
        def span(name: str) -> timedelta | None:
            return timedelta(milliseconds=self.number(name)) if self.number(name) else None

        try:
            return Schedule(
                every=span("every"),
                cron=self.wire.get("pattern"),
                repeat_after_complete=span("repeatAfterComplete"),
                time_zone=self.wire.get("tz"),
                start=moment(str(self.number("startDate") or "")),
                end=moment(str(self.number("endDate") or "")),
                limit=self.number("limit") or None,
                catch_up="skip" if self.number("repeatAfterComplete") else self.wire.get("catchUp", "skip"),
                catch_up_limit=self.number("catchUpLimit") or MAX_CAUGHT_UP,
                overlap=self.wire.get("overlap") is not False,
                logical_time=self.wire.get("logicalTime") is True,
            )
        except (ConfigurationError, AttributeError, TypeError, ValueError, OverflowError):
            return None


SHARED: Final[KeyName] = "schedulers"
OURS: Final[KeyName] = "gmo:schedulers"
FINISHED: Final[KeyName] = "gmo:schedulers:finished"
PAUSED: Final[KeyName] = "gmo:schedulers:paused"
HASHES: Final[tuple[KeyName, ...]] = (SHARED, OURS)
ALL: Final[tuple[KeyName, ...]] = (*HASHES, FINISHED, PAUSED)


class Texts(NamedTuple):
    """The text of one entry in each hash that may have it; empty for none."""

    shared: str = ""
    own: str = ""
    finished: str = ""
    paused: str = ""

    @property
    def newest(self) -> str:
        """The text that counts: a Node client may have written one of a paused or finished schedule."""
        return self.own or self.shared or self.paused or self.finished


LAST: Final[KeyName] = "gmo:schedulers:last"
LOCK: Final[KeyName] = "schedulers:lock:__tick__"


INDEX: Final[KeyName] = "gmo:schedulers:due"
"""The index: a sorted set with the time when each entry is to be checked."""
PAGE: Final = 100
_PLACES: Final[dict[str, KeyName]] = {"-": SHARED, "+": OURS}
_MARKS: Final = {where: mark for mark, where in _PLACES.items()}
Checked = tuple[str, int, int]
"""A checked entry: its member of the index, the end of its lease, and when to check it again."""


class Due(NamedTuple):
    """The entries to check now.

    ``next_ms``: when the next entry is due, -1 for never.
    ``walk``: see ``gmo_due_schedules``.
    ``rows``: member, text and last job.
    """

    next_ms: int
    walk: Literal["", "all", "index"]
    rows: list[tuple[str, ...]]


def member(where: KeyName, name: str) -> str:
    """The index member of an entry."""
    return _MARKS[where] + name


def is_member(text: str) -> bool:
    """Whether a text in the index is a member of it, and not something that another program has added."""
    return text[:1] in _PLACES


def place(member: str) -> tuple[KeyName, str]:
    """The hash and the name of an index member."""
    return _PLACES[member[0]], member[1:]


def due(
    queue: QueueKeys, checked: Iterable[Checked], now_ms: int, *, until_ms: int, lease_ms: int
) -> Call[Due]:
    """Take up to ``PAGE`` entries that are due for a check by ``until_ms``.

    No other client gets them for ``lease_ms``. ``checked``: the entries of the last page.
    """

    def decode(reply: Any) -> Due:
        next_ms, walk, *rows = reply
        if walk not in ("", "all", "index"):
            raise ProtocolError(f"expected which hash to scan ('', 'all' or 'index'), got {walk!r:.40}")
        taken = replies.rows(3)(rows)
        for row in taken:
            place(row[0])
        return Due(replies.integer(next_ms), walk, taken)

    words = [word for one in checked for word in one]
    return function(
        "gmo_due_schedules", [queue.key(OURS)], (now_ms, until_ms, PAGE, lease_ms, *words), decode
    )


def entries_page(queue: QueueKeys, where: KeyName, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """The next cursor, and some entries of one hash: text by name."""
    return command("HSCAN", queue.key(where), cursor, "COUNT", PAGE, decode=replies.page)


def index_page(queue: QueueKeys, first: int) -> Call[list[str]]:
    """Some members of the index."""
    return command("ZRANGE", queue.key(INDEX), first, first + PAGE - 1, decode=replies.texts)


def due_by(queue: QueueKeys, until_ms: int, count: int) -> Call[list[str]]:
    """Up to ``count`` members of the index that are due by a time."""
    words = ("ZRANGEBYSCORE", queue.key(INDEX), "-inf", until_ms, "LIMIT", 0, count)
    return command(*words, decode=replies.texts)


def set_check_times(queue: QueueKeys, times: Mapping[str, int], how: Literal["LT", "NX"]) -> Call[None]:
    """Set when to check members: at these times or earlier (LT), or only if they are not indexed (NX)."""
    words = [word for name, at in times.items() for word in (at, name)]
    return command("ZADD", queue.key(INDEX), how, *words, decode=replies.anything)


def forget(queue: QueueKeys, members: Iterable[str]) -> Call[None]:
    """Remove members from the index."""
    return command("ZREM", queue.key(INDEX), *members, decode=replies.anything)


def entries(queue: QueueKeys, where: KeyName) -> Call[dict[str, str]]:
    """All entries of one hash: text by name."""
    return command("HGETALL", queue.key(where), decode=replies.pairs)


def paused(queue: QueueKeys, names: Sequence[str]) -> Call[dict[str, str]]:
    """Those of some entries, at least one, that are paused: text by name."""

    def decode(reply: Any) -> dict[str, str]:
        return {name: text for name, text in zip(names, reply, strict=True) if text}

    return command("HMGET", queue.key(PAUSED), *names, decode=decode)


def entry(queue: QueueKeys, where: KeyName, name: str) -> Call[str]:
    """The text of one entry; empty for a missing one."""
    return command("HGET", queue.key(where), name, decode=lambda reply: reply or "")


def put(queue: QueueKeys, name: str, seen: Texts, texts: Texts, check_ms: int, now_ms: int) -> Call[str]:  # noqa: PLR0913, PLR0917  an entry
    """Write an entry, or remove it if ``texts`` are empty, if it still equals ``seen``.

    Returns ``put``, ``locked`` or ``changed``.
    """
    keys = queue.keys(LOCK, *ALL)
    return function("gmo_put_scheduler", keys, (now_ms, name, *seen, *texts, check_ms), replies.text)


def fire(  # noqa: PLR0913  the arguments of one server call
    queue: QueueKeys,
    where: KeyName,
    name: str,
    *,
    seen: str,
    then: StoredSchedule,
    data: Iterable[str],
    check_ms: int,
    now_ms: int,
) -> Call[list[str]]:
    """Add jobs and write the next state of an entry, if it still equals ``seen``; returns a word, then ids.

    It will be checked again at ``check_ms``. A finished entry moves to the hash of finished ones.
    """
    options, job = StoredSchedule(then.options), then.template.get("name")
    opts = json.dumps(then.options, separators=(",", ":"), ensure_ascii=False)
    schedule = name if then.number("repeatAfterComplete") else ""
    numbers = [options.number(option) for option in ("priority", "attempts", "ttl")]
    is_lifo = int(then.options.get("lifo") is True)
    text = f"+{then.text}" if then.is_finished else then.text
    is_followed = int(then.follows_its_end)
    return function(
        "gmo_fire_scheduler",
        queue.keys(LOCK, where, FINISHED),
        (now_ms, name, seen, text, job if isinstance(job, str) and job else name, opts,
         *numbers, is_lifo, schedule, check_ms, is_followed, *data),
        list,
    )  # fmt: skip


def job_end(queue: QueueKeys, job_id: str) -> Call[tuple[str | None, str | None, str | None]]:
    """State, end time and token of a job; all None for a missing job."""
    return job_hash.get_some(queue, job_id, ("state", "finishedOn", "gmo:token"), tuple)


def job_origin(queue: QueueKeys, job_id: str) -> Call[tuple[str | None, str | None]]:
    """The schedule that added a job, and when."""
    return job_hash.get_some(queue, job_id, ("schedulerName", "timestamp"), tuple)


def newest_id(queue: QueueKeys) -> Call[int]:
    """The newest automatic job id."""
    return command("GET", queue.key("id"), decode=number)
