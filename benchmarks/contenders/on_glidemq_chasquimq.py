"""This project on queues of ChasquiMQ: ``ChasquiQueue`` and ``ChasquiWorker``, with async handlers."""

from __future__ import annotations

import time
from typing import Any, Final

import redis

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA, RESULT, async_gate
from glidemq_orchestrate import Context
from glidemq_orchestrate.chasquimq import ChasquiJob, ChasquiQueue, ChasquiWorker

QUEUE: Final = "bench"
LOOK_SECONDS: Final = 0.001


class Producer:
    """Blocking calls of ``ChasquiQueue``."""

    def __init__(self, url: str) -> None:
        self._queue = ChasquiQueue(QUEUE, url)
        self._client: Any = redis.Redis.from_url(url)

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._queue.add("noop", DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._queue.add_many([ChasquiJob("noop", DATA) for _ in range(count)])

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        self._queue.add_many([ChasquiJob("gate", folder)] * count)

    def left(self) -> int:
        """See ``talk.Producer``."""
        return int(self._client.xlen(f"{{chasqui:{QUEUE}}}:stream"))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        job_id = self._queue.add("noop", DATA)
        while self._queue.result(job_id) is None:
            time.sleep(LOOK_SECONDS)


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal."""
    worker = ChasquiWorker(QUEUE, url, concurrency=concurrency)

    @worker.handler
    async def noop(_: Context) -> Any:
        return RESULT

    @worker.handler
    async def gate(ctx: Context) -> None:
        await async_gate(str(ctx.data))

    worker.run()


if __name__ == "__main__":
    talk.run(Producer, work)
