"""Huey with Redis as queue and as store of results."""

from __future__ import annotations

import logging
from typing import Any, Final

from huey import RedisHuey

from benchmarks.contenders import handlers, talk
from benchmarks.contenders.handlers import DATA, RESULT

POLL_SECONDS: Final = 0.001  # 0.05 to 1 by default


def noop(_: Any) -> dict[str, bool]:
    """A job that does nothing."""
    return RESULT


def gate(folder: str) -> dict[str, bool]:
    """Hold a slot; with a result, by which the producer sees the end."""
    handlers.gate(folder)
    return RESULT


def huey_at(url: str) -> Any:
    """The queue; it knows ``noop`` and ``gate``."""
    return RedisHuey("bench", url=url)


class Producer:
    """Calls of tasks, and ``map``."""

    def __init__(self, url: str) -> None:
        self._huey = huey_at(url)
        self._noop = self._huey.task()(noop)
        self._gate = self._huey.task()(gate)
        self._added = 0

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._count(count)
        for _ in range(count):
            self._noop(DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``. ``map`` sends a command for each."""
        self._count(count)
        self._noop.map([(DATA,)] * count)

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        self._count(count)
        self._gate.map([(folder,)] * count)

    def _count(self, more: int) -> None:
        """Count what is added; from zero on an empty server."""
        is_empty = not self._huey.pending_count() and not self._huey.result_count()
        self._added = more if is_empty else self._added + more

    def left(self) -> int:
        """See ``talk.Producer``. A job that runs is in no key; when it has ended, its result is."""
        return self._added - int(self._huey.result_count())

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._noop(DATA).get(blocking=True, timeout=30, max_delay=POLL_SECONDS)


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal, in threads: the default."""
    logging.disable(logging.INFO)
    huey = huey_at(url)
    for job in (noop, gate):
        huey.task()(job)
    huey.create_consumer(workers=concurrency, periodic=False).run()


if __name__ == "__main__":
    talk.run(Producer, work)
