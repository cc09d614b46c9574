"""Waits for new entries in the stream and the events of an empty queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts.exchange import Answer, Held
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import QueueKeys

# If a producer writes no events, the worker notices its jobs in a list or with a delay this much later.
BLOCK_MS: Final = 1_000
GATHER_MS: Final = 5
# The reply to an end that is expected soon is awaited for this long: it shows whether there are more jobs.
SOON_SECONDS: Final = 0.002
MAX_SECONDS: Final = 60.0


class Listener:
    """Decides when to fetch again from a queue that had no more jobs.

    Args:
        run: Drives operations.
        keys: The queue.
        clock: The current time.
        wake: Called when the queue may have jobs again.
        succeeded: Called each time that the queue was read.
        ends_soon: Whether a job that the worker runs probably ends at once, and is reported.

    Attributes:
        is_dry: Set while the queue is known to have no more jobs.
        at_rest: Set while the worker holds no job and makes no call.
        all_replied: Set while no call of the worker is under way.
    """

    def __init__(  # noqa: PLR0913, PLR0917  what a feed knows and a listener does not
        self,
        run: Run,
        keys: QueueKeys,
        clock: Clock,
        wake: Callable[[], None],
        succeeded: Callable[[], None],
        ends_soon: Callable[[], bool],
    ) -> None:
        self._run, self._keys, self._clock, self._wake = run, keys, clock, wake
        self._succeeded, self._ends_soon = succeeded, ends_soon
        self._loop = asyncio.get_running_loop()
        self.is_dry, self.at_rest, self.all_replied = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.all_replied.set()
        self._positions, self._held = ("0-0", "0-0"), Held.NOTHING
        self._due: asyncio.TimerHandle | None = None

    def update(self, answer: Answer) -> None:
        """Fetch again if the queue may have more jobs; else listen from the positions of the reply."""
        if answer.positions is None:
            self._fetch_again()
            return
        self._positions, self._held = answer.positions, answer.held
        self.is_dry.set()
        self.close()
        # A Node client that changes a limit writes no event.
        longest = MAX_SECONDS if answer.held is Held.NOTHING else BLOCK_MS / 1000
        if answer.due_ms >= 0 or answer.held is not Held.NOTHING:
            seconds = longest if answer.due_ms < 0 else max(answer.due_ms - self._clock.now_ms(), 1) / 1000
            self._due = self._loop.call_later(min(seconds, longest), self._fetch_again)

    def close(self) -> None:
        """Cancel the timer of the next job that falls due."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    async def listen(self) -> None:
        """While the queue is dry, read its stream and events; fetch again after a relevant entry.

        Raises:
            GlideMQError: They cannot be read. Until the next call, the queue is polled instead.
        """
        while True:
            await self.is_dry.wait()
            if self._ends_soon():
                await self._rests_within(SOON_SECONDS)
                if not self.is_dry.is_set():
                    continue
            try:
                if await self._has_news():
                    self._fetch_again()
            except Exception:
                self._fetch_again()
                raise

    async def _has_news(self) -> bool:
        """Wait for entries; return whether one of them may make a job ready for this worker."""
        news = await self._run(exchange.listen(self._keys, self._positions, BLOCK_MS, self._held))
        self._succeeded()
        await self.all_replied.wait()  # a reply under way may already cover these entries
        known, self._positions = self._positions, news.beyond(self._positions)
        if news.matters(known):
            return True
        # While workers are busy or jobs are requested, events are read in bulk. An idle worker never waits.
        if not await self._rests_within(GATHER_MS / 1000):
            return False
        return await self._run(exchange.let_events_gather(self._keys, self._positions[0], GATHER_MS))

    async def _rests_within(self, seconds: float) -> bool:
        """Wait until the worker holds no job and makes no call."""
        try:
            async with asyncio.timeout(seconds):
                await self.at_rest.wait()
        except TimeoutError:
            return False
        return True

    def _fetch_again(self) -> None:
        self.is_dry.clear()
        self._wake()
