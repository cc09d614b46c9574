"""Drives operations on blocking connections. Thread-safe: each call takes its own connection from a pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.connection import AbstractConnection
from redis.exceptions import BusyLoadingError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from glidemq_orchestrate.errors import GlideMQError, LibraryMissing, OutcomeUnknown
from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.io.confirming import confirmed_replies, followed
from glidemq_orchestrate.io.connect import Link, Pool, opened, sync_pool
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
    REPLACED,
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


class SyncDriver:
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
        self._topology = topology_of(settings)
        self._pools: dict[tuple[Endpoint, bool], Pool[AbstractConnection]] = {}
        self._making = threading.Lock()
        self._has_replied, self._closings = False, 0

    def run(self, op: Op[T]) -> T:
        """Run an operation to its end; returns its value or raises its error."""
        return self._run(op, self._topology, self._recover)

    def run_on_each(
        self, make: Callable[[Endpoint], Op[T]], also: Sequence[Endpoint] = ()
    ) -> list[tuple[Endpoint, T]]:
        """Run an operation on every primary with data, one after the other; then on other servers."""
        places = (*self._drive(self._topology.primaries()), *also)
        return [(place, self._run(make(place), Single(place))) for place in places]

    def close(self) -> None:
        """Close every connection; a later use opens new ones."""
        self._closings += 1
        with self._making:
            pools = list(self._pools.values())
        for pool in pools:
            for connection in pool.every():
                connection.disconnect()  # type: ignore[no-untyped-call]

    def _run(self, op: Op[T], topology: Topology, recover: Recover | None = None) -> T:
        """Send the operation the reply to each of its requests, or raise the error in it."""
        try:
            request = next(op)
            while True:
                try:
                    reply = self._reply_to(request, topology, recover)
                except GlideMQError as exc:
                    request = op.throw(exc)
                else:
                    request = op.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            op.close()

    def _reply_to(self, request: Request, topology: Topology, recover: Recover | None) -> Any:
        is_batch = isinstance(request, Batch)
        whole = request.calls if isinstance(request, Batch) else (request,)
        calls, flawed = sort_out(whole)
        replies = put_back(self._deliver(calls, topology) if calls else [], flawed)
        if recover is not None and LibraryMissing in map(type, replies):
            replies = self._run(recover(whole, replies), topology)
        return replies if is_batch else outcome(replies[0])

    def _deliver(self, calls: Sequence[Call[Any]], topology: Topology) -> list[Any]:
        """The replies to the calls; calls that are safe to repeat are sent again after some errors."""
        closings, delivered = self._closings, self._once(calls, topology)
        for pause, is_late in tries(self._patience):
            again = delivered.again(calls, is_known=self._has_replied, is_late=is_late)
            if not again or closings != self._closings:
                break
            time.sleep(pause)
            delivered.merge(again, self._once([calls[number] for number in again], topology))
        return delivered.outcome()

    def _once(self, calls: Sequence[Call[Any]], topology: Topology) -> Delivered:
        try:
            return Delivered(self._drive(topology.deliver(tuple(calls))))
        except GlideMQError as exc:
            return Delivered([], exc)

    def _drive(self, delivery: Any) -> Any:
        """Send the parcels of a delivery until it returns."""
        try:
            parcels = next(delivery)
            while True:
                parcels = delivery.send([self._send(parcel) for parcel in parcels])
        except StopIteration as stop:
            return stop.value
        except GlideMQError:
            raise
        except Exception as exc:
            raise unread(self._settings.where, exc) from exc

    def _send(self, parcel: Parcel) -> Received:
        try:
            if self._settings.confirm is None or (whole := followed(parcel, self._settings)) is None:
                return self._exchange(parcel)
            return confirmed_replies(whole, self._exchange(whole), parcel, self._settings)
        except GlideMQError as exc:
            return exc

    def _exchange(self, parcel: Parcel) -> Replies:
        """Send a parcel on one connection and read its replies; closes bad connections (see ``Link``)."""
        pool = self._pool(parcel)
        connection = pool.take()
        link = Link.BROKEN
        try:
            self._open(connection, parcel)
            replies = self._converse(connection, parcel)
            self._has_replied = True
            link = Link.MISLED if any(map(is_stale, replies)) else Link.SOUND
        except OutcomeUnknown as exc:
            link = Link.MISLED if is_timeout(exc) else Link.BROKEN
            raise
        finally:
            for unwanted in pool.put(connection, link):
                unwanted.disconnect()  # type: ignore[no-untyped-call]
        return replies

    def _open(self, connection: AbstractConnection, parcel: Parcel) -> None:
        try:
            opened(connection)
        except Exception as exc:
            raise not_connected(self._settings, parcel.place, exc) from exc

    def _converse(self, connection: AbstractConnection, parcel: Parcel) -> Replies:
        replies: Replies = []
        try:
            connection.send_packed_command(pieces(parcel.calls))  # type: ignore[no-untyped-call]
            work_ahead(parcel.calls)
            for call in parcel.calls:  # the replies before an error count
                if self._topology.can_check_replacement(parcel):
                    self._await_reply(connection, parcel, call)
                replies.append(self._reply(connection, call))
        except BusyLoadingError as exc:
            return [*replies, *loading(len(parcel.calls) - len(replies), exc)]
        except Exception as exc:
            raise broken(self._settings, parcel.place, exc) from exc
        return replies

    def _await_reply(self, connection: AbstractConnection, parcel: Parcel, call: Call[Any]) -> None:
        """Wait for the first bytes of a reply; end the wait if the server has been replaced."""
        limit = self._reply_seconds + (call.blocks_for or 0.0)
        until, pause = time.monotonic() + limit, DOUBT_SECONDS + (call.blocks_for or 0.0)
        while not connection.can_read(min(pause, max(until - time.monotonic(), 0.0))):
            if time.monotonic() >= until:
                raise RedisTimeoutError("Timeout reading from socket")
            pause = DOUBT_SECONDS
            with suppress(GlideMQError):
                if self._drive(self._topology.is_replaced(parcel.place)):
                    raise RedisConnectionError(REPLACED)

    def _reply(self, connection: AbstractConnection, call: Call[Any]) -> Any:
        try:
            if call.blocks_for is None:
                return connection.read_response()
            return connection.read_response(timeout=call.blocks_for + self._reply_seconds)
        except ResponseError as exc:
            return refused(exc)

    def _pool(self, parcel: Parcel) -> Pool[AbstractConnection]:
        key = (parcel.place, parcel.sentinel)
        pool = self._pools.get(key)
        if pool is None:
            with self._making:
                pool = self._pools.get(key) or sync_pool(
                    self._settings, parcel.place, sentinel=parcel.sentinel
                )
                self._pools[key] = pool
        return pool
