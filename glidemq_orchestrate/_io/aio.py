"""Drives operations on asyncio connections. For one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ResponseError

from glidemq_orchestrate._io.connect import async_pool
from glidemq_orchestrate._io.topology import Answered, Parcel, Single, Topology, topology_of
from glidemq_orchestrate._io.translate import DRIVER_ERRORS, broken, not_connected, refused
from glidemq_orchestrate._protocol.call import Batch, Call, Op, Request
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.settings import ConnectionSettings, Place

_pack: Any = None
with contextlib.suppress(ImportError):  # redis-py packs by it on blocking connections only
    import hiredis

    _pack = hiredis.pack_command

T = TypeVar("T")


class AsyncDriver:
    """Connections to the servers that settings name; made on first use."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._topology = topology_of(settings)
        self._pools: dict[tuple[Place, bool], ConnectionPool] = {}

    async def run(self, op: Op[T]) -> T:
        """Run an operation to its end: what it returns or raises."""
        return await self._run(op, self._topology)

    async def run_on_each(self, make: Callable[[Place], Op[T]]) -> list[tuple[Place, T]]:
        """Run an operation on every primary, one after the other."""
        lookup = self._topology.primaries()
        places = await self._drive(lookup)
        return [(place, await self._run(make(place), Single(place))) for place in places]

    async def aclose(self) -> None:
        """Close every connection; a later use opens new ones."""
        for pool in list(self._pools.values()):
            await pool.disconnect()

    async def _run(self, op: Op[T], topology: Topology) -> T:
        try:
            request = next(op)
            while True:
                try:
                    reply = await self._answer(request, topology)
                except GlideMQError as exc:
                    request = op.throw(exc)
                else:
                    request = op.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            op.close()

    async def _answer(self, request: Request, topology: Topology) -> Any:
        if isinstance(request, Batch):
            return await self._drive(topology.deliver(request.calls))
        (reply,) = await self._drive(topology.deliver((request,)))
        if isinstance(reply, GlideMQError):
            raise reply
        return reply

    async def _drive(self, delivery: Any) -> Any:
        try:
            parcels = next(delivery)
            while True:
                if len(parcels) == 1:
                    answers = [await self._send(parcels[0])]
                else:
                    answers = await asyncio.gather(*map(self._send, parcels))
                parcels = delivery.send(answers)
        except StopIteration as stop:
            return stop.value

    async def _send(self, parcel: Parcel) -> Answered:
        try:
            return await self._exchange(parcel)
        except GlideMQError as exc:
            return exc

    async def _exchange(self, parcel: Parcel) -> Answered:
        settings, pool = self._settings, self._pool(parcel)
        try:
            async with asyncio.timeout(settings.connect_timeout + settings.socket_timeout):
                connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        except DRIVER_ERRORS as exc:
            raise not_connected(settings, parcel.place, exc) from exc
        done = False
        limit = settings.socket_timeout + max((call.blocks_for or 0 for call in parcel.calls), default=0)
        try:
            async with asyncio.timeout(limit):
                await connection.send_packed_command(_packed(connection, parcel.calls))
                replies = [await self._reply(connection) for _ in parcel.calls]
            done = True
        except DRIVER_ERRORS as exc:
            raise broken(settings, parcel.place, exc) from exc
        finally:
            if not done:  # also when cancelled: half a reply may be on its way
                await connection.disconnect(nowait=True)
            await pool.release(connection)
        return replies

    async def _reply(self, connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response()
        except ResponseError as exc:
            return refused(exc)

    def _pool(self, parcel: Parcel) -> ConnectionPool:
        key = (parcel.place, parcel.sentinel)
        if key not in self._pools:
            self._pools[key] = async_pool(self._settings, parcel.place, sentinel=parcel.sentinel)
        return self._pools[key]


def _packed(connection: AbstractConnection, calls: Sequence[Call[Any]]) -> Iterable[bytes]:
    if _pack is None:
        packed: Iterable[bytes] = connection.pack_commands([call.words for call in calls])
        return packed
    return [_pack(call.words) for call in calls]
