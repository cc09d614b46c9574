"""Looking at the flows, jobs or queue that triggers watch: many in one call, first those of events."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from glidemq_orchestrate.errors import FlowNotFound

NAMED_AT_ONCE: Final = 100
OTHERS_AT_ONCE: Final = 50  # an end waits for no longer than this takes: some 10 ms
REMIND_SECONDS: Final = 1.0


class Subject(Protocol):
    """What is watched: a generation of a flow, a job, a queue. Events name it by its id."""

    @property
    def id(self) -> str:
        """The id."""


@dataclass(frozen=True, slots=True)
class JobSubject:
    """A job of a queue, or the queue itself, which has no name in its events."""

    id: str = ""


T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Subscription(Generic[T]):
    """One watcher of one subject, woken by each look that shows something new.

    Attributes:
        subject: What is watched.
        often, seldom: Seconds from look to look while jobs of its queue end, and otherwise.
    """

    subject: Subject
    often: float
    seldom: float
    status: T | None = None
    error: Exception | None = None
    looked_at: float = 0.0
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float | None) -> T | None:
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

    def show(self, status: T | None, now: float) -> None:
        """Take what a look has found."""
        self.looked_at = now
        if status is None:
            self.fail(FlowNotFound(f"flow {self.subject.id} is no longer on the server"))
        elif status != self.status:
            self.status = status
            self.woken.set()

    def fail(self, error: Exception) -> None:
        """Let the watcher raise this."""
        self.error = error
        self.woken.set()


class Poller(Generic[T]):
    """The subscriptions of one kind in one queue, and which of them are due for a look.

    Args:
        read: Reads the status of each of many subjects, in order; None for a flow that is gone.
    """

    def __init__(self, read: Callable[[list[Any]], Awaitable[Sequence[T | None]]]) -> None:
        self._read = read
        self._of_subject: dict[str, set[Subscription[T]]] = defaultdict(set)
        self._named: dict[Subscription[T], None] = {}
        self._others: dict[Subscription[T], None] = {}
        self._due = asyncio.Event()
        self._active_at = 0.0
        self._is_stopped = False

    def __len__(self) -> int:
        """How many watchers there are."""
        return sum(map(len, self._of_subject.values()))

    @property
    def ids(self) -> Collection[str]:
        """The subjects that are watched."""
        return self._of_subject.keys()

    def add(self, subscription: Subscription[T]) -> None:
        """Begin to watch; a first look is due at once."""
        self._of_subject[subscription.subject.id].add(subscription)
        self._others[subscription] = None
        self._due.set()

    def remove(self, subscription: Subscription[T]) -> None:
        """Watch no longer. Not awaitable: a triggerer at shutdown cancels its triggers in any order."""
        found = self._of_subject.get(subscription.subject.id)
        if found is None or subscription not in found:
            return
        found.discard(subscription)
        if not found:
            del self._of_subject[subscription.subject.id]
        self._named.pop(subscription, None)
        self._others.pop(subscription, None)

    def name(self, subject_id: str) -> None:
        """Something has happened to this subject: look at it before all others."""
        for subscription in self._of_subject.get(subject_id, ()):
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
                found = await self._read([one.subject for one in part])
                for subscription, status in zip(part, found, strict=True):
                    subscription.show(status, loop.time())
                continue
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(remind_at):
                    await self._due.wait()

    def _each(self) -> list[Subscription[T]]:
        return [one for subscriptions in self._of_subject.values() for one in subscriptions]

    def _remind(self, now: float) -> None:
        """Ask for a look at those that nobody has looked at for too long."""
        self._ask(
            one
            for one in self._each()
            if now - one.looked_at >= (one.often if self._active_at > one.looked_at else one.seldom)
        )

    def _ask(self, subscriptions: Iterable[Subscription[T]]) -> None:
        for one in subscriptions:
            if one not in self._named:
                self._others[one] = None
                self._due.set()

    def _next(self) -> list[Subscription[T]]:
        lane, most = (self._named, NAMED_AT_ONCE) if self._named else (self._others, OTHERS_AT_ONCE)
        part = list(islice(lane, most))
        for one in part:
            del lane[one]
        return part
