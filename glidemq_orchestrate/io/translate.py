"""Translates between redis-py and the core: calls into bytes, its exceptions into ours. Pure.

A caller learns from an exception whether anything was sent, and whether a repeat helps.

A reply byte that is not UTF-8 is read as an escape (``surrogateescape``) and sent as the same byte again. So
ids keep their bytes. Any other lone surrogate cannot be sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis import exceptions

from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    EncodeError,
    GlideMQError,
    OutcomeUnknown,
    ProtocolError,
)
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.call import Call, Word
from glidemq_orchestrate.wire.replies import error_from

# redis-py turns these codes into classes and strips them from the text.
_STRIPPED: Final = {
    exceptions.BusyLoadingError: "LOADING",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
}
_DRIVER_ERRORS: Final = (exceptions.RedisError, OSError)


class Redirected(ConfigurationError):
    """A node of a cluster refused a call: ``place`` has the slot; with ``ask``, for this call only."""

    def __init__(self, slot: int, place: Endpoint, *, ask: bool) -> None:
        self.slot, self.place, self.ask = slot, place, ask
        super().__init__(
            f"the server is a node of a cluster, and {place} has the slot: use valkey+cluster://HOST:PORT"
        )


def not_connected(settings: ConnectionSettings, place: Endpoint, exc: Exception) -> GlideMQError:
    """The error for a failure before anything was sent."""
    # The driver's frames contain the password, and error trackers print the variables of frames.
    exc.with_traceback(None)
    where, text = settings.node(place), _message(exc)
    if (unknown := _unauthenticated(settings, place, exc)) is not None:
        return unknown
    if isinstance(exc, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return ConfigurationError(f"{where} refused the user or password")
    if isinstance(exc, exceptions.BusyLoadingError):
        return error_from(f"LOADING {exc}")
    if "max number of clients" in text:
        return _too_many(where)
    if isinstance(exc, exceptions.ResponseError):
        return _login_failed(settings, where, exc)
    return ConnectionFailed(f"cannot connect to {where}: {text}. {_advice(settings, text)}")


def broken(settings: ConnectionSettings, place: Endpoint, exc: Exception) -> GlideMQError:
    """The error for a connection that broke after something was sent."""
    where = settings.node(place)
    if not isinstance(exc, _DRIVER_ERRORS):
        return unread(where, exc)
    if (unknown := _unauthenticated(settings, place, exc)) is not None:
        return unknown
    if "max number of clients" in str(exc):  # the first reply on the connection: no call was read
        return _too_many(where)
    return OutcomeUnknown(f"the connection to {where} broke while waiting for the reply: {_message(exc)}")


def loading(count: int, exc: exceptions.BusyLoadingError) -> list[GlideMQError]:
    """The errors for ``count`` calls to a server that is loading its data; the driver then disconnects."""
    behind = "the connection ended at the previous call, as the server was loading its data"
    return [error_from(f"LOADING {exc}"), *(OutcomeUnknown(behind) for _ in range(count - 1))]


def _too_many(where: str) -> ConnectionFailed:
    return ConnectionFailed(f"{where} has reached maxclients. Fix: raise it there")


def unread(where: str, exc: Exception) -> GlideMQError:
    """The error for an unexpected reply. The calls may or may not have been executed."""
    return ProtocolError(f"a reply of {where} cannot be read: {type(exc).__name__}")


def refused(exc: exceptions.ResponseError) -> GlideMQError:
    """The error for an error reply."""
    if isinstance(exc, exceptions.AskError):  # MovedError is a subclass
        is_ask = not isinstance(exc, exceptions.MovedError)
        return Redirected(exc.slot_id, Endpoint(exc.host, exc.port), ask=is_ask)
    if isinstance(exc, exceptions.NoPermissionError):
        error = ConfigurationError(f"the server's user lacks a permission: {exc}")
        error.code = "NOPERM"
        return error
    code = _stripped(exc)
    return error_from(f"{code} {exc}" if code else str(exc))


def _stripped(exc: Exception) -> str:
    """The code that redis-py has stripped from the text; empty for any other error."""
    return next((code for kind, code in _STRIPPED.items() if isinstance(exc, kind)), "")


def _unauthenticated(settings: ConnectionSettings, place: Endpoint, exc: Exception) -> GlideMQError | None:
    """The error for a server that requires a password and so executed nothing. None for any other error."""
    text = str(exc)  # the second is for HELLO
    is_asked = "Authentication required" in text or "with the client already authenticated" in text
    if not (is_asked and isinstance(exc, exceptions.AuthenticationError)):
        return None
    is_sentinel = settings.kind == "sentinel" and place in settings.places
    names = "sentinel_user and sentinel_password" if is_sentinel else "user and password"
    return ConfigurationError(f"{settings.node(place)} requires a password. Fix: pass {names}")


def _login_failed(settings: ConnectionSettings, where: str, exc: exceptions.ResponseError) -> GlideMQError:
    """The error for an error reply before the first call. Its text is hidden: it may quote credentials."""
    text = str(exc)
    if isinstance(exc, exceptions.NoPermissionError):
        error = ConfigurationError(f"the user of {where} lacks the permission to run HELLO or SELECT")
        error.code = "NOPERM"
        return error
    if code := _stripped(exc):
        return error_from(f"{code} {where} refused the connection")
    if "DB index is out of range" in text:
        return ConfigurationError(f"{where} has no database {settings.db}. Fix: use another db")
    if "unknown command" in text and "auth" in text.lower():
        return ConfigurationError(f"{where} does not support AUTH. Fix: pass no user and password")
    if text.startswith("DENIED"):
        return ConfigurationError(
            f"{where} is in protected mode. Fix: set a password on the server, or bind it to an address"
        )
    return ProtocolError(f"{where} refused the connection with an unknown error")


def _message(exc: Exception) -> str:
    # redis-py's own texts name host and port, never the password.
    return str(exc).strip().rstrip(".") or type(exc).__name__


def _advice(settings: ConnectionSettings, message: str) -> str:
    """What to check if a connection fails, by the driver's message."""
    text = message.upper().replace(" ", "_")
    if not settings.tls:
        return "Fix: start the server; on this machine: glidemq server"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "The server's certificate is not trusted. Fix: pass the file of its CA as ca=FILE"
    if "CERTIFICATE_REQUIRED" in text or (
        not settings.cert and any(word in text for word in ("RESET", "CLOSED", "EOF"))
    ):
        return "The server requires a client certificate. Fix: pass cert=FILE and key=FILE"
    return "Fix: check that the server runs and uses TLS at this port; valkey:// is without TLS"


