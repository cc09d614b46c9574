"""The package ``chasquimq``, whose core is Rust. Results are kept; else its defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import redis
from chasquimq import Queue, Worker

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA, RESULT, async_gate

QUEUE: Final = "bench"
BULK: Final = 1_000


class Producer:
    """A ``Queue`` on a loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue: Any = Queue(QUEUE, redis_url=url)
        self._client: Any = redis.Redis.from_url(url)

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(what)

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
            await self._queue.add_bulk([{"name": "noop", "data": DATA} for _ in range(many)])

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        self._do(self._queue.add_bulk([{"name": "gate", "data": folder}] * count))

    def left(self) -> int:
        """See ``talk.Producer``."""
        return int(self._client.xlen(f"{{chasqui:{QUEUE}}}:stream"))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._do(self._run_one())

    async def _run_one(self) -> None:
        job = await self._queue.add("noop", DATA)
        await job.wait_for_result(timeout=30, poll_interval=0.001)


async def handle(job: Any) -> Any:
    """Do nothing, or hold a slot."""
    if job.name == "gate":
        return await async_gate(job.data)
    return RESULT


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal."""
    asyncio.run(_work(url, concurrency))


async def _work(url: str, concurrency: int) -> None:
    await Worker(QUEUE, handle, redis_url=url, concurrency=concurrency, store_results=True).run()


if __name__ == "__main__":
    talk.run(Producer, work)
