"""Plain commands that read a part of a sorted set, list or stream. Each reads at most a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command

Entry = tuple[str, dict[str, str]]


def count_between(key: str, low: str, high: str) -> Call[int]:
    """How many members of a sorted set have scores within these bounds."""
    return command("ZCOUNT", key, low, high, decode=replies.integer)


def score_at(key: str, rank: int) -> Call[float | None]:
    """The score of the member at a rank; None past the end."""
    words = ("ZRANGE", key, rank, rank, "WITHSCORES")
    return command(*words, decode=lambda reply: float(reply[1]) if reply else None)


def scored(key: str, low: str, high: str, count: int) -> Call[list[tuple[str, float]]]:
    """The first members of a sorted set within these bounds, with their scores."""

    def decode(reply: Any) -> list[tuple[str, float]]:
        return list(zip(reply[::2], map(float, reply[1::2]), strict=True))

    words = ("ZRANGEBYSCORE", key, low, high, "WITHSCORES", "LIMIT", 0, count)
    return command(*words, decode=decode)


def listed(key: str, first: int, count: int) -> Call[list[str]]:
    """Members of a list, from the left."""
    return command("LRANGE", key, first, first + count - 1, decode=list)


def entries(key: str, first: str, last: str, count: int) -> Call[list[Entry]]:
    """The first entries of a stream within these bounds."""
    words = ("XRANGE", key, first, last, "COUNT", count)
    return command(*words, decode=_entries)


def last_entry(key: str) -> Call[str | None]:
    """The id of the newest entry of a stream; None if there is none."""
    words = ("XREVRANGE", key, "+", "-", "COUNT", 1)
    return command(*words, decode=lambda reply: reply[0][0] if reply else None)


def extent(key: str) -> Call[tuple[str, int, int]]:
    """The newest id that a stream ever had, how many entries it had, and has; refused without a stream."""

    def decode(reply: Any) -> tuple[str, int, int]:
        info = replies.mapping(reply)
        return str(info["last-generated-id"]), int(info["entries-added"]), int(info["length"])

    return command("XINFO", "STREAM", key, decode=decode)


def fields_of_some(key: str, count: int) -> Call[list[str]]:
    """The names of some fields of a hash, at random."""
    return command("HRANDFIELD", key, count, decode=list)


def forget(key: str, fields: Sequence[str]) -> Call[None]:
    """Delete fields of a hash. Repeatable."""
    return command("HDEL", key, *fields, decode=replies.anything)


def _entries(reply: Any) -> list[Entry]:
    return [(str(entry[0]), replies.pairs(entry[1] or [])) for entry in reply]
