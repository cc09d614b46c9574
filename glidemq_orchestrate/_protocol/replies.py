"""Raw replies into typed values or errors: the only place that knows error texts and codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    FlowConflict,
    FlowEnded,
    FlowExpired,
    FlowIncomplete,
    FlowNotFound,
    GlideMQError,
    JobNotFound,
    LeaseLost,
    LibraryMissing,
    NodeExists,
    ProtocolError,
    ServerBusy,
    ServerTooOld,
)

T = TypeVar("T")

# Codes of our own functions: the first word of the error reply.
_CODES: Final[dict[str, type[GlideMQError]]] = {
    "GMO_FLOW_NOT_FOUND": FlowNotFound,
    "GMO_FLOW_CONFLICT": FlowConflict,
    "GMO_FLOW_EXPIRED": FlowExpired,
    "GMO_FLOW_ENDED": FlowEnded,
    "GMO_FLOW_INCOMPLETE": FlowIncomplete,
    "GMO_NODE_EXISTS": NodeExists,
    "GMO_JOB_NOT_FOUND": JobNotFound,
    "GMO_STALE": LeaseLost,
    "LOADING": ServerBusy,
    "BUSY": ServerBusy,
    "OOM": ServerBusy,
    "READONLY": ServerBusy,
    "MASTERDOWN": ServerBusy,
    "CLUSTERDOWN": ServerBusy,
    "TRYAGAIN": ServerBusy,
    "UNBLOCKED": ServerBusy,  # a call that was waiting when its server became a replica
    "NOREPLICAS": ServerBusy,
    "MISCONF": ServerBusy,
}


def error_from(text: str) -> GlideMQError:
    """The error class for the text of an error reply. Server texts hold no payloads."""
    code, _, told = text.partition(" ")
    if "Function not found" in text or "Function not loaded" in text:
        error: GlideMQError = LibraryMissing(text)
    elif "unknown command" in text and "FCALL" in text.upper():
        error = ServerTooOld("a server", "without functions")
    elif "access a non local key" in text:  # a slot is on its way to another node
        error = ServerBusy(text)
    elif code in _CODES:
        error = _CODES[code](told if code.startswith("GMO_") else text)
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


def anything(reply: Any) -> None:
    """A reply nobody needs."""
    del reply


def pairs(reply: Any) -> dict[str, str]:
    """A flat array of field, value, field, value; or the map that the driver made of it."""
    if isinstance(reply, dict):
        return reply
    if not isinstance(reply, list) or len(reply) % 2:
        raise ProtocolError("expected a flat array of pairs")
    return dict(zip(reply[::2], reply[1::2], strict=True))


def rows(width: int) -> Callable[[Any], list[tuple[str, ...]]]:
    """A decoder for a flat array of rows with ``width`` columns."""

    def decode(reply: Any) -> list[tuple[str, ...]]:
        if not isinstance(reply, list) or len(reply) % width:
            raise ProtocolError(f"expected a flat array of {width} columns")
        return [tuple(reply[at : at + width]) for at in range(0, len(reply), width)]

    return decode


def stream_entries(reply: Any) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """Entries by stream key from XREAD or XREADGROUP; nothing is an empty dict."""
    if not reply:
        return {}
    streams: Iterable[tuple[str, Any]] = reply.items() if isinstance(reply, dict) else reply
    return {key: [(entry[0], pairs(entry[1] or [])) for entry in entries] for key, entries in streams}


def mapping(reply: Any) -> dict[str, Any]:
    """A reply that is a map on some servers and a flat list on others."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
