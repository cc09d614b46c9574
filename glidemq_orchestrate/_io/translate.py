"""Driver exceptions into ours. What matters to a caller: was anything sent, and does a repeat help?"""

from __future__ import annotations

from typing import Final

from redis import exceptions

from glidemq_orchestrate._protocol.replies import error_from
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed, GlideMQError, OutcomeUnknown
from glidemq_orchestrate.settings import ConnectionSettings, masked

# redis-py turns these codes into classes and strips them from the text.
_STRIPPED: Final = {
    exceptions.BusyLoadingError: "LOADING",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
}
DRIVER_ERRORS: Final = (exceptions.RedisError, OSError)
MAX_CONNECTIONS: Final = 100_000  # as many as there are waiters: redis-py refuses the 101st by default


def not_connected(settings: ConnectionSettings, exc: Exception) -> GlideMQError:
    """For a failure before anything was sent."""
    if isinstance(exc, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return ConfigurationError(f"{masked(settings.url)} refused the user or password")
    if isinstance(exc, exceptions.BusyLoadingError):
        return error_from(f"LOADING {exc}")
    return ConnectionFailed(
        f"cannot connect to {masked(settings.url)}: {_told(exc)}. "
        "Is the server running? For one on this machine: glidemq server"
    )


def broken(settings: ConnectionSettings, exc: Exception) -> GlideMQError:
    """For a connection that broke after something was sent."""
    return OutcomeUnknown(
        f"the connection to {masked(settings.url)} broke while waiting for the reply: {_told(exc)}"
    )


def refused(exc: exceptions.ResponseError) -> GlideMQError:
    """For an error reply."""
    if isinstance(exc, exceptions.NoPermissionError):
        return ConfigurationError(f"the server's user may not do this: {exc}")
    for kind, code in _STRIPPED.items():
        if isinstance(exc, kind):
            return error_from(f"{code} {exc}")
    return error_from(str(exc))


def _told(exc: Exception) -> str:
    # redis-py's texts name host and port, never the password.
    return str(exc).strip().rstrip(".") or type(exc).__name__
