"""Plain commands that read one key of any kind."""

from __future__ import annotations

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command


def members(key: str) -> Call[list[str]]:
    """The members of a set, in a fixed order."""
    return command("SMEMBERS", key, decode=sorted)


def fields_of(key: str, *fields: str) -> Call[list[str | None]]:
    """The given fields of a hash, in order."""
    return command("HMGET", key, *fields, decode=list)


def whole_hash(key: str) -> Call[dict[str, str]]:
    """A whole hash with string values."""
    return command("HGETALL", key, decode=replies.pairs)
