"""RQ: a pool of ``SimpleWorker`` processes, which do not fork for each job."""

from __future__ import annotations

import logging
from typing import Final

from redis import Redis
from rq import Queue, SimpleWorker
from rq.registry import StartedJobRegistry
from rq.worker_pool import WorkerPool

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA

QUEUE: Final = "bench"
NOOP: Final = "benchmarks.contenders.handlers.noop"
GATE: Final = "benchmarks.contenders.handlers.gate"
AT_ONCE: Final = 1_000


class Producer:
    """``enqueue`` and ``enqueue_many``."""

    def __init__(self, url: str) -> None:
        self._queue = Queue(QUEUE, connection=Redis.from_url(url))
        self._started = StartedJobRegistry(queue=self._queue)

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._queue.enqueue(NOOP, DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``."""
        for first in range(0, count, AT_ONCE):
            many = min(AT_ONCE, count - first)
            self._queue.enqueue_many([Queue.prepare_data(NOOP, (DATA,)) for _ in range(many)])

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._queue.enqueue(GATE, folder)

    def left(self) -> int:
        """See ``talk.Producer``."""
        return int(len(self._queue) + self._started.get_job_count(cleanup=False))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._queue.enqueue(NOOP, DATA).latest_result(timeout=30)


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal."""
    logging.disable(logging.WARNING)
    pool = WorkerPool([QUEUE], Redis.from_url(url), num_workers=concurrency, worker_class=SimpleWorker)
    pool.start(logging_level="ERROR")


if __name__ == "__main__":
    talk.run(Producer, work)
