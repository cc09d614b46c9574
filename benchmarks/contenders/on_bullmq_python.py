"""The Python port of BullMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final
from uuid import uuid4

from bullmq import Queue, QueueEvents, Worker

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA, RESULT, async_gate

QUEUE: Final = "bench"
BULK: Final = 1_000
UNENDED: Final = ("waiting", "active", "delayed", "prioritized")


class Producer:
    """A ``Queue`` and its ``QueueEvents``, on a loop of their own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._do(self._connect(url))

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(what)

    async def _connect(self, url: str) -> None:
        self._queue: Any = Queue(QUEUE, {"connection": url})
        self._events: Any = QueueEvents(QUEUE, {"connection": url})

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._do(self._add_one_by_one(count))

    async def _add_one_by_one(self, count: int) -> None:
        for _ in range(count):
            await self._queue.add("noop", DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._do(self._add_in_bulk(count))

    async def _add_in_bulk(self, count: int) -> None:
        for first in range(0, count, BULK):
            many = min(BULK, count - first)
            await self._queue.addBulk([{"name": "noop", "data": DATA} for _ in range(many)])

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        self._do(self._queue.addBulk([{"name": "gate", "data": folder}] * count))

    def left(self) -> int:
        """See ``talk.Producer``."""
        return int(self._do(self._queue.getJobCountByTypes(*UNENDED)))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._do(self._run_one())

    async def _run_one(self) -> None:
        """Wait for the event of the job: jobs of this port have no ``waitUntilFinished``."""
        job_id = uuid4().hex
        ended = asyncio.Event()
        self._events.on(f"completed:{job_id}", lambda *_: ended.set())
        await self._queue.add("noop", DATA, {"jobId": job_id})
        await asyncio.wait_for(ended.wait(), timeout=30)


async def handle(job: Any, _: str) -> Any:
    """Do nothing, or hold a slot."""
    if job.name == "gate":
        return await async_gate(job.data)
    return RESULT


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal."""
    asyncio.run(_work(url, concurrency))


async def _work(url: str, concurrency: int) -> None:
    await Worker(QUEUE, handle, {"connection": url, "concurrency": concurrency, "autorun": False}).run()


if __name__ == "__main__":
    talk.run(Producer, work)
