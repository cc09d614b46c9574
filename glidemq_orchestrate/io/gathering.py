"""Sends what several operations ask at the same moment together: one connection and one trip per server."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from glidemq_orchestrate.errors import OutcomeUnknown
from glidemq_orchestrate.io.aio import AsyncDriver
from glidemq_orchestrate.io.topology import Parcel, Replies
from glidemq_orchestrate.settings import Endpoint

GATHER_SECONDS: Final = 0.001
MAX_CALLS: Final = 256


class GatheringDriver(AsyncDriver):
    """An ``AsyncDriver`` for many small operations that are in no hurry, such as the chores of many queues.

    Calls wait a millisecond for those of other operations to the same server, and share their trip. A server
    that does not reply delays only what was asked of it. Calls that block on purpose are sent alone.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._waiting: dict[tuple[Endpoint, bool], list[tuple[Parcel, asyncio.Future[Replies]]]] = {}
        self._trips: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Close every connection, also those of trips under way; a later use opens new ones."""
        trips = tuple(self._trips)
        for trip in trips:
            trip.cancel()
        await asyncio.gather(*trips, return_exceptions=True)
        await super().aclose()

    async def _exchange(self, parcel: Parcel) -> Replies:
        if any(call.blocks_for for call in parcel.calls):
            return await super()._exchange(parcel)
        loop, server = asyncio.get_running_loop(), (parcel.place, parcel.sentinel)
        reply: asyncio.Future[Replies] = loop.create_future()
        waiting = self._waiting.setdefault(server, [])
        waiting.append((parcel, reply))
        if len(waiting) == 1:
            loop.call_later(GATHER_SECONDS, self._begin_trip, server)
        elif sum(len(one.calls) for one, _ in waiting) >= MAX_CALLS:
            self._begin_trip(server)
        return await reply

    def _begin_trip(self, server: tuple[Endpoint, bool]) -> None:
        parcels = self._waiting.pop(server, ())
        # An operation cancelled meanwhile needs no reply, and its driver or loop may be closed already.
        if waiting := [(parcel, reply) for parcel, reply in parcels if not reply.done()]:
            task = asyncio.create_task(self._trip(waiting))
            self._trips.add(task)
            task.add_done_callback(self._trips.discard)

    async def _trip(self, waiting: list[tuple[Parcel, asyncio.Future[Replies]]]) -> None:
        """Send the parcels as one, and give each operation its replies, or all of them the error."""
        (place, sentinel), calls = (waiting[0][0].place, waiting[0][0].sentinel), list[Any]()
        for parcel, _ in waiting:
            calls += parcel.calls
        try:
            replies = await super()._exchange(Parcel(place, tuple(calls), sentinel))
        except BaseException as exc:  # noqa: BLE001  an operation whose reply never comes would wait for ever
            error = exc if isinstance(exc, Exception) else OutcomeUnknown("the trip was cancelled")
            for _, reply in waiting:
                if not reply.done():
                    reply.set_exception(error)
            return
        at = 0
        for parcel, reply in waiting:
            if not reply.done():  # its operation may have been cancelled
                reply.set_result(replies[at : at + len(parcel.calls)])
            at += len(parcel.calls)
