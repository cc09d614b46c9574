"""Dramatiq with Redis as broker and result backend, started by its command line: a process for each core."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.contenders import handlers, talk
from benchmarks.contenders.handlers import DATA

QUEUE: Final = "bench"
PATIENCE_MS: Final = 30_000


def declare(url: str) -> Any:
    """The broker and its actors; results are stored."""
    broker: Any = RedisBroker(url=url)
    broker.add_middleware(Results(backend=RedisBackend(client=broker.client), store_results=True))
    dramatiq.set_broker(broker)
    for job in (handlers.noop, handlers.gate):
        dramatiq.actor(job, queue_name=QUEUE)
    return broker


def declare_in_worker() -> None:
    """What the command line of Dramatiq calls in each process."""
    declare(os.environ["BENCH_URL"])


class Producer:
    """``Actor.send``."""

    def __init__(self, url: str) -> None:
        self._broker = declare(url)
        self._noop = self._broker.get_actor("noop")

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._noop.send(DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``. Dramatiq has no bulk call: a ``group``, too, sends one by one."""
        self.add_one_by_one(count)

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._broker.get_actor("gate").send(folder)

    def left(self) -> int:
        """See ``talk.Producer``. A message is kept until it is acknowledged, after its result."""
        return int(self._broker.client.hlen(f"{self._broker.namespace}:{QUEUE}.msgs"))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._noop.send(DATA).get_result(block=True, timeout=PATIENCE_MS)


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal, with as many processes as can share the threads equally."""
    cores = os.cpu_count() or 1
    processes = max(many for many in range(1, cores + 1) if concurrency % many == 0)
    threads = concurrency // processes
    environment = os.environ | {"BENCH_URL": url}
    if processes > 1:  # none may wait in a process while another has an idle thread: all must hold a gate
        environment["dramatiq_queue_prefetch"] = str(threads)
    options = ["--processes", str(processes), "--threads", str(threads)]
    command = [
        sys.executable,
        "-m",
        "dramatiq",
        "benchmarks.contenders.on_dramatiq:declare_in_worker",
        *options,
    ]
    os.execve(sys.executable, command, environment)  # noqa: S606  a list of its own words, no shell


if __name__ == "__main__":
    talk.run(Producer, work)
