"""Ends of runs are reported together, each of them, and bring the next jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from glidemq_orchestrate.chasquimq.consuming import Consumer
from glidemq_orchestrate.chasquimq.ending import event, settle
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.reporting import TRIP_ENDS, Reports
from glidemq_orchestrate.errors import OutcomeUnknown, ProtocolError
from glidemq_orchestrate.wire.call import Batch, Op
from glidemq_orchestrate.worker.handlers.log import FailureLog
from glidemq_orchestrate.worker.tasks import OwnTask

KEYS = ChasquiKeys("images")
CONSUMER = Consumer(KEYS, "default", "me", 3)
REFUSED = ProtocolError("ERR no")


class Server:
    """Replies to trips; each is noted as its ends, its events, and how many jobs it wants."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.is_busy = asyncio.Event()
        self.bad: set[str] = set()
        self.trips: list[tuple[list[str], int, int]] = []
        self.found: list[Any] = []

    async def run(self, op: Op[Any]) -> Any:
        request = next(op)
        assert isinstance(request, Batch)
        self.is_busy.set()
        await asyncio.sleep(0.01)
        words = request.calls[0].words
        ends = [str(word) for word in words if str(word).startswith("1-")]
        wanted = int(request.calls[1].words[5]) if len(request.calls) > 1 else 0
        self.trips.append((ends, int(words[int(words[2]) + 5]), wanted))
        try:
            if self.errors:
                op.throw(self.errors.pop(0))
            is_bad = self.bad & set(ends)
            reply = REFUSED if is_bad else [0 if end.endswith("0") else 1 for end in ends]
            op.send([reply, None][: len(request.calls)])
        except StopIteration as stop:
            return stop.value

    def start(self, found: Sequence[Any]) -> None:
        self.found += found


@asynccontextmanager
async def reports_to(server: Server, room: int = 0) -> AsyncIterator[Reports]:
    reports = Reports(server.run, CONSUMER, FailureLog("me"), lambda ends: room + ends, server.start)
    task = OwnTask(reports.serve(), loop=asyncio.get_running_loop())
    yield reports
    task.end()
    await asyncio.wait([task])


async def test_what_ends_during_a_trip_goes_with_the_next_one() -> None:
    server = Server()
    async with reports_to(server, room=2) as reports:
        reports.tell(event("active", "a", "", 1))
        await server.is_busy.wait()
        found = [reports.report(settle(KEYS, f"1-{number}", None)) for number in (1, 2, 10)]
        assert await asyncio.gather(*found) == [True, True, False]
        assert (server.trips, reports.reserved) == ([([], 1, 0), (["1-1", "1-2", "1-10"], 0, 5)], 0)
        many = [reports.report(settle(KEYS, "1-1", None)) for _ in range(TRIP_ENDS + 1)]
        await asyncio.gather(*many)
        assert [len(ends) for ends, *_ in server.trips[2:]] == [TRIP_ENDS, 1]


async def test_the_events_of_a_short_job_travel_with_its_end() -> None:
    server = Server()
    async with reports_to(server) as reports:
        reports.tell(event("active", "a", "", 1))
        await asyncio.sleep(0)
        assert await reports.report(settle(KEYS, "1-1", None))
        reports.tell(event("active", "b", "", 1))
        assert await reports.report(settle(KEYS, "1-2", None))
        assert server.trips == [(["1-1"], 1, 1), (["1-2"], 1, 1)]


async def test_an_end_is_reported_again_after_a_broken_connection() -> None:
    server = Server(OutcomeUnknown("broken"))
    async with reports_to(server) as reports:
        assert await reports.report(settle(KEYS, "1-10", None))  # it may have been accepted the first time
        assert [ends for ends, *_ in server.trips] == [["1-10"], ["1-10"]]


async def test_a_refused_end_stops_no_other() -> None:
    server = Server()
    server.bad.add("1-2")
    async with reports_to(server) as reports:
        reports.tell(event("active", "a", "", 1))
        first, second, third = (reports.report(settle(KEYS, f"1-{number}", None)) for number in (1, 2, 3))
        assert (await first, await third) == (True, True)
        with pytest.raises(ProtocolError):
            await second
        assert server.trips == [
            (["1-1", "1-2", "1-3"], 1, 3),
            *(([f"1-{number}"], 0, 1) for number in (1, 2, 3)),
        ]