_fast: Any = None
with contextlib.suppress(ImportError):  # redis-py itself uses it on blocking connections only
    import hiredis

    _fast = hiredis.pack_command

ESCAPES: Final = "surrogateescape"
LONE_SURROGATE: Final = "a text with a lone surrogate"
_MAX: Final = 2**63  # hiredis crashes on numbers of thousands of digits
_NUMBERS: Final = frozenset({int, float})

PIECE: Final = 65_536

Refused = Mapping[int, EncodeError]
_NONE: Final[Refused] = {}


def pack(words: Sequence[Word]) -> bytes:
    """Encode one command in the form of the protocol.

    Raises:
        UnicodeEncodeError: A word is not valid text. ``sort_out`` finds such calls.
    """
    if _fast is not None:
        try:
            command: bytes = _fast(tuple(words))
        except UnicodeEncodeError:
            command = _fast(tuple(map(_encoded, words)))
        return command
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = _encoded(word)
        parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


def pieces(calls: Sequence[Call[Any]]) -> list[bytes]:
    """The calls of a trip as few pieces, each for one system call; large calls are not copied."""
    packed = [call.packed or pack(call.words) for call in calls]
    if len(packed) == 1:
        return packed
    found: list[bytes] = []
    small: list[bytes] = []
    size = 0
    for command in packed:
        if len(command) > PIECE or size + len(command) > PIECE:
            found += [b"".join(small)] if small else []
            small, size = [], 0
        if len(command) > PIECE:
            found.append(command)
        else:
            small.append(command)
            size += len(command)
    return [*found, b"".join(small)] if small else found


def _encoded(word: Word) -> bytes:
    if isinstance(word, str):
        return word.encode(errors=ESCAPES)
    return repr(word).encode()


def sort_out(calls: Sequence[Call[Any]]) -> tuple[tuple[Call[Any], ...], Refused]:
    """The calls that can be sent, and an error by number for each of the others."""
    refused = {number: error for number, call in enumerate(calls) if (error := _flaw(call))}
    if not refused:
        return tuple(calls), _NONE
    return tuple(call for number, call in enumerate(calls) if number not in refused), refused


def put_back(replies: Sequence[Any], refused: Refused) -> list[Any]:
    """The replies to the sent calls, with the errors of the others in their places."""
    if not refused:
        return list(replies)
    whole = list(replies)
    for number in sorted(refused):
        whole.insert(number, refused[number])
    return whole


def _flaw(call: Call[Any]) -> EncodeError | None:
    """Pack a call, or return why it cannot be sent. Texts are checked while packing, other words before."""
    if call.packed is None:
        others = [word for word in call.words if word.__class__ is not str]
        if not _are_small(others):
            for word in others:
                if flaw := _flaw_of(word):
                    return _error(call, flaw)
        try:
            object.__setattr__(call, "packed", pack(call.words))
        except UnicodeEncodeError:
            return _error(call, LONE_SURROGATE)
    return None


def _are_small(words: list[Word]) -> bool:
    """Whether all words are numbers that can be sent: a fast check that nearly every call passes."""
    numbers: Any = words
    return _NUMBERS.issuperset(map(type, words)) and (not words or max(map(abs, numbers)) <= _MAX)


def _flaw_of(word: Word) -> str:
    """Why a word cannot be sent, without showing it; '' if it can."""
    if isinstance(word, str):
        try:
            word.encode(errors=ESCAPES)
        except UnicodeEncodeError:
            return LONE_SURROGATE
    elif isinstance(word, bool) or not isinstance(word, int | float):
        return f"a value of type {type(word).__name__}"
    elif isinstance(word, int) and not -_MAX <= word <= _MAX:
        return "a number of more than 19 digits"
    return ""


def _error(call: Call[Any], flaw: str) -> EncodeError:
    return EncodeError(f"{call.place}: {flaw} cannot be sent; the call was not sent", where=call.place)


def outcome(reply: Any) -> Any:
    """The reply to a single call; raises it if it is an error."""
    if isinstance(reply, GlideMQError):
        raise reply
    return reply
