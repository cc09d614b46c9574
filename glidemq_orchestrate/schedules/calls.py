"""Calls for schedules: the hashes of their entries, and the functions that change them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.schedules.schedule import StoredSchedule
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys
from glidemq_orchestrate.wire.stored import number

SHARED: Final[KeyName] = "schedulers"
OURS: Final[KeyName] = "gmo:schedulers"
FINISHED: Final[KeyName] = "gmo:schedulers:finished"
HASHES: Final[tuple[KeyName, ...]] = (SHARED, OURS)
ALL: Final[tuple[KeyName, ...]] = (*HASHES, FINISHED)
Texts = tuple[str, str, str]
"""The texts of one entry in glide-mq's hash, in ours, and in that of finished ones; '' for none."""
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
            raise ProtocolError(f"expected the hash to walk over, got {walk!r:.40}")
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


def look_at(queue: QueueKeys, times: Mapping[str, int], how: Literal["LT", "NX"]) -> Call[None]:
    """Set when to check members: at these times or earlier (LT), or only if they are not indexed (NX)."""
    words = [word for name, at in times.items() for word in (at, name)]
    return command("ZADD", queue.key(INDEX), how, *words, decode=replies.anything)


def forget(queue: QueueKeys, members: Iterable[str]) -> Call[None]:
    """Remove members from the index."""
    return command("ZREM", queue.key(INDEX), *members, decode=replies.anything)


def entries(queue: QueueKeys, where: KeyName) -> Call[dict[str, str]]:
    """All entries of one hash: text by name."""
    return command("HGETALL", queue.key(where), decode=replies.pairs)


def entry(queue: QueueKeys, where: KeyName, name: str) -> Call[str]:
    """The text of one entry; empty for a missing one."""
    return command("HGET", queue.key(where), name, decode=lambda reply: reply or "")


def put(queue: QueueKeys, name: str, seen: Texts, texts: Texts, check_ms: int, now_ms: int) -> Call[str]:  # noqa: PLR0913, PLR0917  an entry
    """Write an entry, or remove it if ``texts`` are empty, if it still equals ``seen``.

    Returns ``put``, ``locked`` or ``changed``.
    """
    keys = queue.keys(LOCK, SHARED, OURS, FINISHED)
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
