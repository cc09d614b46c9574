"""One queue of a worker: reports outcomes and fetches jobs.

``gmo_finish_and_fetch`` carries all outcomes and all jobs. There is one call at a time per queue, or two
under load. Outcomes that arrive during a call go with the next call, so a busy worker needs fewer round trips
per job. When the queue has no more jobs, a ``Listener`` decides when to call again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts.dead_letters import write_noted
from glidemq_orchestrate.attempts.exchange import (
    MAX_NODES,
    MAX_OUTCOMES,
    MAX_WANTED,
    Answer,
    Kind,
    Outcome,
    Request,
)
from glidemq_orchestrate.errors import EncodeError, TransportError
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt, token_of
from glidemq_orchestrate.wire.call import Op, Run
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.executor import refuse
from glidemq_orchestrate.worker.handlers.log import FailureLog
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.listener import Listener
from glidemq_orchestrate.worker.receipts import Receipts
from glidemq_orchestrate.worker.tasks import OwnTask, reconnect_delays

logger = logging.getLogger("glidemq_orchestrate.worker")

LANES: Final = 2
NEVER: Final = 2**63


@dataclass(slots=True)
class Flight:
    """A call under way.

    Attributes:
        request: The outcomes it carries, and how many jobs it requests.
        unsent: The outcomes that must be reported again if the call ends now.
        is_reserved: Whether its places are reserved.
    """

    request: Request
    unsent: Sequence[Outcome] = ()
    is_reserved: bool = False

    def __post_init__(self) -> None:
        """Start with every outcome unsent."""
        self.unsent = self.request.outcomes


@dataclass(slots=True, eq=False)
class Lane:
    """Calls in sequence, and the current one."""

    flight: Flight | None


class Runner(Protocol):
    """What a feed needs from its worker."""

    def take(self, fetched: list[Attempt]) -> None:
        """Run the fetched jobs."""

    def slice_sizes(self, queue: str) -> str:
        """How many elements of arrays to lease as a slice; see ``Request``. Empty: none of this queue now."""

    def has_starts(self, queue: str) -> bool:
        """Whether the start of a prefetched job is to be reported."""

    def take_starts(self, queue: str) -> list[Attempt]:
        """The prefetched jobs whose start is to be reported; afterwards they count as reported."""

    def freed(self) -> None:
        """Wake every queue of the worker: a place is free again."""

    def settled(self, outcome: Outcome, verdict: str) -> None:
        """Handle the server's verdict on an outcome."""


