"""Drives operations on asyncio connections. For one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from glidemq_orchestrate._io.translate import DRIVER_ERRORS, MAX_CONNECTIONS, broken, not_connected, refused
from glidemq_orchestrate._protocol.call import Batch, Call, Op, Request
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.settings import ConnectionSettings

_pack: Any = None
with contextlib.suppress(ImportError):  # redis-py packs by it on blocking connections only
    import hiredis

    _pack = hiredis.pack_command

T = TypeVar("T")


class AsyncDriver:
    """Connections to one server; made on first use."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._pool: ConnectionPool = ConnectionPool.from_url(
            settings.driver_url,
            max_connections=MAX_CONNECTIONS,
            decode_responses=True,
            protocol=2,
            # None: redis-py would send inside wait_for, which on Python 3.11 can swallow a cancellation, and
            # the cancelled task would go on for ever. Every exchange has a time limit of ours instead.
            socket_timeout=None,
            socket_connect_timeout=settings.connect_timeout,
            retry=Retry(NoBackoff(), 0),  # a driver that sends twice would make outcomes unknowable
        )

    async def run(self, op: Op[T]) -> T:
        """Run an operation to its end: what it returns or raises."""
        try:
            request = next(op)
            while True:
                try:
                    reply = await self._answer(request)
                except GlideMQError as exc:
                    request = op.throw(exc)
                else:
                    request = op.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            op.close()

    async def aclose(self) -> None:
        """Close every connection; a later use opens new ones."""
        await self._pool.disconnect()

    async def _answer(self, request: Request) -> Any:
        try:
            async with asyncio.timeout(self._settings.connect_timeout + self._settings.socket_timeout):
                connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        except DRIVER_ERRORS as exc:
            raise not_connected(self._settings, exc) from exc
        done = False
        try:
            answer = await self._exchange(connection, request)
            done = True
        finally:
            if not done:  # also when cancelled: half a reply may be on its way
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)
        if isinstance(answer, GlideMQError):
            raise answer
        return answer

    async def _exchange(self, connection: AbstractConnection, request: Request) -> Any:
        calls = request.calls if isinstance(request, Batch) else (request,)
        limit = self._settings.socket_timeout + max((call.blocks_for or 0 for call in calls), default=0)
        try:
            async with asyncio.timeout(limit):
                await connection.send_packed_command(_packed(connection, calls))
                replies = [await self._reply(connection) for _ in calls]
        except DRIVER_ERRORS as exc:
            raise broken(self._settings, exc) from exc
        return replies if isinstance(request, Batch) else replies[0]

    async def _reply(self, connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response()
        except ResponseError as exc:
            return refused(exc)


def _packed(connection: AbstractConnection, calls: Sequence[Call[Any]]) -> Iterable[bytes]:
    if _pack is None:
        packed: Iterable[bytes] = connection.pack_commands([call.words for call in calls])
        return packed
    return [_pack(call.words) for call in calls]
