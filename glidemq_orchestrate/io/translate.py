"""Driver exceptions as ours. What matters to a caller: was anything sent, and does a repeat help?"""

from __future__ import annotations

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
    """A node of a cluster refused a call: ``place`` has the slot, for this one call only when ``ask``."""

    def __init__(self, slot: int, place: Endpoint, *, ask: bool) -> None:
        self.slot, self.place, self.ask = slot, place, ask
        super().__init__(
            f"the server is a node of a cluster, and {place} has the slot: use valkey+cluster://HOST:PORT"
        )


def not_connected(settings: ConnectionSettings, place: Endpoint, exc: Exception) -> GlideMQError:
    """For a failure before anything was sent."""
    # The driver's frames hold the password, and error trackers print the variables of frames.
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
    """For a connection that broke after something was sent."""
    where = settings.node(place)
    if not isinstance(exc, _DRIVER_ERRORS):
        return unread(where, exc)
    if (unknown := _unauthenticated(settings, place, exc)) is not None:
        return unknown
    if "max number of clients" in str(exc):  # the first line of the connection: no call was read
        return _too_many(where)
    return OutcomeUnknown(f"the connection to {where} broke while waiting for the reply: {_message(exc)}")


def loading(count: int, exc: exceptions.BusyLoadingError) -> list[GlideMQError]:
    """For so many calls, the first of which found a server that loads its data; the driver then hangs up."""
    behind = "the connection ended at the call before, as the server was loading its data"
    return [error_from(f"LOADING {exc}"), *(OutcomeUnknown(behind) for _ in range(count - 1))]


def _too_many(where: str) -> ConnectionFailed:
    return ConnectionFailed(f"{where} has as many clients as its maxclients allows. Raise it there")


def unread(where: str, exc: Exception) -> GlideMQError:
    """For what neither driver nor server foresees. The calls may or may not have been executed."""
    return ProtocolError(f"a reply of {where} cannot be read: {type(exc).__name__}")


def refused(exc: exceptions.ResponseError) -> GlideMQError:
    """For an error reply."""
    if isinstance(exc, exceptions.AskError):  # MOVED is a kind of it
        is_ask = not isinstance(exc, exceptions.MovedError)
        return Redirected(exc.slot_id, Endpoint(exc.host, exc.port), ask=is_ask)
    if isinstance(exc, exceptions.NoPermissionError):
        error = ConfigurationError(f"the server's user lacks a permission: {exc}")
        error.code = "NOPERM"
        return error
    code = _stripped(exc)
    return error_from(f"{code} {exc}" if code else str(exc))


def _stripped(exc: Exception) -> str:
    """The code that redis-py has taken off the text; empty for any other error."""
    return next((code for kind, code in _STRIPPED.items() if isinstance(exc, kind)), "")


def _unauthenticated(settings: ConnectionSettings, place: Endpoint, exc: Exception) -> GlideMQError | None:
    """For a server that wants a password; then it has executed nothing. None for any other error."""
    text = str(exc)  # that of HELLO is the second
    is_asked = "Authentication required" in text or "with the client already authenticated" in text
    if not (is_asked and isinstance(exc, exceptions.AuthenticationError)):
        return None
    is_sentinel = settings.kind == "sentinel" and place in settings.places
    names = "sentinel_user and sentinel_password" if is_sentinel else "user and password"
    return ConfigurationError(f"{settings.node(place)} wants a password: give {names}")


def _login_failed(settings: ConnectionSettings, where: str, exc: exceptions.ResponseError) -> GlideMQError:
    """For an error reply before the first call; a server may quote what it was sent, so it is not shown."""
    text = str(exc)
    if isinstance(exc, exceptions.NoPermissionError):
        error = ConfigurationError(f"the user of {where} lacks a permission: to run HELLO or SELECT")
        error.code = "NOPERM"
        return error
    if code := _stripped(exc):
        return error_from(f"{code} {where} refused the connection")
    if "DB index is out of range" in text:
        return ConfigurationError(f"{where} has no database {settings.db}: give another db")
    if "unknown command" in text and "auth" in text.lower():
        return ConfigurationError(f"{where} does not know AUTH: give no user and password")
    if text.startswith("DENIED"):
        return ConfigurationError(
            f"{where} is in protected mode: give it a password, or bind it to an address"
        )
    return ProtocolError(f"{where} refused the connection, with an error that is not known here")


def _message(exc: Exception) -> str:
    # redis-py's own texts name host and port, never the password.
    return str(exc).strip().rstrip(".") or type(exc).__name__


def _advice(settings: ConnectionSettings, message: str) -> str:
    """What to check if a connection fails, by the message of the driver."""
    text = message.upper().replace(" ", "_")
    if not settings.tls:
        return "Is the server running? To start one on this machine: glidemq server"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "The server's certificate is not trusted: give the file of its CA with ca=FILE"
    if "CERTIFICATE_REQUIRED" in text or (
        not settings.cert and any(word in text for word in ("RESET", "CLOSED", "EOF"))
    ):
        return "The server requires a client certificate: give its files with cert=FILE and key=FILE"
    return "Is the server running, and does it speak TLS at this port? valkey:// is without TLS"
