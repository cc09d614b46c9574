"""Passes messages from a worker that holds their jobs to a trigger that creates asset events from them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

from glidemq_orchestrate import Context, RetryLater, Unrecoverable
from glidemq_orchestrate.errors import EncodeError
from glidemq_orchestrate.runs import Json
from glidemq_orchestrate.wire.codec import encode

MAX_BYTES: Final = 48 * 1024
EVENT_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 50
MAX_FAILURES: Final = 5
LINGER_SECONDS: Final = 0.1
_INTEGERS: Final = range(-(2**63), 2**63)
AddedAt: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[str | None]]]


@dataclass(eq=False, slots=True)
class Delivery:
    """One job that a worker holds until Airflow has stored its message.

    ``outcome`` is done when the job is to be completed, repeated or failed. It is cancelled when the worker
    has lost the job.
    """

    job_id: str
    message: dict[str, Any]
    size: int
    outcome: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @classmethod
    def of(cls, ctx: Context) -> Delivery:
        """The message of a job.

        Raises:
            Unrecoverable: Airflow can never store the message.
        """
        size = _size(ctx.data)
        return cls(ctx.job_id, {"id": ctx.job_id, "job": ctx.name, "data": ctx.data}, size)

    def end(self, error: Exception | None = None) -> None:
        """End the job: completed, or with the error. Repeatable; only the first call has an effect."""
        if not self.outcome.done():
            if error is None:
                self.outcome.set_result(None)
            else:
                self.outcome.set_exception(error)
                self.outcome.exception()  # mark it as retrieved: the worker may have dropped it


@dataclass(frozen=True, eq=False, slots=True)
class MessageBatch:
    """The messages of one event."""

    queue: str
    deliveries: Sequence[Delivery]

    @property
    def payload(self) -> dict[str, Any]:
        """The payload of the event."""
        return {"queue": self.queue, "messages": [one.message for one in self.deliveries]}


class Inbox:
    """The messages for one watcher, in the order of their arrival.

    Args:
        queue: The queue of the messages.
        size: The max number of messages per event.
        interval: The min number of seconds between events; messages that arrive in between share one event.
        until_run: Seconds after which a message that no run has acknowledged is delivered again; None: a
            message is completed when its event is stored.
        added_at: Reads when jobs were added, which distinguishes a message from a later one with the same id.
    """

    def __init__(
        self,
        queue: str,
        size: int,
        interval: float,
        until_run: float | None = None,
        added_at: AddedAt | None = None,
    ) -> None:
        self._queue, self._size, self._interval = queue, size, interval
        self._until_run, self._added_at = until_run, added_at
        self._waiting: deque[Delivery] = deque()
        self._open: set[Delivery] = set()
        self._failures: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._next_at = 0.0

    def put(self, delivery: Delivery) -> None:
        """Add a message."""
        self._waiting.append(delivery)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Make ``next`` raise this error."""
        self._error = error
        self._changed.set()

    async def next(self) -> MessageBatch:
        """Wait for messages, and return those of the next event.

        Raises:
            Exception: The error that has ended the worker.
        """
        loop = asyncio.get_running_loop()
        await self._until(1, None)
        if self._next_at > loop.time():
            await self._until(None, self._next_at)
        else:
            await self._until(self._size, loop.time() + LINGER_SECONDS)
        batch = self._taken()
        while not batch:  # the worker has lost them in between
            await self._until(1, None)
            batch = self._taken()
        self._next_at = loop.time() + self._interval
        self._open.update(batch)
        if self._until_run is not None and self._added_at is not None:
            for one, at in zip(batch, await self._added_at([one.job_id for one in batch]), strict=True):
                one.message["added_at"] = at
        return MessageBatch(self._queue, batch)

    def stored(self, batch: MessageBatch) -> None:
        """Record that Airflow has stored the event: its jobs complete, or wait for an acknowledgement."""
        for one in batch.deliveries:
            self._failures.pop(one.job_id, None)
            self._open.discard(one)
            if self._until_run is None:
                one.end()
            else:
                pause = timedelta(seconds=self._until_run)
                one.end(RetryLater(pause, "no run of Airflow has acknowledged it yet", counts=False))

    def not_stored(self, batch: MessageBatch) -> None:
        """Record that Airflow has not stored the event: its messages are repeated one by one, a few times."""
        for one in batch.deliveries:
            self._open.discard(one)
            failures = self._failures.pop(one.job_id, 0) + 1
            if failures < MAX_FAILURES:
                self._failures[one.job_id] = failures
                one.end(RetryLater(timedelta(seconds=2**failures), "Airflow did not store it", counts=False))
            else:
                one.end(
                    Unrecoverable(
                        f"Airflow did not store its event, {failures} times: see the triggerer's log"
                    )
                )

    def close(self) -> None:
        """Return the messages that were not stored."""
        for one in (*self._waiting, *self._open):
            one.end(RetryLater(timedelta(0), "its watcher has stopped", counts=False))
        self._waiting.clear()
        self._open.clear()

    async def _until(self, count: int | None, at: float | None) -> None:
        """Wait for a number of messages (None: no limit), or until a time."""
        try:
            async with asyncio.timeout_at(at):
                while (count is None or len(self._waiting) < count) and self._error is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self._error is not None:
            raise self._error

    def _taken(self) -> list[Delivery]:
        """Take the messages of one event; a message that was not stored before gets its own event."""
        taken: list[Delivery] = []
        size = 0
        while self._waiting and len(taken) < self._size:
            first = self._waiting[0]
            if first.outcome.done():
                self._waiting.popleft()
                continue
            is_alone = first.job_id in self._failures
            if taken and (is_alone or size + first.size > EVENT_BYTES):
                break
            taken.append(self._waiting.popleft())
            size += first.size
            if is_alone:
                break
        return taken


def _size(data: Json) -> int:
    """The bytes of the data of a message.

    Raises:
        Unrecoverable: The data are too large, or cannot be stored in Airflow's database.
    """
    _check_values(data)
    try:
        size = len(encode(data, where="its data").encode())
    except EncodeError as exc:
        raise Unrecoverable(f"no asset event can hold it: {exc}") from exc
    if size > MAX_BYTES:
        raise Unrecoverable(
            f"its data is {size:,} bytes of JSON, and an asset event, which is in Airflow's database, holds "
            f"{MAX_BYTES:,} of a message: write it to a file or table and send where it is"
        )
    return size


def _check_values(data: Json) -> None:
    level: list[Json] = [data]
    for _ in range(MAX_DEPTH):
        following: list[Json] = []
        for value in level:
            if isinstance(value, list):
                following += value
            elif isinstance(value, dict):
                following += value.values()
            elif isinstance(value, int) and value not in _INTEGERS:
                raise Unrecoverable(
                    "no asset event can hold it: its data has an integer of more than 64 bits"
                )
        if not following:
            return
        level = following
    raise Unrecoverable(f"no asset event can hold it: its data is nested deeper than {MAX_DEPTH} levels")
