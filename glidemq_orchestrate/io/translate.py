"""Translates the exceptions of redis-py into ours. Pure.

A caller learns from an exception whether anything was sent, and whether a repeat helps.
"""

from __future__ import annotations

from socket import gaierror
from typing import Final

from redis import exceptions

from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    GlideMQError,
    OutcomeUnknown,
    ProtocolError,
)
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.replies import error_from, lacks_permission

# redis-py turns these codes into classes and strips them from the text.
_STRIPPED: Final = {
    exceptions.BusyLoadingError: "LOADING",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
}
OTHER: Final = "another program answers there, not a Valkey"
SILENCE: Final = "no answer in time"
_HANGS: Final = "Fix: check whether the server, its machine or the network hangs"
_START: Final = "Fix: start the server; on this machine: glidemq server"
_START_IT: Final = "Fix: start that server; glidemq doctor shows which ones answer"
_PORT: Final = "Fix: check the port; that of Valkey is 6379 by default"
_NAME: Final = "Fix: check the name of the host; this machine finds no address for it"
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
    advice = _NAME if isinstance(exc.__cause__ or exc.__context__, gaierror) else _advice(settings, text)
    return ConnectionFailed(f"cannot connect to {where}: {text}. {advice}")


def broken(settings: ConnectionSettings, place: Endpoint, exc: Exception) -> GlideMQError:
    """The error for a connection that broke after something was sent."""
    where = settings.node(place)
    if not isinstance(exc, _DRIVER_ERRORS):
        return unread(where, exc)
    if (unknown := _unauthenticated(settings, place, exc)) is not None:
        return unknown
    if "max number of clients" in str(exc):  # the first reply on the connection: no call was read
        return _too_many(where)
    why = SILENCE if isinstance(exc, exceptions.TimeoutError | TimeoutError) else _message(exc)
    fix = {OTHER: _PORT, SILENCE: _HANGS}.get(why)
    more = f". {fix}" if fix else ""
    return OutcomeUnknown(f"the connection to {where} broke while waiting for the reply: {why}{more}")


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
        error = lacks_permission(str(exc))
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
    if isinstance(exc, exceptions.InvalidResponse):
        return OTHER
    # redis-py's own texts name host and port, never the password.
    return str(exc).strip().rstrip(".") or type(exc).__name__


def _advice(settings: ConnectionSettings, message: str) -> str:
    """What to check if a connection fails, by the driver's message."""
    text = message.upper().replace(" ", "_")
    if message == OTHER:
        return _PORT
    if not settings.tls:
        return _START if settings.kind == "single" else _START_IT
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "The server's certificate is not trusted. Fix: pass the file of its CA as ca=FILE"
    if "CERTIFICATE_REQUIRED" in text or (
        not settings.cert and any(word in text for word in ("RESET", "CLOSED", "EOF"))
    ):
        return "The server requires a client certificate. Fix: pass cert=FILE and key=FILE"
    return "Fix: check that the server runs and uses TLS at this port; valkey:// is without TLS"
