"""One queue of a worker: hands in outcomes, takes jobs, and waits for news when there are none.

Everything a worker says about its jobs and every job it gets travels in ``gmo_finish_and_fetch``, one call
at a time per queue, or two under load: what ends while a call is under way goes with the next one, so the
busier the worker, the more jobs share a round trip. An idle worker blocks on the queue's stream and events,
from the positions that the last call gave; it asks again when something there makes a job ready, or when
one falls due.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final, Protocol

from glidemq_orchestrate._facade import AsyncFacade
from glidemq_orchestrate._ops import attempt as ops
from glidemq_orchestrate._ops.dead_letters import bury_noted
from glidemq_orchestrate._protocol.exchange import (
    MOST_NODES,
    MOST_OUTCOMES,
    MOST_WANTED,
    Answer,
    Held,
    Outcome,
    Request,
)
from glidemq_orchestrate._worker_core import Slots, reconnect_delays
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.job import Attempt
from glidemq_orchestrate.keys import QueueKeys

logger = logging.getLogger("glidemq_orchestrate.worker")

# Producers may be told not to write events; then a job in a list or with a delay is noticed so much later.
BLOCK_MS: Final = 1_000
LANES: Final = 2
SETTLE_MS: Final = 5
LONGEST_SECONDS: Final = 60.0


class Crew(Protocol):
    """What a feed needs of its worker."""

    def begin(self, begun: list[Attempt]) -> None:
        """Jobs have come."""

    def taken(self, outcome: Outcome, verdict: str) -> None:
        """The server has taken or refused an outcome."""


class Feed:
    """One queue of a worker.

    Args:
        worker: Drives operations, and is the consumer.
        keys: The queue.
        slots: Shared by all feeds of the worker.
        crew: Told what came.
        clock: The present.
        limit: Most starts per window, and the window in ms; (0, 0) for what the queue says.
        share: How many feeds share the slots.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of a worker that a queue needs
        self,
        worker: AsyncFacade,
        worker_id: str,
        keys: QueueKeys,
        slots: Slots,
        crew: Crew,
        clock: Clock,
        limit: tuple[int, int],
        share: int,
    ) -> None:
        self._worker, self._worker_id, self.keys, self._slots, self._crew = (
            worker,
            worker_id,
            keys,
            slots,
            crew,
        )
        self._clock, self._limit, self._share = clock, limit, share
        self._outbox: list[Outcome] = []
        self._news = asyncio.Event()
        self._dry = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._answered = asyncio.Event()
        self._answered.set()
        self._lanes: set[asyncio.Task[None]] = set()
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
        listener = self._loop.create_task(self._listen())
        try:
            while True:
                for lane in [lane for lane in self._lanes if lane.done()]:
                    self._lanes.discard(lane)
                    lane.result()
                wanted = 0 if self._dry.is_set() and not self._outbox else self._wanted()
                if self._is_worth_a_call(wanted):
                    self._send(wanted)
                elif not self._lanes and self._closing:
                    return
                else:
                    await self._pause()
        finally:
            listener.cancel()
            if self._due is not None:
                self._due.cancel()
            for lane in self._lanes:
                lane.cancel()
            await asyncio.gather(*self._lanes, return_exceptions=True)

    def _is_worth_a_call(self, wanted: int) -> bool:
        """Whether to call now. While one is under way, what is little had better go with the next.

        While the server works on one call, this worker reads and writes the other. Not with a concurrency of
        1: calls may overtake each other, and its jobs start in order.
        """
        if not self._lanes:
            return bool(self._outbox or wanted)
        is_much = len(self._outbox) >= MOST_NODES or wanted >= MOST_WANTED // 2
        return is_much and len(self._lanes) < LANES and self._slots.concurrency > 1

    async def _pause(self) -> None:
        if not self._lanes and not self._slots.held:
            self._at_rest.set()
        await self._news.wait()
        self._at_rest.clear()
        self._news.clear()

    def _wanted(self) -> int:
        room = self._slots.room()
        return min(max(room // self._share, min(room, 1)), MOST_WANTED)

    def _send(self, wanted: int) -> None:
        has_nodes = any(outcome.attempt.flow_id for outcome in self._outbox[:MOST_OUTCOMES])
        most = MOST_NODES if has_nodes else MOST_OUTCOMES
        outcomes, self._outbox = self._outbox[:most], self._outbox[most:]
        self._slots.reserved += wanted
        self._flying += 1
        self._answered.clear()
        lane = self._loop.create_task(self._exchange(outcomes, wanted))
        self._lanes.add(lane)
        lane.add_done_callback(lambda _: self._news.set())

    async def _exchange(self, outcomes: list[Outcome], wanted: int) -> None:
        request = Request(outcomes, wanted, secrets.token_hex(8), limit=self._limit)
        try:
            answer = await self._until_answered(request)
            if wanted:
                self._learn(answer)
        finally:
            self._slots.reserved -= wanted
            self._flying -= 1
            if not self._flying:
                self._answered.set()
        if answer.begun:
            self._crew.begin(answer.begun)
        for outcome, verdict in zip(outcomes, answer.verdicts, strict=True):
            if verdict == "again":
                self._outbox.append(outcome)
            else:
                self._crew.taken(outcome, verdict)
        if "failed" in answer.verdicts:
            await self._bury()
        if any(outcome.attempt.options.portable for outcome in outcomes):
            await self._carry(outcomes, answer.verdicts)
        for trouble in answer.troubles:
            logger.error("queue %s: job %s", self.keys.queue, trouble, extra={"action": "broken_job"})
        for flow_id in answer.flows:
            await self._advance(flow_id)

    async def _until_answered(self, request: Request) -> Answer:
        delays = reconnect_delays()
        while True:
            try:
                return await self._worker._run(  # noqa: SLF001
                    ops.exchange(self.keys, self._worker_id, request, self._clock)
                )
            except TransportError as exc:
                seconds = next(delays)
                logger.warning(
                    "queue %s: trying again in %.1f s: %s", self.keys.queue, seconds, exc,
                    extra={"action": "reconnect", "queue": self.keys.queue},
                )  # fmt: skip
                await asyncio.sleep(seconds)
                # What the lost reply announced is asked for; new jobs come with the next call.
                request = Request(
                    request.outcomes, request.wanted, request.token, again=True, limit=request.limit
                )

    async def _bury(self) -> None:
        try:
            await self._worker._run(bury_noted([self.keys], self._clock))  # noqa: SLF001
        except GlideMQError as exc:  # they are noted: whoever reclaims tries again
            logger.warning("dead letters to be written later: %s", exc, extra={"action": "dead_letter"})

    async def _carry(self, outcomes: list[Outcome], verdicts: list[str]) -> None:
        try:
            await self._worker._run(ops.carry(self.keys, outcomes, verdicts, self._clock))  # noqa: SLF001
        except GlideMQError as exc:  # the supervisor of the flow's home does it
            logger.info(
                "dependents in other queues are told later: %s", exc, extra={"action": "flow_advance"}
            )

    async def _advance(self, flow_id: str) -> None:
        try:
            await self._worker._run(ops.advance(self.keys, flow_id, self._clock))  # noqa: SLF001
        except GlideMQError as exc:  # it stands in the record: the upkeep of any worker goes on with it
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

    async def _listen(self) -> None:
        """While the queue is dry, read its stream and events; ask again when something there matters."""
        delays = reconnect_delays()
        while True:
            await self._dry.wait()
            try:
                if await self._is_news():
                    self._ask_again()
            except TransportError:
                await asyncio.sleep(next(delays))
            else:
                delays = reconnect_delays()

    async def _is_news(self) -> bool:
        run = self._worker._run  # noqa: SLF001
        news = await run(ops.listen(self.keys, self._positions, BLOCK_MS, self._held))
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
        return await run(ops.settle(self.keys, self._positions[0], SETTLE_MS))
