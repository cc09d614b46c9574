"""Decodes raw replies to typed values or errors; the only module with the server's error texts and codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowConflict,
    FlowEnded,
    FlowExpired,
    FlowIncomplete,
    FlowNotFound,
    GenerationTaken,
    GlideMQError,
    InvalidJob,
    JobNotFound,
    LeaseLost,
    LibraryMissing,
    NodeExists,
    NodeNotEnded,
    NodeNotFound,
    NodeNotRepeatable,
    ProtocolError,
    ServerBusy,
    ServerTooOld,
    Superseded,
)

T = TypeVar("T")

TEXT: Final = frozenset({str})
"""For a fast check of many values."""

YEAR_10000_MS: Final = 253_402_300_800_000

# Codes of our own functions: the first word of the error reply.
_CODES: Final[dict[str, type[GlideMQError]]] = {
    "GMO_FLOW_NOT_FOUND": FlowNotFound,
    "GMO_FLOW_CONFLICT": FlowConflict,
    "GMO_FLOW_EXPIRED": FlowExpired,
    "GMO_SUPERSEDED": Superseded,
    "GMO_GENERATION_TAKEN": GenerationTaken,
    "GMO_FLOW_ENDED": FlowEnded,
    "GMO_FLOW_INCOMPLETE": FlowIncomplete,
    "GMO_NODE_EXISTS": NodeExists,
    "GMO_NODE_NOT_FOUND": NodeNotFound,
    "GMO_NODE_NOT_ENDED": NodeNotEnded,
    "GMO_NODE_KEEPS": NodeNotRepeatable,
    "GMO_JOB_NOT_FOUND": JobNotFound,
    "GMO_TOO_MANY_TAGS": InvalidJob,
    "GMO_STALE": LeaseLost,
    "LOADING": ServerBusy,
    "BUSY": ServerBusy,
    "OOM": ServerBusy,
    "READONLY": ServerBusy,
    "MASTERDOWN": ServerBusy,
    "CLUSTERDOWN": ServerBusy,
    "TRYAGAIN": ServerBusy,
    "UNBLOCKED": ServerBusy,  # a blocking call whose server became a replica
    "NOREPLICAS": ServerBusy,
    "MISCONF": ServerBusy,
}


MAX_CHARACTERS: Final = 1_000
_QUOTING: Final = re.compile(r",? with args beginning with", re.IGNORECASE)

# Inside a function, a denied command is an error of the function, without the code NOPERM.
_DENIED: Final = ("ACL failure in script", "The user executing the script can't")


_REMEDIES: Final = {
    "NOREPLICAS": "start the missing replicas, or lower min-replicas-to-write",
    "OOM": "raise maxmemory, or remove ended jobs (glidemq queue clean QUEUE)",
    "TRYAGAIN": "repeat the call when the slot has moved; valkey-cli --cluster fix ends an interrupted move",
    "READONLY": "use the address of the primary; valkey+sentinel:// and valkey+cluster:// find it",
}


def _with_remedy(code: str, text: str) -> str:
    return f"{text.rstrip('.')}. Fix: {_REMEDIES[code]}" if code in _REMEDIES else text


MOVING: Final = "TRYAGAIN"
"""The code of a refusal while a slot of a cluster is moving."""


def is_moving(reply: object) -> bool:
    """Whether a call was refused because its slot is moving; other slots are not affected."""
    return isinstance(reply, ServerBusy) and reply.code == MOVING


def lacks_permission(text: str) -> ConfigurationError:
    """The error for a reply that the user may not do this."""
    return ConfigurationError(
        f"the server's user lacks a permission: {text.removesuffix('.')}. Fix: give the user the rule of its "
        "role, as in SECURITY.md; glidemq doctor says what is missing"
    )


def error_from(text: str) -> GlideMQError:
    """The error for the text of an error reply, without quoted parts of the command: they may be secret."""
    text = _QUOTING.split(text, 1)[0][:MAX_CHARACTERS]
    code, _, message = text.partition(" ")
    if "Function not found" in text or "Function not loaded" in text:
        error: GlideMQError = LibraryMissing(text)
    elif "unknown command" in text and "FCALL" in text.upper():
        error = ServerTooOld("a server", "without functions")
    elif "unknown command" in text and "SENTINEL" in text.upper():
        error = ConfigurationError(
            "the server is not a sentinel. Fix: use the port of a sentinel, 26379 by default"
        )
    elif "Protocol error: unauthenticated" in text:  # for a long call; shorter ones get NOAUTH
        error = ConfigurationError("the server requires a password. Fix: pass user and password")
    elif any(words in text for words in _DENIED):
        error = lacks_permission(text)
        # Without a command nothing works; without a key only the calls that need it fail.
        code = "NOKEY" if "access" in text else "NOPERM"
    elif "access a non local key" in text:  # a slot is moving to another node
        error = ServerBusy(text)
    elif "cannot be used with replica instances" in text:  # WAIT and WAITAOF, on a former primary
        error, code = ServerBusy(text), "READONLY"
    elif code == "CROSSSLOT":
        fix = "use one queue, or a flow: its nodes may be in any queues"
        error = ConfigurationError(
            f"in a cluster a job and its parent must be in queues of one slot. Fix: {fix}"
        )
    elif code in _CODES:
        error = _CODES[code](message if code.startswith("GMO_") else _with_remedy(code, text))
    else:
        error = ProtocolError(text)
    error.code = code
    return error


def text(reply: Any) -> str:
    """A bulk string."""
    if not isinstance(reply, str):
        raise ProtocolError(f"expected a text, got {type(reply).__name__}")
    return reply


def integer(reply: Any) -> int:
    """An integer."""
    if not isinstance(reply, int):
        raise ProtocolError(f"expected an integer, got {type(reply).__name__}")
    return reply


def texts(reply: Any) -> list[str]:
    """A list of bulk strings."""
    found = _listed(reply)
    if not TEXT.issuperset(map(type, found)):
        for part in found:
            text(part)
    return found


def texts_of(count: int) -> Callable[[Any], list[str]]:
    """A decoder for a list of ``count`` bulk strings."""

    def decode(reply: Any) -> list[str]:
        if len(found := texts(reply)) != count:
            raise ProtocolError(f"expected {count} texts, got {len(found)}")
        return found

    return decode


def time_ms(reply: Any) -> int:
    """A time in ms since the epoch, before the year 10000."""
    if not 0 <= integer(reply) < YEAR_10000_MS:
        raise ProtocolError("expected a time in ms since the epoch")
    return int(reply)


def integers(reply: Any) -> list[int]:
    """A list of integers."""
    return [integer(part) for part in _listed(reply)]


def _listed(reply: Any) -> list[Any]:
    if not isinstance(reply, list | tuple):
        raise ProtocolError(f"expected a list, got {type(reply).__name__}")
    return list(reply)


def anything(reply: Any) -> None:
    """Ignore a reply."""
    del reply


def pairs(reply: Any) -> dict[str, str]:
    """A dict from a flat array of fields and values, or from the map that the driver returns."""
    if isinstance(reply, dict):
        return reply
    if not isinstance(reply, list) or len(reply) % 2:
        raise ProtocolError("expected a flat array of pairs")
    return dict(zip(reply[::2], reply[1::2], strict=True))


def fields(reply: Any) -> dict[str, str]:
    """``pairs`` of bulk strings only."""
    found = pairs(reply)
    texts([*found, *found.values()])
    return found


def page(reply: Any) -> tuple[str, dict[str, str]]:
    """A cursor and the ``fields`` read with it."""
    cursor, found = _listed(reply)
    return text(cursor), fields(found)


def members_page(reply: Any) -> tuple[str, list[str]]:
    """A cursor and the texts read with it."""
    cursor, found = _listed(reply)
    return text(cursor), texts(found)


def page_with_removed(reply: Any) -> tuple[str, tuple[dict[str, str], list[str]]]:
    """A cursor, and with it the ``fields`` read and the names of those that were removed."""
    if not isinstance(reply, list | tuple) or len(reply) != 3:
        raise ProtocolError("expected a cursor, fields and what was removed")
    cursor, found = page(reply[:2])
    return cursor, (found, texts(reply[2]))


def rows(width: int) -> Callable[[Any], list[tuple[str, ...]]]:
    """A decoder for a flat array of rows with ``width`` columns, all bulk strings."""

    def decode(reply: Any) -> list[tuple[str, ...]]:
        cells = texts(reply)
        if len(cells) % width:
            raise ProtocolError(f"expected a flat array of {width} columns")
        return list(zip(*[iter(cells)] * width, strict=True))

    return decode


def stream_entries(reply: Any) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """The entries of XREAD or XREADGROUP, by stream key; empty for an empty reply."""
    if not reply:
        return {}
    streams: Iterable[tuple[str, Any]] = reply.items() if isinstance(reply, dict) else reply
    return {key: [(entry[0], pairs(entry[1] or [])) for entry in entries] for key, entries in streams}


def entries(reply: Any) -> list[dict[str, str]]:
    """The fields of the entries of one stream, in the order of the reply."""
    return [pairs(fields or []) for _, fields in reply]


def mapping(reply: Any) -> dict[str, Any]:
    """A dict from a reply that is a map or a flat list, depending on the server."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


