"""Connections to one server, blocking and asyncio."""

from __future__ import annotations

import asyncio

# Not used here. The driver and the standard library import these at the first connection and the first call,
# when an import can no longer exclude a fork (see ``importing``).
import encodings.idna  # noqa: F401
import secrets  # noqa: F401
import ssl
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

import redis.asyncio.connection as aio
import redis.asyncio.retry
from redis import connection as sync
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.io.delivery import ESCAPES
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint

SHUTDOWN_SECONDS: Final = 0.1
UNEXPECTED: Final = "the server sent something before any call, or closed the connection"


class _Abrupt(aio.AbstractConnection):
    """Closes a connection without waiting for the server's part of a TLS shutdown.

    A stopped server never does its part, and redis-py keeps the connection open until it does.
    """

    _writer: asyncio.StreamWriter | None

    def abort(self) -> None:
        """Close the socket in the next turn of the event loop; a pending read gets an error."""
        if self._writer:
            self._writer.transport.abort()

    async def disconnect(self, nowait: bool = False, *args: Any, **options: Any) -> None:  # noqa: FBT001, FBT002
        """With ``nowait``, the socket is closed in the next turn of the event loop."""
        if nowait:
            self.abort()
        await super().disconnect(nowait, *args, **options)


def abort(connection: aio.AbstractConnection) -> None:
    """Cut a connection: a pending wait for a reply on it fails."""
    if isinstance(connection, _Abrupt):
        connection.abort()


class _Tcp(_Abrupt, aio.Connection): ...


class _Tls(_Abrupt, aio.SSLConnection):
    def _connection_arguments(self) -> dict[str, Any]:
        """Also limit the shutdown of a connection made as its time limit ends: only asyncio has it."""
        return {**super()._connection_arguments(), "ssl_shutdown_timeout": SHUTDOWN_SECONDS}


class _Unix(_Abrupt, aio.UnixDomainSocketConnection): ...


class _TlsInTime(sync.SSLConnection):
    """Limits the TLS handshake to the time limit of connecting; redis-py would use ``socket_timeout``."""

    def __init__(self, *, socket_timeout: float, **options: Any) -> None:
        super().__init__(socket_timeout=options["socket_connect_timeout"], **options)
        self._of_calls = socket_timeout

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002
        """Apply the time limit of calls once the handshake is done."""
        self.socket_timeout = self._of_calls
        self.update_current_socket_timeout(self._of_calls)
        super().on_connect_check_health(check_health)

    def disconnect(self, *args: Any) -> None:
        """Apply the time limit of connecting to the next connection."""
        super().disconnect(*args)  # type: ignore[no-untyped-call]
        self.socket_timeout = self.socket_connect_timeout


class _Kinds(NamedTuple):
    """The classes of redis-py for a connection over TCP, over TLS and over a unix socket."""

    tcp: Any
    tls: Any
    unix: Any

    def of(self, settings: ConnectionSettings, place: Endpoint) -> Any:
        """The class for a connection to this place."""
        if not place.port:
            return self.unix
        return self.tls if settings.tls else self.tcp


_BLOCKING: Final = _Kinds(sync.Connection, _TlsInTime, sync.UnixDomainSocketConnection)
_ASYNCIO: Final = _Kinds(_Tcp, _Tls, _Unix)


def opened(connection: sync.AbstractConnection) -> None:
    """Make a connection ready for a call: connected, and without unread data."""
    for _ in range(2):
        connection.connect()  # type: ignore[no-untyped-call]
        try:
            if not connection.can_read():
                return
        except (RedisError, OSError):
            pass
        connection.disconnect()  # type: ignore[no-untyped-call]
    raise RedisConnectionError(UNEXPECTED)


async def is_open_async(connection: aio.AbstractConnection) -> bool:
    """Whether a connection is open, with nothing left to read. Waits for nothing."""
    try:
        return connection.is_connected and not await connection.can_read()
    except (RedisError, OSError):
        return False


async def opened_async(connection: aio.AbstractConnection) -> None:
    """See ``opened``."""
    for _ in range(2):
        await connection.connect()  # type: ignore[no-untyped-call]
        if await is_open_async(connection):
            return
        await connection.disconnect()
    raise RedisConnectionError(UNEXPECTED)


def sync_pool(
    settings: ConnectionSettings, place: Endpoint, *, sentinel: bool = False
) -> Pool[sync.AbstractConnection]:
    """The blocking connections to a server."""
    options = _options(settings, place, sentinel=sentinel)
    if place.port:
        options["socket_keepalive"] = True
    if _waits_for_greeting(options, settings):
        options["redis_connect_func"] = _greet
    return Pool(
        partial(
            _BLOCKING.of(settings, place),
            socket_timeout=seconds(settings.socket_timeout),
            retry=Retry(NoBackoff(), 0),  # if the driver repeated calls, outcomes would be unknowable
            **options,
        )
    )


def async_pool(
    settings: ConnectionSettings, place: Endpoint, *, sentinel: bool = False
) -> Pool[aio.AbstractConnection]:
    """The connections of one event loop to a server."""
    options = _options(settings, place, sentinel=sentinel)
    if _waits_for_greeting(options, settings):
        options["redis_connect_func"] = _greet_async
    return Pool(
        partial(
            _ASYNCIO.of(settings, place),
            # None: redis-py would send inside wait_for, which on Python 3.11 can swallow a cancellation; the
            # cancelled task would then never end. Every exchange has our own time limit instead.
            socket_timeout=None,
            retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
            **options,
        )
    )