class Feed:
    """One queue of a worker.

    Args:
        run: Drives operations.
        worker_id: The consumer.
        keys: The queue.
        slots: Shared by all feeds of the worker.
        runner: Receives jobs and verdicts.
        clock: The current time.
        limit: Returns the max number of starts per window, and the window in ms; (0, 0) for the limit of the
            queue.
        sharing: Returns the number of feeds that may have jobs, and share the slots.
        failures: Logs the failures that it survives.

    Attributes:
        receipts: Confirms outcomes; None unless the connection confirms writes.
        schedules_due_ms: When the schedules of the queue are next due.
        rescheduled: Set when a reply shows that schedules are due sooner.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of a worker that a queue needs
        self,
        run: Run,
        worker_id: str,
        keys: QueueKeys,
        slots: JobSlots,
        runner: Runner,
        clock: Clock,
        limit: Callable[[], tuple[int, int]],
        sharing: Callable[[], int],
        failures: FailureLog,
    ) -> None:
        self._run, self._worker_id, self.keys, self._slots, self._runner = run, worker_id, keys, slots, runner
        self._clock, self._limit, self._sharing, self._failures = clock, limit, sharing, failures
        self._outbox: list[Outcome] = []
        self._woken = asyncio.Event()
        self.listening = f"listening to queue {keys.queue}"
        self._listener = Listener(
            run, keys, clock, self.wake, functools.partial(failures.clear, self.listening), slots.ends_soon
        )
        self.listen = self._listener.listen
        self._calling: list[Lane] = []
        self._second_lanes: set[OwnTask] = set()
        self._is_calling = False  # in ``serve``
        self._is_asked = False  # to consider a second call
        self._singly: deque[Outcome] = deque()  # outcomes of refused calls, to be sent one by one
        self._singly_at = 0.0
        self._pauses = reconnect_delays()
        self._calls_under_way = 0
        self.schedules_due_ms, self.rescheduled = NEVER, asyncio.Event()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self.receipts: Receipts | None = None

    def report(self, outcome: Outcome) -> None:
        """Report an outcome with the next call."""
        self._outbox.append(outcome)
        self.wake()

    def wake(self) -> None:
        """Check again: there may be room, or jobs."""
        self._woken.set()
        if self._is_calling and not self._is_asked:
            self._is_asked = True
            self._loop.call_soon(self._add_lane)

    @property
    def may_have_jobs(self) -> bool:
        """Whether the queue is not known to be empty."""
        return not self._listener.is_dry.is_set()

    def close(self) -> None:
        """End ``serve`` once every outcome is reported."""
        self._closing = True
        self._woken.set()

    @property
    def unreported(self) -> list[Attempt]:
        """The ended attempts whose outcome may not have reached the server."""
        flights = [lane.flight for lane in self._calling if lane.flight is not None]
        outcomes = [*self._outbox, *(outcome for flight in flights for outcome in flight.unsent)]
        return [outcome.attempt for outcome in outcomes]

    async def serve(self) -> None:
        """Exchange with the queue until closed."""
        try:
            while True:
                if (flight := self._next(len(self._calling))) is not None:
                    await self._call(self._begin(flight))
                elif self._closing and self._is_done:
                    return
                else:
                    await self._pause()
        finally:
            self._listener.close()
            lanes = list(self._second_lanes)
            for task in lanes:
                task.end()
            await asyncio.gather(*lanes, return_exceptions=True)

    @property
    def _is_done(self) -> bool:
        """Whether every outcome is reported, and confirmed if it must be."""
        return not (self._calling or self._singly or (self.receipts and not self.receipts.is_empty))

    def _begin(self, flight: Flight) -> Lane:
        lane = Lane(flight)
        self._calling.append(lane)
        return lane

    async def _call(self, lane: Lane) -> None:
        """Make a call in this task, the first one of the feed."""
        self._is_calling = True
        try:
            await self._exchange_all(lane)
        finally:
            self._is_calling = False
            self._end(lane)

    def _add_lane(self) -> None:
        """Make a second call in a task of its own while ``serve`` makes one, if that is worth its cost."""
        self._is_asked = False
        if self._is_calling and (flight := self._next(len(self._calling))) is not None:
            lane = self._begin(flight)
            task = OwnTask(self._exchange_all(lane), loop=self._loop)
            self._second_lanes.add(task)
            task.add_done_callback(functools.partial(self._second_ended, lane))

    def _second_ended(self, lane: Lane, task: OwnTask) -> None:
        self._second_lanes.discard(task)
        self._end(lane)

    async def _exchange_all(self, lane: Lane) -> None:
        """Call the server; under load call again with new outcomes, so that the server is never idle."""
        try:
            while lane.flight is not None:
                await self._exchange(lane.flight)
                is_busy = len(self._outbox) >= MAX_NODES
                lane.flight = self._next(len(self._calling) - 1) if is_busy else None
        except Exception as exc:  # noqa: BLE001  the queue must be served in any case
            self._failures.report(f"queue {self.keys.queue}", exc)
            await asyncio.sleep(0)  # whatever failed, the loop goes on

    def _end(self, lane: Lane) -> None:
        """Free the lane, however its calls ended; send again the outcomes that they did not report."""
        self._calling.remove(lane)
        if lane.flight is not None:
            self._release(lane.flight)
            self._outbox = [*lane.flight.unsent, *self._outbox]
        self.wake()

    def _next(self, others: int) -> Flight | None:
        """The next call beside ``others`` calls under way; None if there should be none now."""
        wanted = 0 if self._listener.is_dry.is_set() and not self._outbox else self._wanted()
        has_starts = not others and self._runner.has_starts(self.keys.queue)
        if self._singly and not others and self._loop.time() >= self._singly_at:
            return self._prepare([self._singly.popleft()], 0)
        if has_starts or self._is_worth_a_call(wanted, others):
            limit = MAX_OUTCOMES
            if any(outcome.attempt.flow_id for outcome in self._outbox[:limit]):
                limit = MAX_NODES
            outcomes, self._outbox = self._outbox[:limit], self._outbox[limit:]
            return self._prepare(outcomes, wanted)
        return None

    def _is_worth_a_call(self, wanted: int, others: int) -> bool:
        """Whether to call now. While a call is under way, only a large second call is worth its cost.

        The server then executes one call while this worker reads and writes the other. With a concurrency
        of 1 there is no second call: calls may overtake each other, but jobs must start in order.
        """
        if not others:
            return bool(self._outbox or wanted)
        is_much = len(self._outbox) >= MAX_NODES or wanted >= MAX_WANTED // 2
        return is_much and others < LANES and self._slots.concurrency > 1

    async def _pause(self) -> None:
        if not self._calling and not self._slots.held:
            self._listener.at_rest.set()
        await self._woken.wait()
        self._listener.at_rest.clear()
        self._woken.clear()

    def _wanted(self) -> int:
        """How many jobs to request; fewer while more outcomes are pending than one call reports.

        If the worker dies, every job with a pending outcome runs again.
        """
        if self.receipts is not None and self.receipts.is_behind:
            return 0
        room = self._slots.room() - max(len(self._outbox) - MAX_OUTCOMES, 0)
        return min(max(room // max(self._sharing(), 1), min(room, 1), 0), MAX_WANTED)

    def _prepare(self, outcomes: list[Outcome], wanted: int) -> Flight:
        """A new call; the places for its jobs are reserved until the reply."""
        token = token_of(self._worker_id, secrets.token_hex(8))
        immediate = min(self._slots.starts(), wanted)
        started = self._runner.take_starts(self.keys.queue)
        flight = Flight(
            Request(
                outcomes,
                wanted,
                token,
                limit=self._limit(),
                immediate=immediate,
                started=started,
                sizes=self._runner.slice_sizes(self.keys.queue) if wanted else "",
            )
        )
        self._reserve(flight)
        return flight

    def _reserve(self, flight: Flight) -> None:
        flight.is_reserved = True
        self._slots.reserved += flight.request.wanted
        self._calls_under_way += 1
        self._listener.all_replied.clear()

    def _release(self, flight: Flight) -> None:
        if flight.is_reserved:
            flight.is_reserved, was_full = False, not self._slots.room()
            self._slots.reserved -= flight.request.wanted
            self._calls_under_way -= 1
            if not self._calls_under_way:
                self._listener.all_replied.set()
            if was_full and flight.request.wanted:
                self._runner.freed()

    async def _exchange(self, flight: Flight) -> None:
        """Make a call and act on its reply: verdicts, jobs, dead letters, ended flows."""
        answer = await self._until_reply(flight)
        if answer is None:
            return
        outcomes, flight.unsent = flight.request.outcomes, ()
        if flight.request.wanted:
            if 0 <= answer.schedules_ms < self.schedules_due_ms:
                self.rescheduled.set()
            self._listener.update(answer)
        take = (
            functools.partial(self.receipts.take, answer.history) if self.receipts else self._runner.settled
        )
        judged = list(zip(outcomes, answer.verdicts, strict=True))
        self._outbox += [outcome for outcome, verdict in judged if verdict == "again"]
        for outcome, verdict in judged:
            if verdict != "again":
                take(outcome, verdict)
        if answer.fetched:
            self._runner.take(answer.fetched)
        await self._finish(outcomes, answer)

    async def _finish(self, outcomes: Sequence[Outcome], answer: Answer) -> None:
        """Do immediately what supervision and upkeep would otherwise do later."""
        if "failed" in answer.verdicts:
            letters = write_noted([self.keys], self._clock)
            await self._follow_up(letters, "dead letters are written", "dead_letter", logging.WARNING)
        if any(outcome.attempt.options.portable for outcome in outcomes):
            carry = exchange.carry(self.keys, outcomes, answer.verdicts, self._clock)
            await self._follow_up(carry, "dependents in other queues are notified")
        for trouble in answer.troubles:
            logger.error("queue %s: job %s", self.keys.queue, trouble, extra={"action": "broken_job"})
        for flow_id in answer.flows:
            advance = backend.advance(self.keys, flow_id, self._clock)
            await self._follow_up(advance, f"flow {flow_id} is continued")

    async def _until_reply(self, flight: Flight) -> Answer | None:
        """Call until the server replies; None when it refuses.

        Between two tries its places are free: other queues may use them while this queue is unreachable.
        """
        what = f"queue {self.keys.queue}"
        while True:
            try:
                answer = await self._run(self._exchanging(flight.request))
            except TransportError as exc:
                self._failures.report(what, exc)
                # Request the jobs of the lost reply again; new jobs come with the next call.
                flight.request = replace(flight.request, again=True)
            except Exception as exc:  # noqa: BLE001  a refusal or an unreadable reply ends no service
                self._failures.report(what, exc)
                self._release(flight)  # before the pause: other queues may use its places
                await self._refused(flight, exc)
                return None
            else:
                self._failures.clear(what)
                self._pauses = reconnect_delays()
                return answer
            finally:
                self._release(flight)
            await asyncio.sleep(next(self._pauses))
            if self._closing and not flight.request.outcomes:
                return None
            self._reserve(flight)

    def _exchanging(self, request: Request) -> Op[Answer]:
        is_marked = self.receipts is not None
        return exchange.exchange(self.keys, self._worker_id, request, self._clock, marked=is_marked)

    async def _refused(self, flight: Flight, exc: Exception) -> None:
        """Send the outcomes of a refused call again, one by one: one of them may have caused the refusal.

        An outcome that cannot be encoded is replaced by a failure that can.
        """
        pause, outcomes = next(self._pauses), flight.request.outcomes
        flight.unsent = ()
        if not outcomes:
            await asyncio.sleep(pause)
        elif len(outcomes) == 1 and isinstance(exc, EncodeError):
            (outcome,) = outcomes
            if outcome.kind is Kind.FAIL:
                self._runner.settled(outcome, f"stale it cannot be written: {exc}")
            else:
                self._singly.append(refuse(outcome.attempt, f"EncodeError: {exc}"))
        else:
            self._singly.extend(outcomes)
            if len(outcomes) == 1:
                self._singly_at = self._loop.time() + pause
                self._loop.call_later(pause, self._woken.set)

    async def _follow_up(
        self, op: Op[Any], what: str, action: str = "flow_advance", level: int = logging.INFO
    ) -> None:
        try:
            await self._run(op)
        except Exception as exc:  # noqa: BLE001  upkeep does it later
            logger.log(level, "%s later: %s", what, exc, extra={"action": action})