_LISTS: Final = (list, tuple)


def _is_text(reply: Any) -> bool:
    return isinstance(reply, str)


def _is_text_or_none(reply: Any) -> bool:
    return reply is None or isinstance(reply, str)


def _is_integer(reply: Any) -> bool:
    return isinstance(reply, int)


def _are_texts(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and (set(map(type, reply)) <= {str} or all(map(_is_text, reply)))


def _are_pairs(reply: Any) -> bool:
    if isinstance(reply, dict):
        return _are_texts([*reply, *reply.values()])
    return _are_texts(reply) and len(reply) % 2 == 0


def _are_values(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and all(map(_is_text_or_none, reply))


def _are_integers(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and all(map(_is_integer, reply))


def _is_page(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and len(reply) == 2 and _is_text(reply[0]) and _are_texts(reply[1])


def _are_entries(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and all(
        isinstance(entry, _LISTS) and len(entry) == 2 and _is_text(entry[0]) and _are_pairs(entry[1] or [])
        for entry in reply
    )


def _are_streams(reply: Any) -> bool:
    if reply is None:
        return True
    streams = list(reply.items()) if isinstance(reply, dict) else reply
    return isinstance(streams, _LISTS) and all(
        isinstance(stream, _LISTS) and len(stream) == 2 and _is_text(stream[0]) and _are_entries(stream[1])
        for stream in streams
    )


_FORMS: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("GET", "HGET", "ZSCORE"), _is_text_or_none),
    **dict.fromkeys(("SMEMBERS", "LRANGE", "ZRANGE", "ZREVRANGE", "SRANDMEMBER", "HRANDFIELD"), _are_texts),
    **dict.fromkeys(("ZRANGEBYSCORE", "TIME"), _are_texts),
    **dict.fromkeys(("HMGET", "MGET"), _are_values),
    **{f"{kind}SCAN": _is_page for kind in ("", "H", "S")},
    **dict.fromkeys(("XRANGE", "XREVRANGE"), _are_entries),
    **dict.fromkeys(("XREAD", "XREADGROUP"), _are_streams),
    **dict.fromkeys(
        ("EXISTS", "HSETNX", "ZCOUNT", "ZCARD", "XLEN", "LLEN", "SCARD", "XACK", "XTRIM"), _is_integer
    ),
    "SMISMEMBER": _are_integers,
    "HGETALL": _are_pairs,
    "INFO": lambda reply: isinstance(reply, str | dict),
}
_KEYS: Final = {"HMGET": 2, "MGET": 1, "SMISMEMBER": 2}
"""The number of words before those that each yield one part of the reply."""


def has_form(words: Sequence[Any], reply: Any) -> bool:
    """Whether a reply has the form required of its command; True for a command without a rule."""
    name = words[0]
    form = _FORMS.get(name)
    if form is None:
        return True
    return form(reply) and (name not in _KEYS or len(reply) == len(words) - _KEYS[name])
