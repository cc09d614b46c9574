"""taskiq with streams and results in Redis (``taskiq-redis``); its worker uses uvloop if it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import redis
import uvloop
from taskiq.cli.worker.args import WorkerArgs
from taskiq.cli.worker.run import start_listen
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA, RESULT, async_gate

QUEUE: Final = "bench"
AT_ONCE: Final = 20
POLL_SECONDS: Final = 0.001  # 0.2 by default


async def noop(_: Any) -> dict[str, bool]:
    """A job that does nothing."""
    return RESULT


async def gate(folder: str) -> None:
    """Hold a slot."""
    await async_gate(folder)


def broker_at(url: str) -> Any:
    """The broker and its tasks. Its group reads also what was added before the worker started."""
    broker: Any = RedisStreamBroker(url, queue_name=QUEUE, consumer_id="0")
    broker = broker.with_result_backend(RedisAsyncResultBackend(url))
    for job in (noop, gate):
        broker.register_task(job, task_name=job.__name__)
    return broker


class Producer:
    """``kiq`` on a loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._broker = broker_at(url)
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self._do(self._broker.startup())
        self._noop = self._broker.find_task("noop")

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(what)

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._do(self._add_one_by_one(count))

    async def _add_one_by_one(self, count: int) -> None:
        for _ in range(count):
            await self._noop.kiq(DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``. taskiq has no bulk call: many calls run concurrently."""
        self._do(self._add_in_bulk(count))

    async def _add_in_bulk(self, count: int) -> None:
        for first in range(0, count, AT_ONCE):
            many = min(AT_ONCE, count - first)
            await asyncio.gather(*(self._noop.kiq(DATA) for _ in range(many)))

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._do(self._broker.find_task("gate").kiq(folder))

    def left(self) -> int:
        """See ``talk.Producer``. What has ended stays in the stream, acknowledged."""
        (group,) = self._client.xinfo_groups(QUEUE)
        return int(group["lag"]) + int(group["pending"])

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._do(self._run_one())

    async def _run_one(self) -> None:
        task = await self._noop.kiq(DATA)
        await task.wait_result(check_interval=POLL_SECONDS, timeout=30)


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal, as a process of ``taskiq worker`` does."""
    broker: Any = broker_at(url)
    start_listen(WorkerArgs(broker, modules=[], max_async_tasks=concurrency, configure_logging=False))


if __name__ == "__main__":
    talk.run(Producer, work)
