"""Reads the events of one queue for all triggers that watch its flows or jobs, or the queue itself.

Events only decide when to read a state again, and which states come first: many are read in one call.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from airflow_provider_glidemq.conditions import QueueState
from glidemq_orchestrate import AsyncEventReader, AsyncFlow, AsyncFlowProducer, AsyncQueue, ConnectionSettings
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError
from glidemq_orchestrate.events import Event
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.jobs.states import ABSENT
from glidemq_orchestrate.worker import Supervisor

logger = logging.getLogger(__name__)

LINGER_SECONDS: Final = 5.0
BLOCK: Final = timedelta(seconds=2)
SUPERVISE_SECONDS: Final = 2.0
MIN_REST: Final = 0.05
OFTEN_SECONDS: Final = 1.0
T = TypeVar("T")
_FLOW_EVENTS: Final = "flow."
_ENDS: Final = frozenset({"completed", "failed", "expired", "revoked"})


class QueueEvents:
    """Reads the events of one queue once, and polls the flows and jobs that they name.

    Events only decide when to poll. If some were lost unread, everything is polled. The reader also
    supervises the queue if no worker does: Node workers alone would leave flows unsettled.
    """

    def __init__(self, settings: ConnectionSettings, queue: str, producer: AsyncFlowProducer) -> None:
        self._reading: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._reader = AsyncEventReader(queue, settings)
        self._supervisor = Supervisor(settings, queues=[queue])
        self._producer, self._queue = producer, AsyncQueue(queue, settings)
        self._flows = Poller[FlowStatus](self._flow_statuses)
        self._jobs = Poller[str](self._job_states)
        self._whole = Poller[QueueState](self._queue_states)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Whether a new watcher would never be woken."""
        return any(task is not None and task.done() for task in (self._reading, self._polling))

    @property
    def _pollers(self) -> Sequence[Poller[Any]]:
        return (self._flows, self._jobs, self._whole)

    @property
    def flow_ids(self) -> Collection[str]:
        """The ids of the watched flows."""
        return self._flows.ids

    async def watch(self, flow: AsyncFlow, *, often: float, seldom: float) -> Watcher[FlowStatus]:
        """Watch a flow. The first poll reads its current state; later changes are noticed.

        Raises:
            TransportError: The reader could not start; other errors are possible.
        """
        return await self._add(self._flows, Watcher(flow, often, seldom))

    async def watch_job(self, job_id: str, *, seldom: float) -> Watcher[str]:
        """Watch a job: the value of its state, or ``absent``. Raises the errors of ``watch``."""
        return await self._add(self._jobs, Watcher(JobSubject(job_id), seldom, seldom))

    async def watch_queue(self, *, seldom: float) -> Watcher[QueueState]:
        """Watch the queue: every second if there is activity. Raises the errors of ``watch``."""
        return await self._add(self._whole, Watcher(JobSubject(), min(OFTEN_SECONDS, seldom), seldom))

    async def _add(self, poller: Poller[T], watcher: Watcher[T]) -> Watcher[T]:
        if self._reading is None:
            self._reading = start(self._run())
        poller.add(watcher)
        try:
            await asyncio.shield(self._started)
        except BaseException:
            poller.remove(watcher)
            raise
        return watcher

    def unwatch(self, watcher: Watcher[Any]) -> None:
        """Stop watching. Not awaitable: a triggerer at shutdown cancels its triggers in any order."""
        for poller in self._pollers:
            poller.remove(watcher)

    async def _flow_statuses(self, flows: list[AsyncFlow]) -> Sequence[FlowStatus | None]:
        return await self._producer.statuses(flows)

    async def _job_states(self, jobs: list[JobSubject]) -> Sequence[str]:
        found = await self._queue.states([job.id for job in jobs])
        return [ABSENT if state is None else state.value for state in found]

    async def _queue_states(self, asked: list[JobSubject]) -> Sequence[QueueState]:
        counts = await self._queue.counts(indexed_only=True)
        is_paused, workers = await self._queue.is_paused(), await self._queue.workers()
        return [QueueState.of(counts.with_elements(), is_paused, workers)] * len(asked)

    async def _run(self) -> None:
        ended, supervision = asyncio.Event(), None
        try:
            await self._reader.start()
            self._polling = start(self._poll())
            supervision = start(self._supervise(ended))
            self._started.set_result(None)
            await self._read()
        except Exception as exc:  # noqa: BLE001  every error is passed to the watchers
            self._fail(exc)
        finally:
            ended.set()
            self._stop()
            await self._reader.close()
            await self._queue.close()
            if supervision is not None:
                await supervision

    async def _read(self) -> None:
        """Read events until there has been no watcher for a while, or states cannot be read."""
        loop = asyncio.get_running_loop()
        used = loop.time()
        while loop.time() - used < LINGER_SECONDS and not self.is_over:
            for event in await self._reader.read(BLOCK):
                self._dispatch(event)
            if any(map(len, self._pollers)):
                used = loop.time()

    async def _poll(self) -> None:
        try:
            await asyncio.gather(*(poller.run() for poller in self._pollers))
        except Exception as exc:  # noqa: BLE001  every error is passed to the watchers
            self._fail(exc)
            self._stop()

    async def _supervise(self, ended: asyncio.Event) -> None:
        try:
            while not ended.is_set():
                try:
                    await self._supervisor.tick()
                except GlideMQError as exc:
                    logger.debug("the queue was not supervised: %s", exc)
                rest = min(max(self._supervisor.rest, MIN_REST), SUPERVISE_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await ended.wait()
        finally:
            with suppress(GlideMQError):  # the lead expires by itself
                await self._supervisor.resign()
            await self._supervisor.close()

    def _dispatch(self, event: Event) -> None:
        self._whole.be_active()
        if event.is_gap:
            for poller in self._pollers:
                poller.poll_all()
        elif event.kind in _ENDS:
            self._flows.be_active()
            self._jobs.poll_first(event.job_id)
        elif event.kind.startswith(_FLOW_EVENTS):
            self._flows.poll_first(event.flow_id)

    def _fail(self, exc: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(exc)
            self._started.exception()  # mark it as retrieved: there may be no watcher to await it
        for poller in self._pollers:
            poller.fail(exc)

    def _stop(self) -> None:
        for poller in self._pollers:
            poller.stop()


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run shared work in an empty context; otherwise its log would go to the task of the first trigger."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


FIRST_AT_ONCE: Final = 100
OTHERS_AT_ONCE: Final = 50  # an end is delayed by this batch at most: some 10 ms
REMIND_SECONDS: Final = 1.0


class Subject(Protocol):
    """A watched generation of a flow, a job, or a queue. Events refer to it by its id."""

    @property
    def id(self) -> str:
        """The id."""


@dataclass(frozen=True, slots=True)
class JobSubject:
    """A job of a queue, or the queue itself, which its events do not name."""

    id: str = ""


@dataclass(eq=False, slots=True)
class Watcher(Generic[T]):
    """One watcher of one subject, woken by each poll with a new status.

    Attributes:
        subject: The watched subject.
        often, seldom: Seconds between polls while jobs of its queue end, and otherwise.
    """

    subject: Subject
    often: float
    seldom: float
    status: T | None = None
    error: Exception | None = None
    polled_at: float = 0.0
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float | None) -> T | None:
        """The next status that differs from the last, or the first; None if there was none for ``seconds``.

        Raises:
            FlowNotFound: The flow is no longer on the server.
            TransportError: Polling has ended, also with other errors: watch again.
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
        """Deliver the status that a poll has read."""
        self.polled_at = now
        if status is None:
            self.fail(FlowNotFound(f"flow {self.subject.id} is no longer on the server"))
        elif status != self.status:
            self.status = status
            self.woken.set()

    def fail(self, error: Exception) -> None:
        """Make the watcher raise this error."""
        self.error = error
        self.woken.set()


class Poller(Generic[T]):
    """The watchers of one kind in one queue, and which of them are due for a poll.

    Args:
        read: Reads the status of each subject, in order; None for a flow that no longer exists.
    """

    def __init__(self, read: Callable[[list[Any]], Awaitable[Sequence[T | None]]]) -> None:
        self._read = read
        self._of_subject: dict[str, set[Watcher[T]]] = defaultdict(set)
        self._first: dict[Watcher[T], None] = {}
        self._others: dict[Watcher[T], None] = {}
        self._due = asyncio.Event()
        self._active_at = 0.0
        self._is_stopped = False

    def __len__(self) -> int:
        """The number of watchers."""
        return sum(map(len, self._of_subject.values()))

    @property
    def ids(self) -> Collection[str]:
        """The ids of the watched subjects."""
        return self._of_subject.keys()

    def add(self, watcher: Watcher[T]) -> None:
        """Start to watch; a first poll is due at once."""
        self._of_subject[watcher.subject.id].add(watcher)
        self._others[watcher] = None
        self._due.set()

    def remove(self, watcher: Watcher[T]) -> None:
        """Stop watching."""
        found = self._of_subject.get(watcher.subject.id)
        if found is None or watcher not in found:
            return
        found.discard(watcher)
        if not found:
            del self._of_subject[watcher.subject.id]
        self._first.pop(watcher, None)
        self._others.pop(watcher, None)

    def poll_first(self, subject_id: str) -> None:
        """Poll this subject, named by an event, before all others."""
        for watcher in self._of_subject.get(subject_id, ()):
            self._others.pop(watcher, None)
            self._first[watcher] = None
            self._due.set()

    def be_active(self) -> None:
        """Note that jobs of the queue have ended."""
        self._active_at = asyncio.get_running_loop().time()

    def poll_all(self) -> None:
        """Poll all subjects: anything may have happened."""
        self._mark_due(self._each())

    def fail(self, error: Exception) -> None:
        """Make all watchers raise this error."""
        for watcher in self._each():
            watcher.fail(error)

    def stop(self) -> None:
        """End ``run`` soon."""
        self._is_stopped = True
        self._due.set()

    async def run(self) -> None:
        """Poll the subjects that are due, until stopped or the server cannot be read."""
        loop = asyncio.get_running_loop()
        remind_at = loop.time()
        while not self._is_stopped:
            if loop.time() >= remind_at:
                remind_at = loop.time() + REMIND_SECONDS
                self._remind(loop.time())
            if part := self._next():
                found = await self._read([one.subject for one in part])
                for watcher, status in zip(part, found, strict=True):
                    watcher.show(status, loop.time())
                continue
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(remind_at):
                    await self._due.wait()

    def _each(self) -> list[Watcher[T]]:
        return [one for watchers in self._of_subject.values() for one in watchers]

    def _remind(self, now: float) -> None:
        """Mark subjects as due whose last poll is too long ago."""
        self._mark_due(
            one
            for one in self._each()
            if now - one.polled_at >= (one.often if self._active_at > one.polled_at else one.seldom)
        )

    def _mark_due(self, watchers: Iterable[Watcher[T]]) -> None:
        for one in watchers:
            if one not in self._first:
                self._others[one] = None
                self._due.set()

    def _next(self) -> list[Watcher[T]]:
        lane, most = (self._first, FIRST_AT_ONCE) if self._first else (self._others, OTHERS_AT_ONCE)
        part = list(islice(lane, most))
        for one in part:
            del lane[one]
        return part
