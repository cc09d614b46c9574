"""Looking at the flows that triggers watch: many in one call, those that an event names first."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from glidemq_orchestrate import AsyncFlow, AsyncFlowProducer, FlowStatus
from glidemq_orchestrate.errors import FlowNotFound

NAMED_AT_ONCE: Final = 100
OTHERS_AT_ONCE: Final = 50  # an end waits for no longer than this takes: some 10 ms
REMIND_SECONDS: Final = 1.0


@dataclass(eq=False, slots=True)
class Subscription:
    """One watcher of one flow, woken by each look that shows something new.

    Attributes:
        flow: The generation that is watched.
        often, seldom: Seconds from look to look while jobs of its queue end, and otherwise.
    """

    flow: AsyncFlow
    often: float
    seldom: float
    status: FlowStatus | None = None
    error: Exception | None = None
    looked_at: float = 0.0
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float | None) -> FlowStatus | None:
        """The next status that differs from the last, or the first; None if there was none for ``seconds``.

        Raises:
            FlowNotFound: The flow is no longer on the server.
            TransportError, or what else ended the looks: subscribe again.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            return None
        self.woken.clear()
        if self.error is not None:
            raise self.error
        return self.status

    def show(self, status: FlowStatus | None, now: float) -> None:
        """Take what a look has found."""
        self.looked_at = now
        if status is None:
            self.fail(FlowNotFound(f"flow {self.flow.id} is no longer on the server"))
        elif status != self.status:
            self.status = status
            self.woken.set()

    def fail(self, error: Exception) -> None:
        """Let the watcher raise this."""
        self.error = error
        self.woken.set()


class Looks:
    """The subscriptions of one queue, and which of them are due for a look."""

    def __init__(self, producer: AsyncFlowProducer) -> None:
        self._producer = producer
        self._of_flow: dict[str, set[Subscription]] = defaultdict(set)
        self._named: dict[Subscription, None] = {}
        self._others: dict[Subscription, None] = {}
        self._due = asyncio.Event()
        self._active_at = 0.0
        self._is_stopped = False

    def __len__(self) -> int:
        """How many watchers there are."""
        return sum(map(len, self._of_flow.values()))

    @property
    def flow_ids(self) -> Collection[str]:
        """The flows that are watched."""
        return self._of_flow.keys()

    def add(self, subscription: Subscription) -> None:
        """Begin to watch; a first look is due at once."""
        self._of_flow[subscription.flow.id].add(subscription)
        self._others[subscription] = None
        self._due.set()

    def remove(self, subscription: Subscription) -> None:
        """Watch no longer. Not awaitable: a triggerer at shutdown cancels its triggers in any order."""
        found = self._of_flow[subscription.flow.id]
        found.discard(subscription)
        if not found:
            del self._of_flow[subscription.flow.id]
        self._named.pop(subscription, None)
        self._others.pop(subscription, None)

    def name(self, flow_id: str) -> None:
        """Something has happened to this flow: look at it before all others."""
        for subscription in self._of_flow.get(flow_id, ()):
            self._others.pop(subscription, None)
            self._named[subscription] = None
            self._due.set()

    def be_active(self) -> None:
        """Jobs of the queue have ended."""
        self._active_at = asyncio.get_running_loop().time()

    def all(self) -> None:
        """Anything may have happened: look at all."""
        self._ask(self._each())

    def fail(self, error: Exception) -> None:
        """Let all watchers raise this."""
        for subscription in self._each():
            subscription.fail(error)

    def stop(self) -> None:
        """End ``run`` soon."""
        self._is_stopped = True
        self._due.set()

    async def run(self) -> None:
        """Look at what is due, until it is stopped or the server cannot be asked."""
        loop = asyncio.get_running_loop()
        remind_at = loop.time()
        while not self._is_stopped:
            if loop.time() >= remind_at:
                remind_at = loop.time() + REMIND_SECONDS
                self._remind(loop.time())
            if part := self._next():
                found = await self._producer.statuses([one.flow for one in part])
                for subscription, status in zip(part, found, strict=True):
                    subscription.show(status, loop.time())
                continue
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(remind_at):
                    await self._due.wait()

    def _each(self) -> list[Subscription]:
        return [one for subscriptions in self._of_flow.values() for one in subscriptions]

    def _remind(self, now: float) -> None:
        """Ask for a look at those that nobody has looked at for too long."""
        self._ask(
            one
            for one in self._each()
            if now - one.looked_at >= (one.often if self._active_at > one.looked_at else one.seldom)
        )

    def _ask(self, subscriptions: Iterable[Subscription]) -> None:
        for one in subscriptions:
            if one not in self._named:
                self._others[one] = None
                self._due.set()

    def _next(self) -> list[Subscription]:
        lane, most = (self._named, NAMED_AT_ONCE) if self._named else (self._others, OTHERS_AT_ONCE)
        part = list(islice(lane, most))
        for one in part:
            del lane[one]
        return part
