"""Plain commands that read one key, whatever it belongs to."""

from __future__ import annotations

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command


def members(key: str) -> Call[list[str]]:
    """The members of a set, in a fixed order."""
    return command("SMEMBERS", key, decode=sorted)


def fields_of(key: str, *fields: str) -> Call[list[str | None]]:
    """Some fields of a hash."""
    return command("HMGET", key, *fields, decode=list)


def whole_hash(key: str) -> Call[dict[str, str]]:
    """A hash whose values are texts."""
    return command("HGETALL", key, decode=replies.pairs)
