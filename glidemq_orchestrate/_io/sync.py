"""Drives operations on blocking connections. Thread-safe: every call takes its own from a pool."""

from __future__ import annotations

from typing import Any, TypeVar

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import ResponseError
from redis.retry import Retry

from glidemq_orchestrate._io.translate import DRIVER_ERRORS, MAX_CONNECTIONS, broken, not_connected, refused
from glidemq_orchestrate._protocol.call import Batch, Call, Op, Request
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.settings import ConnectionSettings

T = TypeVar("T")


class SyncDriver:
    """Connections to one server; made on first use."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._pool: ConnectionPool = ConnectionPool.from_url(
            settings.driver_url,
            max_connections=MAX_CONNECTIONS,
            decode_responses=True,
            protocol=2,
            socket_timeout=settings.socket_timeout,
            socket_connect_timeout=settings.connect_timeout,
            **({} if settings.driver_url.startswith("unix") else {"socket_keepalive": True}),
            retry=Retry(NoBackoff(), 0),  # a driver that sends twice would make outcomes unknowable
        )

    def run(self, op: Op[T]) -> T:
        """Run an operation to its end: what it returns or raises."""
        try:
            request = next(op)
            while True:
                try:
                    reply = self._answer(request)
                except GlideMQError as exc:
                    request = op.throw(exc)
                else:
                    request = op.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            op.close()

    def close(self) -> None:
        """Close every connection; a later use opens new ones."""
        self._pool.disconnect()

    def _answer(self, request: Request) -> Any:
        try:
            connection = self._pool.get_connection()
        except DRIVER_ERRORS as exc:
            raise not_connected(self._settings, exc) from exc
        done = False
        try:
            answer = self._exchange(connection, request)
            done = True
        finally:
            if not done:
                connection.disconnect()  # type: ignore[no-untyped-call]
            self._pool.release(connection)
        if isinstance(answer, GlideMQError):
            raise answer
        return answer

    def _exchange(self, connection: AbstractConnection, request: Request) -> Any:
        calls = request.calls if isinstance(request, Batch) else (request,)
        try:
            packed = connection.pack_commands([call.words for call in calls])  # type: ignore[no-untyped-call]
            connection.send_packed_command(packed)  # type: ignore[no-untyped-call]
            replies = [self._reply(connection, call) for call in calls]
        except DRIVER_ERRORS as exc:
            raise broken(self._settings, exc) from exc
        return replies if isinstance(request, Batch) else replies[0]

    def _reply(self, connection: AbstractConnection, call: Call[Any]) -> Any:
        try:
            if call.blocks_for is None:
                return connection.read_response()
            return connection.read_response(timeout=call.blocks_for + self._settings.socket_timeout)
        except ResponseError as exc:
            return refused(exc)
