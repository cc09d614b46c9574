"""Decodes raw replies to typed values or errors; the only module with the server's error texts and codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
        error = ConfigurationError(f"the server's user lacks a permission: {text}")
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
        error = _CODES[code](message if code.startswith("GMO_") else text)
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


def page_with_removed(reply: Any) -> tuple[str, dict[str, str], list[str]]:
    """A cursor, the ``fields`` read with it, and the names of those that were removed."""
    if not isinstance(reply, list | tuple) or len(reply) != 3:
        raise ProtocolError("expected a cursor, fields and what was removed")
    return (*page(reply[:2]), texts(reply[2]))


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
