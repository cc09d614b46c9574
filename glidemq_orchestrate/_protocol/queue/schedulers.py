"""Calls about schedulers: the hashes of entries, and the functions that change them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from glidemq_orchestrate._protocol import job_hash, replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate.jobs.schedule import Stored
from glidemq_orchestrate.keys import KeyName, QueueKeys
from glidemq_orchestrate.stored import number

SHARED: Final[KeyName] = "schedulers"
OURS: Final[KeyName] = "gmo:schedulers"
FINISHED: Final[KeyName] = "gmo:schedulers:finished"
HASHES: Final[tuple[KeyName, ...]] = (SHARED, OURS)
ALL: Final[tuple[KeyName, ...]] = (*HASHES, FINISHED)
Texts = tuple[str, str, str]
"""The texts of one entry in glide-mq's hash, in ours, and among the finished ones; '' for none."""
LAST: Final[KeyName] = "gmo:schedulers:last"
LOCK: Final[KeyName] = "schedulers:lock:__tick__"


def entries(queue: QueueKeys, where: KeyName) -> Call[dict[str, str]]:
    """All entries of one hash: text by name."""
    return command("HGETALL", queue.key(where), decode=replies.pairs)


def entry(queue: QueueKeys, where: KeyName, name: str) -> Call[str]:
    """The text of one entry; empty for a missing one."""
    return command("HGET", queue.key(where), name, decode=lambda reply: reply or "")


def put(queue: QueueKeys, name: str, seen: Texts, texts: Texts, now_ms: int) -> Call[str]:
    """Write an entry (remove it if ``texts`` are empty) that is still as ``seen``: put, locked or changed."""
    keys = queue.keys(LOCK, SHARED, OURS, FINISHED)
    return function("gmo_put_scheduler", keys, (now_ms, name, *seen, *texts), replies.text)


def fire(  # noqa: PLR0913  the arguments of one server call
    queue: QueueKeys,
    where: KeyName,
    name: str,
    *,
    seen: str,
    then: Stored,
    data: Iterable[str],
    now_ms: int,
) -> Call[list[str]]:
    """Add jobs and write the next state of an entry that is still as ``seen``; returns a word, then ids.

    One that has finished moves to the finished ones.
    """
    options, job = Stored(then.options), then.template.get("name")
    opts = json.dumps(then.options, separators=(",", ":"), ensure_ascii=False)
    scheduler = name if then.number("repeatAfterComplete") else ""
    numbers = [options.number(option) for option in ("priority", "attempts", "ttl")]
    is_lifo = int(then.options.get("lifo") is True)
    text = f"+{then.text}" if then.is_finished else then.text
    return function(
        "gmo_fire_scheduler",
        queue.keys(LOCK, where, FINISHED),
        (now_ms, name, seen, text, job if isinstance(job, str) and job else name, opts,
         *numbers, is_lifo, scheduler, *data),
        list,
    )  # fmt: skip


def job_end(queue: QueueKeys, job_id: str) -> Call[tuple[str | None, str | None]]:
    """State and end time of a job; both None for a missing job."""
    return job_hash.get_some(queue, job_id, ("state", "finishedOn"), tuple)


def job_origin(queue: QueueKeys, job_id: str) -> Call[tuple[str | None, str | None]]:
    """Which scheduler added a job, and when it was added."""
    return job_hash.get_some(queue, job_id, ("schedulerName", "timestamp"), tuple)


def newest_id(queue: QueueKeys) -> Call[int]:
    """The newest automatic job id."""
    return command("GET", queue.key("id"), decode=number)
