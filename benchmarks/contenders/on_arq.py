"""arq."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, Final

from arq import create_pool, func
from arq.connections import ArqRedis, RedisSettings
from arq.constants import default_queue_name
from arq.worker import Worker

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA, RESULT, async_gate

AT_ONCE: Final = 200
POLL_SECONDS: Final = 0.001  # 0.5 by default


async def noop(_: Any, __: Any) -> dict[str, bool]:
    """A job that does nothing."""
    return RESULT


async def gate(_: Any, folder: str) -> None:
    """Hold a slot."""
    await async_gate(folder)


class Producer:
    """An ``ArqRedis`` on a loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool: ArqRedis = self._do(create_pool(RedisSettings.from_dsn(url)))

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(what)

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._do(self._add_one_by_one(count))

    async def _add_one_by_one(self, count: int) -> None:
        for _ in range(count):
            await self._pool.enqueue_job("noop", DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``. arq has no bulk call: many calls run concurrently."""
        self._do(self._add_in_bulk(count))

    async def _add_in_bulk(self, count: int) -> None:
        for first in range(0, count, AT_ONCE):
            many = min(AT_ONCE, count - first)
            await asyncio.gather(*(self._pool.enqueue_job("noop", DATA) for _ in range(many)))

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._do(self._pool.enqueue_job("gate", folder))

    def left(self) -> int:
        """See ``talk.Producer``."""
        return int(self._do(self._pool.zcard(default_queue_name)))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._do(self._run_one())

    async def _run_one(self) -> None:
        job = await self._pool.enqueue_job("noop", DATA)
        assert job is not None
        await job.result(timeout=30, poll_delay=POLL_SECONDS)


class Settings:
    """The functions of the worker."""

    functions: ClassVar = [func(noop, name="noop"), func(gate, name="gate")]


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal."""
    worker = Worker(
        Settings.functions,
        redis_settings=RedisSettings.from_dsn(url),
        max_jobs=concurrency,
        queue_read_limit=max(concurrency * 5, 100),
        poll_delay=0.005,
        job_timeout=300,
    )
    worker.run()


if __name__ == "__main__":
    talk.run(Producer, work)
