"""Drives operations on asyncio connections of one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import BusyLoadingError, ResponseError

from glidemq_orchestrate.errors import GlideMQError, LibraryMissing, OutcomeUnknown
from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.io.confirming import confirmed_replies, followed
from glidemq_orchestrate.io.connect import Link, Pool, abort, async_pool, is_open_async, opened_async
from glidemq_orchestrate.io.delivery import (
    Delivered,
    Recover,
    is_timeout,
    outcome,
    pieces,
    put_back,
    sort_out,
    tries,
    work_ahead,
)
from glidemq_orchestrate.io.topology import (
    DOUBT_SECONDS,
    Parcel,
    Received,
    Replies,
    Single,
    Topology,
    is_stale,
    topology_of,
)
from glidemq_orchestrate.io.translate import broken, loading, not_connected, refused, unread
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.call import Batch, Call, Op, Request

T = TypeVar("T")


class ReplacementCheck:
    """Checks periodically, while a reply is overdue, whether its server has been replaced.

    Args:
        check: The check, which also ends the wait if needed.
        longer: Seconds for which the server may block on purpose.
    """

    def __init__(self, check: Callable[[], Coroutine[Any, Any, None]], longer: float) -> None:
        self._check_now, self._loop = check, asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(DOUBT_SECONDS + longer, self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._check())

    async def _check(self) -> None:
        while True:
            await self._check_now()
            await asyncio.sleep(DOUBT_SECONDS)

    def end(self) -> None:
        """Stop checking: the reply has arrived, or its caller no longer waits."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