def _options(settings: ConnectionSettings, place: Endpoint, *, sentinel: bool) -> dict[str, Any]:
    """The arguments for redis-py, without the time limits of exchanges."""
    if settings.tls:
        _check_files(settings)
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": ESCAPES,
        "protocol": 2,
        "driver_info": None,  # saves two commands per connection that an ACL would have to allow
        "socket_connect_timeout": seconds(settings.connect_timeout),
        "username": settings.sentinel_user if sentinel else settings.user,
        "password": settings.sentinel_password if sentinel else settings.password,
        "db": 0 if sentinel else settings.db,
    }
    if place.port:
        options |= {"host": place.host, "port": place.port}
    else:
        options["path"] = place.host
    if settings.tls:
        options |= {
            "ssl_ca_certs": settings.ca,
            "ssl_certfile": settings.cert,
            "ssl_keyfile": settings.key,
            "ssl_cert_reqs": "required" if settings.verify else "none",
            "ssl_check_hostname": settings.verify,
        }
    return options


def _waits_for_greeting(options: dict[str, Any], settings: ConnectionSettings) -> bool:
    """Whether a connection sends HELLO first.

    With TLS 1.3 a server may refuse a client's certificate after the handshake, and the outcome of the first
    call would be unknown. A reply to HELLO proves that it did not; so does a reply to AUTH. No ACL can forbid
    HELLO.
    """
    return settings.tls and not options["password"]


def _greet(connection: Any) -> None:
    connection.on_connect()
    connection.send_command("HELLO", 2, check_health=False)
    connection.read_response()


async def _greet_async(connection: Any) -> None:
    await connection.on_connect()
    await connection.send_command("HELLO", 2, check_health=False)
    await connection.read_response()


def _check_files(settings: ConnectionSettings) -> None:
    for name in ("ca", "cert", "key"):
        path = getattr(settings, name)
        try:
            if path:
                Path(path).read_bytes()
        except OSError as exc:
            raise ConfigurationError(f"{name}: {path} cannot be read: {exc.strerror}") from exc
        except ValueError:
            raise ConfigurationError(f"{name} must be the path of a file") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if settings.ca:
            context.load_verify_locations(settings.ca)
    except ssl.SSLError:
        raise ConfigurationError(f"ca: {settings.ca} contains no certificates in PEM form") from None
    try:
        if settings.cert:
            context.load_cert_chain(settings.cert, settings.key, _no_password)
    except ssl.SSLError:
        what = f"{settings.cert} and {settings.key}" if settings.key else settings.cert
        raise ConfigurationError(
            f"cert: {what} must contain a certificate and its key in PEM form, without a password"
        ) from None


def _no_password() -> str:
    """Replaces OpenSSL's prompt on the terminal."""
    return ""


C = TypeVar("C")
T = TypeVar("T")

IDLE_SECONDS: Final = 60.0


class Link(Enum):
    """The state of a connection after an exchange.

    ``SOUND``: it may be used again. ``BROKEN``: it may not; the others may. ``MISLED``: neither it nor the
    others may, since it leads to a server that hangs or is no longer the primary. If one address serves
    several servers, only a new connection reaches the current one.
    """

    SOUND = "sound"
    BROKEN = "broken"
    MISLED = "misled"


class Pool(Generic[C]):
    """The connections to one server. Thread-safe: each step is one call of a deque or a set."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._idle: deque[tuple[float, C]] = deque()
        self._in_use: set[C] = set()
        self._condemned: set[C] = set()
        self._old: deque[C] = deque()

    def take(self) -> C:
        """The most recently used connection, or a new one that is not connected yet.

        Connections that were idle for a minute are not used. Load balancers silently drop idle connections,
        and a call on a dropped one would wait for its whole time limit.
        """
        try:
            used, connection = self._idle.pop()
        except IndexError:
            connection = self._make()
        else:
            if used <= monotonic() - IDLE_SECONDS:
                self._old.append(connection)
                connection = self._make()
        self._in_use.add(connection)
        return connection

    def put(self, connection: C, link: Link) -> list[C]:
        """Return a connection to the pool if it can be used again.

        Returns the connections to close: this one if it cannot, those that were idle for a minute, and after
        ``MISLED`` all idle ones. Those in use then follow at the end of their calls.
        """
        return [*self._kept(connection, link), *_emptied(self._old)]

    def _kept(self, connection: C, link: Link) -> list[C]:
        self._in_use.discard(connection)
        if link is Link.MISLED:
            self._condemned.update(list(self._in_use))
        is_condemned = connection in self._condemned
        self._condemned.discard(connection)
        if link is Link.MISLED:
            return [connection, *(idle for _, idle in _emptied(self._idle))]
        if link is Link.BROKEN or is_condemned:
            return [connection]
        now = monotonic()
        self._idle.append((now, connection))
        return self._idle_since(now - IDLE_SECONDS)

    def every(self) -> list[C]:
        """All connections, idle and in use."""
        return [connection for _, connection in list(self._idle)] + list(self._in_use) + list(self._old)

    def _idle_since(self, since: float) -> list[C]:
        found: list[C] = []
        while True:
            try:
                used, connection = self._idle.popleft()
            except IndexError:
                return found
            if used > since:  # the others were used more recently
                self._idle.appendleft((used, connection))
                return found
            found.append(connection)


def _emptied(queue: deque[T]) -> list[T]:
    found: list[T] = []
    while True:
        try:
            found.append(queue.pop())
        except IndexError:
            return found
