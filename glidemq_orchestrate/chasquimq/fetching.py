"""Fetches the jobs of one worker while it has places, those of silent workers first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.chasquimq.consuming import Arrived, Consumer, Refused, open_group, read, take_over
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.wire.call import Op, Run, ask

WAIT_MS: Final = 500
CROWDED_SECONDS: Final = 0.1
TAKE_OVER_SECONDS: Final = 2.0

Found = Sequence[Arrived | Refused]


@dataclass(slots=True, eq=False)
class Fetching:
    """What a worker fetches.

    Attributes:
        run: Drives operations.
        consumer: The worker.
        concurrency: How many jobs it runs at the same time.
        lease_ms: An entry that was not renewed for so long belongs to a silent worker.
        held: The entries that it runs.
        is_closed: Whether no job may start now.
        start: Receives what was fetched.
        drained: Called when the queue is found empty, after it was not.
        reserved: The number of jobs that ``Reports`` is fetching.
        requested: The number of jobs that this is fetching.
    """

    run: Run
    consumer: Consumer
    concurrency: int
    lease_ms: int
    held: Mapping[str, Any]
    is_closed: Callable[[], bool]
    start: Callable[[Found], None]
    drained: Callable[[], None]
    reserved: Callable[[], int]
    requested: int = 0
    _freed: asyncio.Event = field(default_factory=asyncio.Event)
    _take_over_at: float = 0.0
    _was_busy: bool = False

    @property
    def room(self) -> int:
        """How many more jobs may be fetched."""
        if self.is_closed():
            return 0
        return self.concurrency - len(self.held) - self.requested - self.reserved()

    def room_after(self, ends: int) -> int:
        """How many jobs to fetch with the report of so many ends; none while the queue is empty."""
        return 0 if self.requested or self._takes_over else self.room + ends

    def freed(self) -> None:
        """Fetch again: a place is free."""
        self._freed.set()

    async def fetch(self) -> bool:
        """Fetch once if there is room, else wait for it for a moment; returns whether the server was asked.

        With ends of runs, ``Reports`` fetches the next.
        """
        if (room := self.room) <= 0:
            await self._wait_for_room()
            return False
        self.requested, takes_over = room, self._takes_over
        try:
            found = await self.run(self._fetch(room))
        except ProtocolError as exc:
            if exc.code != "NOGROUP":
                raise
            await self.run(ask(open_group(self.consumer)))  # somebody has deleted the queue
            return True
        finally:
            self.requested = 0
        if not (found or takes_over) and self._was_busy:
            self._was_busy = False
            self.drained()
        self.take(found)
        return True

    def take(self, found: Found) -> None:
        """Start what was fetched, here or by ``Reports``."""
        self._was_busy = self._was_busy or bool(found)
        self.start(found)

    @property
    def _takes_over(self) -> bool:
        """Whether the next jobs are to be those of silent workers: they would wait for an empty queue."""
        return asyncio.get_running_loop().time() >= self._take_over_at

    def _fetch(self, room: int) -> Op[Found]:
        if not self._takes_over:
            return (yield from ask(read(self.consumer, room, WAIT_MS)))
        found = yield from take_over(self.consumer, self.lease_ms, room, self.held)
        pause = min(self.lease_ms / 2000, TAKE_OVER_SECONDS)
        self._take_over_at = asyncio.get_running_loop().time() + pause
        return found

    async def _wait_for_room(self) -> None:
        self._freed.clear()
        try:
            async with asyncio.timeout(CROWDED_SECONDS):
                await self._freed.wait()
        except TimeoutError:
            pass
