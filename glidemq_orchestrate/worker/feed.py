"""One queue of a worker: hands in outcomes, takes jobs, and waits for news when there are none.

Everything a worker says about its jobs and every job it gets travels in ``gmo_finish_and_fetch``, one call
at a time per queue, or two under load: what ends while a call is under way goes with the next one, so the
busier the worker, the more jobs share a round trip. An idle worker blocks on the queue's stream and events,
from the positions that the last call gave; it asks again when something there makes a job ready, or when
one falls due.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from glidemq_orchestrate._ops.queue.dead_letters import bury_noted
from glidemq_orchestrate._ops.worker import attempt as ops
from glidemq_orchestrate._protocol.call import Run
from glidemq_orchestrate._protocol.worker.exchange import (
    MOST_NODES,
    MOST_OUTCOMES,
    MOST_WANTED,
    Answer,
    Held,
    Kind,
    Outcome,
    Request,
)
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import EncodeError, TransportError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.keys import QueueKeys
from glidemq_orchestrate.worker.core import Slots, reconnect_delays, refuse
from glidemq_orchestrate.worker.failure_log import FailureLog

logger = logging.getLogger("glidemq_orchestrate.worker")

# Producers may be told not to write events; then a job in a list or with a delay is noticed so much later.
BLOCK_MS: Final = 1_000
LANES: Final = 2
SETTLE_MS: Final = 5
LONGEST_SECONDS: Final = 60.0


@dataclass(slots=True)
class Flight:
    """A call under way.

    Attributes:
        request: What it says and asks for.
        unsaid: The outcomes that are still to be handed in should it end now.
        is_out: Its places are reserved.
    """

    request: Request
    unsaid: Sequence[Outcome] = ()
    is_out: bool = False

    def __post_init__(self) -> None:
        """Nothing is said yet."""
        self.unsaid = self.request.outcomes


@dataclass(slots=True)
class Lane:
    """A task that makes one call after the other, and the one under way."""

    flight: Flight | None


class Crew(Protocol):
    """What a feed needs of its worker."""

    def begin(self, begun: list[Attempt]) -> None:
        """Jobs have come."""

    def taken(self, outcome: Outcome, verdict: str) -> None:
        """The server has taken or refused an outcome."""


class Feed:
    """One queue of a worker.

    Args:
        run: Drives operations.
        worker_id: The consumer.
        keys: The queue.
        slots: Shared by all feeds of the worker.
        crew: Told what came.
        clock: The present.
        limit: Most starts per window, and the window in ms; (0, 0) for what the queue says.
        share: How many feeds share the slots.
        failures: Where failures that it survives are reported.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of a worker that a queue needs
        self,
        run: Run,
        worker_id: str,
        keys: QueueKeys,
        slots: Slots,
        crew: Crew,
        clock: Clock,
        limit: tuple[int, int],
        share: int,
        failures: FailureLog,
    ) -> None:
        self._run, self._worker_id, self.keys, self._slots, self._crew = run, worker_id, keys, slots, crew
        self._clock, self._limit, self._share, self._failures = clock, limit, share, failures
        self._outbox: list[Outcome] = []
        self._news = asyncio.Event()
        self._dry = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._answered = asyncio.Event()
        self._answered.set()
        self._lanes: set[asyncio.Task[None]] = set()
        self._suspects: deque[Outcome] = deque()
        self._suspects_at = 0.0
        self._pauses = reconnect_delays()
        self._flying = 0
        self._positions, self._held = ("0-0", "0-0"), Held.NOTHING
        self._due: asyncio.TimerHandle | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()

    def say(self, outcome: Outcome) -> None:
        """Hand in an outcome with the next call."""
        self._outbox.append(outcome)
        self._news.set()

    def nudge(self) -> None:
        """There may be room, or jobs."""
        self._news.set()

    def close(self) -> None:
        """End ``serve`` once every outcome is handed in."""
        self._closing = True
        self._news.set()

    async def serve(self) -> None:
        """Exchange with the queue until closed."""
        try:
            while True:
                if (flight := self._next(len(self._lanes))) is not None:
                    lane = Lane(flight)
                    task = self._loop.create_task(self._fly(lane))
                    self._lanes.add(task)
                    task.add_done_callback(functools.partial(self._left, lane))
                elif not self._lanes and not self._suspects and self._closing:
                    return
                else:
                    await self._pause()
        finally:
            if self._due is not None:
                self._due.cancel()
            lanes = list(self._lanes)
            for task in lanes:
                task.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    async def _fly(self, lane: Lane) -> None:
        """Call; under load again at once, with what has ended meanwhile, so that the server need not wait."""
        while lane.flight is not None:
            await self._exchange(lane.flight)
            is_busy = len(self._outbox) >= MOST_NODES
            lane.flight = self._next(len(self._lanes) - 1) if is_busy else None

    def _next(self, others: int) -> Flight | None:
        """The call to make now, if any, while so many others are under way."""
        wanted = 0 if self._dry.is_set() and not self._outbox else self._wanted()
        if self._suspects and not others and self._loop.time() >= self._suspects_at:
            return self._depart([self._suspects.popleft()], 0)
        if self._is_worth_a_call(wanted, others):
            most = MOST_OUTCOMES
            if any(outcome.attempt.flow_id for outcome in self._outbox[:most]):
                most = MOST_NODES
            outcomes, self._outbox = self._outbox[:most], self._outbox[most:]
            return self._depart(outcomes, wanted)
        return None

    def _is_worth_a_call(self, wanted: int, others: int) -> bool:
        """Whether to call now. While one is under way, what is little had better go with the next.

        While the server works on one call, this worker reads and writes the other. Not with a concurrency of
        1: calls may overtake each other, and its jobs start in order.
        """
        if not others:
            return bool(self._outbox or wanted)
        is_much = len(self._outbox) >= MOST_NODES or wanted >= MOST_WANTED // 2
        return is_much and others < LANES and self._slots.concurrency > 1

    async def _pause(self) -> None:
        if not self._lanes and not self._slots.held:
            self._at_rest.set()
        await self._news.wait()
        self._at_rest.clear()
        self._news.clear()

    def _wanted(self) -> int:
        """How many jobs to ask for; fewer while outcomes pile up that the next call does not take.

        A job whose outcome waits is nobody's: its lease is not renewed, and a worker that dies has run it in
        vain.
        """
        room = self._slots.room() - max(len(self._outbox) - MOST_OUTCOMES, 0)
        return min(max(room // self._share, min(room, 1), 0), MOST_WANTED)

    def _depart(self, outcomes: list[Outcome], wanted: int) -> Flight:
        """Make a call; what it asks for is reserved until it is answered."""
        flight = Flight(Request(outcomes, wanted, secrets.token_hex(8), limit=self._limit))
        self._reserve(flight)
        return flight

    def _reserve(self, flight: Flight) -> None:
        flight.is_out = True
        self._slots.reserved += flight.request.wanted
        self._flying += 1
        self._answered.clear()

    def _arrive(self, flight: Flight) -> None:
        if flight.is_out:
            flight.is_out = False
            self._slots.reserved -= flight.request.wanted
            self._flying -= 1
            if not self._flying:
                self._answered.set()

    def _left(self, lane: Lane, task: asyncio.Task[None]) -> None:
        """A lane is free again, however its task has ended; what it could not hand in goes out again."""
        self._lanes.discard(task)
        if lane.flight is not None:
            self._arrive(lane.flight)
            self._outbox = [*lane.flight.unsaid, *self._outbox]
        self._news.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.report(f"queue {self.keys.queue}", error)

    async def _exchange(self, flight: Flight) -> None:
        answer = await self._until_answered(flight)
        if answer is None:
            return
        outcomes, flight.unsaid = flight.request.outcomes, ()
        if flight.request.wanted:
            self._learn(answer)
        told = list(zip(outcomes, answer.verdicts, strict=True))
        self._outbox += [outcome for outcome, verdict in told if verdict == "again"]
        for outcome, verdict in told:
            if verdict != "again":
                self._crew.taken(outcome, verdict)
        if answer.begun:
            self._crew.begin(answer.begun)
        if "failed" in answer.verdicts:
            await self._bury()
        if any(outcome.attempt.options.portable for outcome in outcomes):
            await self._carry(outcomes, answer.verdicts)
        for trouble in answer.troubles:
            logger.error("queue %s: job %s", self.keys.queue, trouble, extra={"action": "broken_job"})
        for flow_id in answer.flows:
            await self._advance(flow_id)

    async def _until_answered(self, flight: Flight) -> Answer | None:
        """Ask until the server answers; None when it refuses.

        Between two tries its places are free: other queues may use them while this one is away.
        """
        what = f"queue {self.keys.queue}"
        while True:
            try:
                answer = await self._run(
                    ops.exchange(self.keys, self._worker_id, flight.request, self._clock)
                )
            except TransportError as exc:
                self._failures.report(what, exc)
                # What the lost reply announced is asked for; new jobs come with the next call.
                flight.request = replace(flight.request, again=True)
            except Exception as exc:  # noqa: BLE001  a refusal, or what is not understood, ends no service
                self._failures.report(what, exc)
                await self._refused(flight, exc)
                return None
            else:
                self._failures.clear(what)
                self._pauses = reconnect_delays()
                return answer
            finally:
                self._arrive(flight)
            await asyncio.sleep(next(self._pauses))
            if self._closing and not flight.request.outcomes:
                return None
            self._reserve(flight)

    async def _refused(self, flight: Flight, exc: Exception) -> None:
        """What a refused call said goes out again one by one, apart from the rest: it may be one of it alone.

        What cannot even be written is replaced by a failure that can.
        """
        pause, outcomes = next(self._pauses), flight.request.outcomes
        flight.unsaid = ()
        if not outcomes:
            await asyncio.sleep(pause)
        elif len(outcomes) == 1 and isinstance(exc, EncodeError):
            (outcome,) = outcomes
            if outcome.kind is Kind.FAIL:
                self._crew.taken(outcome, f"stale it cannot be written: {exc}")
            else:
                self._suspects.append(refuse(outcome.attempt, f"EncodeError: {exc}"))
        else:
            self._suspects.extend(outcomes)
            if len(outcomes) == 1:
                self._suspects_at = self._loop.time() + pause
                self._loop.call_later(pause, self._news.set)

    async def _bury(self) -> None:
        try:
            await self._run(bury_noted([self.keys], self._clock))
        except Exception as exc:  # noqa: BLE001  they are noted: whoever reclaims tries again
            logger.warning("dead letters to be written later: %s", exc, extra={"action": "dead_letter"})

    async def _carry(self, outcomes: Sequence[Outcome], verdicts: list[str]) -> None:
        try:
            await self._run(ops.carry(self.keys, outcomes, verdicts, self._clock))
        except Exception as exc:  # noqa: BLE001  the supervisor of the flow's home does it
            logger.info(
                "dependents in other queues are told later: %s", exc, extra={"action": "flow_advance"}
            )

    async def _advance(self, flow_id: str) -> None:
        try:
            await self._run(ops.advance(self.keys, flow_id, self._clock))
        except Exception as exc:  # noqa: BLE001  it stands in the record: the upkeep of any worker goes on with it
            logger.info("flow %s: to be continued: %s", flow_id, exc, extra={"action": "flow_advance"})

    def _learn(self, answer: Answer) -> None:
        """The queue may have more jobs; or it has not, and news are waited for from where it was read."""
        if answer.positions is None:
            self._ask_again()
            return
        self._positions, self._held = answer.positions, answer.held
        self._dry.set()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if answer.due_ms >= 0:
            seconds = max(answer.due_ms - self._clock.now_ms(), 1) / 1000
            self._due = self._loop.call_later(min(seconds, LONGEST_SECONDS), self._ask_again)

    def _ask_again(self) -> None:
        self._dry.clear()
        self._news.set()

    async def listen(self) -> None:
        """While the queue is dry, read its stream and events; ask again when something there matters.

        Raises:
            GlideMQError: They cannot be read. Until somebody calls again, the queue is asked without news.
        """
        while True:
            await self._dry.wait()
            try:
                if await self._is_news():
                    self._ask_again()
            except Exception:
                self._ask_again()
                raise

    async def _is_news(self) -> bool:
        news = await self._run(ops.listen(self.keys, self._positions, BLOCK_MS, self._held))
        await self._answered.wait()  # what an answer under way tells is no news
        known, self._positions = self._positions, news.beyond(self._positions)
        if news.matters(known):
            return True
        # While others are busy, or this worker with what it asked for, their events are read in bulk. But an
        # idle worker hears of a job at once.
        try:
            async with asyncio.timeout(SETTLE_MS / 1000):
                await self._at_rest.wait()
        except TimeoutError:
            return False
        return await self._run(ops.settle(self.keys, self._positions[0], SETTLE_MS))