class AsyncDriver:
    """Connections to the configured servers; opened on first use.

    Args:
        settings: The servers.
        recover: What ``run`` does after calls that found no library; see ``Recover``.
        patience: For how many seconds calls for a moving slot are repeated; see ``delivery``.
    """

    def __init__(
        self, settings: ConnectionSettings, recover: Recover | None = None, patience: float = 0.0
    ) -> None:
        self._settings, self._recover, self._patience = settings, recover, patience
        self._reply_seconds = seconds(settings.socket_timeout)
        self._open_seconds = seconds(settings.connect_timeout) + self._reply_seconds
        self._topology = topology_of(settings)
        self._pools: dict[tuple[Endpoint, bool], Pool[AbstractConnection]] = {}
        self._has_replied, self._closings = False, 0

    async def run(self, op: Op[T]) -> T:
        """Run an operation to its end; returns its value or raises its error."""
        return await self._run(op, self._topology, self._recover)

    async def run_on_each(self, make: Callable[[Endpoint], Op[T]]) -> list[tuple[Endpoint, T]]:
        """Run an operation on every primary, one after the other."""
        lookup = self._topology.primaries()
        places = await self._drive(lookup)
        return [(place, await self._run(make(place), Single(place))) for place in places]

    async def aclose(self) -> None:
        """Close every connection; a later use opens new ones."""
        self._closings += 1
        for pool in list(self._pools.values()):
            for connection in pool.every():
                await connection.disconnect(nowait=True)
        await asyncio.sleep(0)  # lets the event loop close their sockets

    async def _run(self, op: Op[T], topology: Topology, recover: Recover | None = None) -> T:
        """Send the operation the reply to each of its requests, or raise the error in it."""
        try:
            request = next(op)
            while True:
                try:
                    reply = await self._reply_to(request, topology, recover)
                except GlideMQError as exc:
                    request = op.throw(exc)
                else:
                    request = op.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            op.close()

    async def _reply_to(self, request: Request, topology: Topology, recover: Recover | None) -> Any:
        is_batch = isinstance(request, Batch)
        whole = request.calls if isinstance(request, Batch) else (request,)
        calls, flawed = sort_out(whole)
        replies = put_back(await self._deliver(calls, topology) if calls else [], flawed)
        if recover is not None and LibraryMissing in map(type, replies):
            replies = await self._run(recover(whole, replies), topology)
        return replies if is_batch else outcome(replies[0])

    async def _deliver(self, calls: Sequence[Call[Any]], topology: Topology) -> list[Any]:
        """The replies to the calls; calls that are safe to repeat are sent again after some errors."""
        closings, delivered = self._closings, await self._once(calls, topology)
        for pause, is_late in tries(self._patience):
            again = delivered.again(calls, is_known=self._has_replied, is_late=is_late)
            if not again or closings != self._closings:
                break
            await asyncio.sleep(pause)
            delivered.merge(again, await self._once([calls[number] for number in again], topology))
        return delivered.outcome()

    async def _once(self, calls: Sequence[Call[Any]], topology: Topology) -> Delivered:
        try:
            return Delivered(await self._drive(topology.deliver(tuple(calls))))
        except GlideMQError as exc:
            return Delivered([], exc)

    async def _drive(self, delivery: Any) -> Any:
        """Send the parcels of a delivery until it returns."""
        try:
            parcels = next(delivery)
            while True:
                if len(parcels) == 1:
                    received = [await self._send(parcels[0])]
                else:
                    received = await asyncio.gather(*map(self._send, parcels))
                parcels = delivery.send(received)
        except StopIteration as stop:
            return stop.value
        except GlideMQError:
            raise
        except Exception as exc:
            raise unread(self._settings.where, exc) from exc

    async def _send(self, parcel: Parcel) -> Received:
        try:
            if self._settings.confirm is None or (whole := followed(parcel, self._settings)) is None:
                return await self._exchange(parcel)
            return confirmed_replies(whole, await self._exchange(whole), parcel, self._settings)
        except GlideMQError as exc:
            return exc

    async def _exchange(self, parcel: Parcel) -> Replies:
        """Send a parcel on one connection and read its replies; closes bad connections (see ``Link``)."""
        pool = self._pool(parcel)
        connection = pool.take()
        link = Link.BROKEN  # also when cancelled: part of a reply may still arrive
        try:
            await self._open(connection, parcel)
            replies = await self._converse(connection, parcel)
            self._has_replied = True
            link = Link.MISLED if any(map(is_stale, replies)) else Link.SOUND
        except OutcomeUnknown as exc:
            link = Link.MISLED if is_timeout(exc) else Link.BROKEN
            raise
        finally:
            for unwanted in pool.put(connection, link):
                await unwanted.disconnect(nowait=True)
        return replies

    async def _open(self, connection: AbstractConnection, parcel: Parcel) -> None:
        if await is_open_async(connection):
            return
        settings = self._settings
        try:
            async with asyncio.timeout(self._open_seconds):
                await opened_async(connection)
        except Exception as exc:
            raise not_connected(settings, parcel.place, exc) from exc

    async def _converse(self, connection: AbstractConnection, parcel: Parcel) -> Replies:
        settings = self._settings
        limit = self._reply_seconds + sum(call.blocks_for or 0 for call in parcel.calls)
        replies: Replies = []
        check = (
            self._replacement_check(connection, parcel)
            if self._topology.can_check_replacement(parcel)
            else None
        )
        try:
            async with asyncio.timeout(limit):
                await connection.send_packed_command(pieces(parcel.calls))
                work_ahead(parcel.calls)
                for _ in parcel.calls:
                    replies.append(await self._reply(connection))
        except BusyLoadingError as exc:
            return [*replies, *loading(len(parcel.calls) - len(replies), exc)]
        except Exception as exc:
            raise broken(settings, parcel.place, exc) from exc
        finally:
            if check is not None:
                check.end()
        return replies

    def _replacement_check(self, connection: AbstractConnection, parcel: Parcel) -> ReplacementCheck:
        async def end_if_replaced() -> None:
            with suppress(GlideMQError):
                if await self._drive(self._topology.is_replaced(parcel.place)):
                    abort(connection)

        return ReplacementCheck(end_if_replaced, sum(call.blocks_for or 0.0 for call in parcel.calls))

    async def _reply(self, connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response()
        except ResponseError as exc:
            return refused(exc)

    def _pool(self, parcel: Parcel) -> Pool[AbstractConnection]:
        key = (parcel.place, parcel.sentinel)
        if key not in self._pools:
            self._pools[key] = async_pool(self._settings, parcel.place, sentinel=parcel.sentinel)
        return self._pools[key]
