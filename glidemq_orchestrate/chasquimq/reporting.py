"""Reports the ends of runs and events to the server, and fetches the next jobs in the same trips."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.chasquimq.consuming import Arrived, Consumer, Refused
from glidemq_orchestrate.chasquimq.ending import Ending, Event, Verdict, exchange
from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.worker.handlers.log import FailureLog
from glidemq_orchestrate.worker.tasks import reconnect_delays

TRIP_ENDS: Final = 100
TRIP_SIZE: Final = 1_000_000
EVENT_SECONDS: Final = 0.005
"""How long events wait for an end to travel with: that of a short job spares a trip."""


@dataclass(slots=True, eq=False)
class Report:
    """An end that is to be reported.

    Attributes:
        ending: The end.
        was_held: Becomes whether the run still held its job, or the error because of which it has not ended.
        was_sent: A reply was lost: it may have been accepted before.
    """

    ending: Ending
    was_held: asyncio.Future[bool]
    was_sent: bool = False


class Reports:
    """Makes one trip at a time: what is reported during a trip goes with the next one.

    Args:
        run: Drives operations.
        consumer: The consumer.
        failures: Logs the failures that it survives.
        room: How many jobs to fetch with the report of so many ends.
        start: Receives the jobs.

    Attributes:
        reserved: The number of jobs that the trip under way may bring.
    """

    def __init__(
        self,
        run: Run,
        consumer: Consumer,
        failures: FailureLog,
        room: Callable[[int], int],
        start: Callable[[Sequence[Arrived | Refused]], None],
    ) -> None:
        self._run, self._consumer, self._failures = run, consumer, failures
        self._room, self._start = room, start
        self._events: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ends: deque[Report] = deque()
        self._singly = 0
        self._woken = asyncio.Event()
        self._pauses = reconnect_delays()
        self.reserved = 0

    def tell(self, event: Event) -> None:
        """Write an event with the next trip, or soon; not if the server cannot be reached."""
        self._events.append(event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVENT_SECONDS, self._woken.set)

    def report(self, ending: Ending) -> asyncio.Future[bool]:
        """Report an end, again after each broken connection; see ``Report``."""
        report = Report(ending, asyncio.get_running_loop().create_future())
        self._ends.append(report)
        self._woken.set()
        return report.was_held

    async def serve(self) -> None:
        """Make trips while there is something to report."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._events:
                await self._trip()
            while self._ends:
                await self._trip()

    async def _trip(self) -> None:
        events, self._events = self._events, []
        if self._timer is not None:  # it would wake for later events too soon
            self._timer.cancel()
            self._timer = None
        ends, unsent = self._next(), True
        wanted = self.reserved = max(self._room(len(ends)), 0) if ends else 0
        try:
            verdicts, found = await self._run(
                exchange(self._consumer, events, [one.ending for one in ends], wanted)
            )
            unsent = False
        except GlideMQError as exc:
            verdicts, found, unsent = exc, [], False
        finally:
            self.reserved = 0
            if unsent:
                self._ends.extendleft(reversed(ends))
        if not isinstance(found, GlideMQError):  # else the next fetch finds the same, and reports it
            self._start(found)
        if not isinstance(verdicts, GlideMQError):
            self._accepted(ends, verdicts)
        elif len(ends) == 1 and not (events or isinstance(verdicts, TransportError)):
            _decide(ends[0], verdicts)
        else:
            await self._failed(ends, verdicts)

    def _next(self) -> list[Report]:
        """The ends of the next trip: bounded, and single ones after a refusal."""
        ends: list[Report] = []
        size, most = 0, 1 if self._singly else TRIP_ENDS
        self._singly = max(self._singly - 1, 0)
        while self._ends and len(ends) < most and (not ends or size < TRIP_SIZE):
            ends.append(self._ends.popleft())
            size += ends[-1].ending.size
        return ends

    def _accepted(self, ends: Sequence[Report], verdicts: Sequence[Verdict]) -> None:
        self._failures.clear(self._what)
        self._pauses = reconnect_delays()
        for report, verdict in zip(ends, verdicts, strict=True):
            _decide(report, verdict)

    async def _failed(self, ends: Sequence[Report], error: GlideMQError) -> None:
        """Try again: after a pause if the server cannot be reached, else one by one, without the events."""
        self._failures.report(self._what, error)
        self._ends.extendleft(reversed(ends))
        if not isinstance(error, TransportError):
            self._singly = len(ends)
            return
        for report in ends:
            report.was_sent = True
        await asyncio.sleep(next(self._pauses))

    @property
    def _what(self) -> str:
        return f"reporting jobs of queue {self._consumer.keys.queue}"


def _decide(report: Report, verdict: Verdict) -> None:
    if report.was_held.done():  # its task was cancelled
        return
    if isinstance(verdict, GlideMQError):
        report.was_held.set_exception(verdict)
    else:
        report.was_held.set_result(verdict or report.was_sent)
