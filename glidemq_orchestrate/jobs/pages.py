"""Plain commands that read the jobs of a queue. Each reads at most a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import GROUP, KeyName, QueueKeys
from glidemq_orchestrate.wire.stored import number

Page = tuple[str, list[str]]


def sorted_ids(key: str, first: int, count: int, *, newest_first: bool) -> Call[list[str]]:
    """Members of a sorted set of a queue by rank."""
    words = ("ZREVRANGE" if newest_first else "ZRANGE", key, first, first + count - 1)
    return command(*words, decode=list)


def list_ids(queue: QueueKeys, name: KeyName, first: int, count: int) -> Call[list[str]]:
    """Members of a list in the order in which workers take them: from the right."""
    words = ("LRANGE", queue.key(name), -(first + count), -(first + 1))
    return command(*words, decode=lambda reply: list(reversed(reply)))


def stream_page(queue: QueueKeys, start: str, count: int) -> Call[list[tuple[str, str]]]:
    """Entry id and job id of entries from ``start`` on."""
    return command("XRANGE", queue.key("stream"), start, "+", "COUNT", count, decode=_entries)


def pending_page(queue: QueueKeys, start: str, count: int, group: str) -> Call[list[str]]:
    """Ids of the entries that workers of a group hold, from ``start`` on; an error without the group."""
    words = ("XPENDING", queue.key("stream"), group, start, "+", count)
    return command(*words, decode=lambda reply: [row[0] for row in reply])


def stream_entry(queue: QueueKeys, entry_id: str) -> Call[list[tuple[str, str]]]:
    """Entry id and job id of one entry; empty for a missing one."""
    return command("XRANGE", queue.key("stream"), entry_id, entry_id, decode=_entries)


def scan_page(queue: QueueKeys, cursor: str, kind: str, count: int) -> Call[Page]:
    """Next cursor, and the last parts of some keys ``prefix:{queue}:kind:...``; keys may occur twice."""
    start = f"{queue.base}:{kind}:"

    def decode(reply: Any) -> Page:
        return str(reply[0]), [key.removeprefix(start) for key in reply[1]]

    return command("SCAN", cursor, "MATCH", f"{escaped(start)}*", "COUNT", count, decode=decode)


def scan_keys(pattern: str, cursor: str, count: int) -> Call[Page]:
    """Next cursor, and some keys of a glob pattern; keys may occur twice."""
    words = ("SCAN", cursor, "MATCH", pattern, "COUNT", count)
    return command(*words, decode=lambda reply: (str(reply[0]), list(reply[1])))


def ordering_keys_page(queue: QueueKeys, cursor: str, count: int) -> Call[Page]:
    """Next cursor, and a page of the ordering keys in use; keys may occur twice."""

    def decode(reply: Any) -> Page:
        return str(reply[0]), list(replies.pairs(reply[1]))

    return command("HSCAN", queue.key("ordering"), cursor, "COUNT", count, decode=decode)


def heads(
    queue: QueueKeys, job_ids: Sequence[str], fields: Sequence[JobField]
) -> list[Call[list[str | None]]]:
    """These fields of each job."""
    return [job_hash.get_some(queue, job_id, fields, list) for job_id in job_ids]


def length(queue: QueueKeys, name: KeyName) -> Call[int]:
    """The length of a stream, list or sorted set of the queue."""
    kind = {"stream": "XLEN", "events": "XLEN", "lifo": "LLEN", "priority": "LLEN"}.get(name, "ZCARD")
    return command(kind, queue.key(name), decode=replies.integer)


def parked_count(queue: QueueKeys, ordering_key: str) -> Call[int]:
    """How many jobs wait for a slot of their ordering key."""
    return command("ZCARD", queue.parked(ordering_key), decode=replies.integer)


def list_active(queue: QueueKeys) -> Call[int]:
    """How many active jobs were taken from a list."""
    return command("GET", queue.key("list-active"), decode=lambda reply: max(number(reply), 0))


def last_delivered(queue: QueueKeys) -> Call[str]:
    """The newest entry delivered to a worker; empty for none. An error without a stream."""

    def decode(reply: Any) -> str:
        groups = [replies.pairs(group) for group in reply]
        return next((str(group["last-delivered-id"]) for group in groups if group["name"] == GROUP), "")

    return command("XINFO", "GROUPS", queue.key("stream"), decode=decode)


def score(queue: QueueKeys, name: KeyName, member: str) -> Call[float | None]:
    """The score of a member of a sorted set."""
    words = ("ZSCORE", queue.key(name), member)
    return command(*words, decode=lambda reply: None if reply is None else float(reply))


def last_score(queue: QueueKeys, name: KeyName) -> Call[float]:
    """The highest score of a sorted set; 0 for an empty one."""
    words = ("ZREVRANGE", queue.key(name), 0, 0, "WITHSCORES")
    return command(*words, decode=lambda reply: float(reply[1]) if reply else 0.0)


def scheduled_scores(queue: QueueKeys, score: int, count: int) -> Call[list[float]]:
    """The lowest scores of the scheduled set from ``score`` on, at most ``count``."""
    words = ("ZRANGEBYSCORE", queue.key("scheduled"), score, "+inf", "WITHSCORES", "LIMIT", 0, count)
    return command(*words, decode=lambda reply: [float(score) for score in reply[1::2]])


def with_score(queue: QueueKeys, score: int) -> Call[int]:
    """How many members of the scheduled set have exactly this score."""
    return command("ZCOUNT", queue.key("scheduled"), score, score, decode=replies.integer)


def escaped(text: str) -> str:
    """The text, escaped for a glob pattern."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def _entries(reply: Any) -> list[tuple[str, str]]:
    return [(entry[0], replies.pairs(entry[1] or []).get("jobId", "")) for entry in reply]
