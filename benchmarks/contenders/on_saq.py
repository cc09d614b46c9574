"""SAQ on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from saq import Queue, Worker

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA, RESULT, async_gate

QUEUE: Final = "bench"
AT_ONCE: Final = 200
POLL_SECONDS: Final = 0.001  # 0.5 by default


async def noop(_: Any, *, data: Any) -> dict[str, bool]:  # noqa: ARG001  what the producer sends
    """A job that does nothing."""
    return RESULT


async def gate(_: Any, *, folder: str) -> None:
    """Hold a slot."""
    await async_gate(folder)


class Producer:
    """A ``Queue`` on a loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue: Any = Queue.from_url(url, name=QUEUE)
        self._do(self._queue.connect())

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(what)

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._do(self._add_one_by_one(count))

    async def _add_one_by_one(self, count: int) -> None:
        for _ in range(count):
            await self._queue.enqueue("noop", data=DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``. SAQ has no bulk call: many calls run concurrently, 20 of them at once."""
        self._do(self._add_in_bulk(count))

    async def _add_in_bulk(self, count: int) -> None:
        for first in range(0, count, AT_ONCE):
            many = min(AT_ONCE, count - first)
            await asyncio.gather(*(self._queue.enqueue("noop", data=DATA) for _ in range(many)))

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``. A job may take 10 s, if it does not say how long."""
        for _ in range(count):
            self._do(self._queue.enqueue("gate", folder=folder, timeout=300))

    def left(self) -> int:
        """See ``talk.Producer``."""
        return int(self._do(self._queue.count("incomplete")))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._do(self._queue.apply("noop", timeout=30, poll_interval=POLL_SECONDS, data=DATA))


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal."""
    asyncio.run(_work(url, concurrency))


async def _work(url: str, concurrency: int) -> None:
    functions: list[Any] = [noop, gate]
    await Worker(Queue.from_url(url, name=QUEUE), functions, concurrency=concurrency).start()


if __name__ == "__main__":
    talk.run(Producer, work)
