"""This project. Handlers are ``async def``; results are kept, as by default."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from benchmarks.contenders import talk
from benchmarks.contenders.handlers import DATA, RESULT, async_gate
from benchmarks.contenders.shapes import nodes_of
from glidemq_orchestrate import Flow, FlowNode, FlowProducer, FlowSpec, JobState, NewJob, Queue, Worker
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers

QUEUE: Final = "bench"
ENDED: Final = (JobState.COMPLETED, JobState.FAILED)
PATIENCE: Final = timedelta(minutes=5)


class Producer:
    """Blocking calls of ``Queue`` and ``FlowProducer``."""

    def __init__(self, url: str) -> None:
        self._queue = Queue(QUEUE, url)
        self._flows = FlowProducer(url)
        self._flow: Flow | None = None

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            self._queue.add("noop", DATA)

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``."""
        self._queue.add_many([NewJob("noop", DATA) for _ in range(count)])

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        self._queue.add_many([NewJob("gate", folder)] * count)

    def left(self) -> int:
        """See ``talk.Producer``."""
        counts = self._queue.counts(indexed_only=True)
        return sum(count for state, count in counts.items() if state not in ENDED)

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        self._queue.add_and_wait("noop", DATA)

    def submit(self, shape: str, size: int) -> bool:
        """See ``talk.Producer``."""
        self._flow = self._flows.submit(flow_spec(shape, size))
        return True

    def wait(self) -> None:
        """See ``talk.Producer``."""
        assert self._flow is not None
        self._flow.result(timeout=PATIENCE)


def flow_spec(shape: str, size: int) -> FlowSpec:
    """A flow whose joins read the results of all their dependencies."""
    nodes = [
        FlowNode(name, queue=QUEUE, job=_job(after), data=DATA, after=after)
        for name, after in nodes_of(shape, size)
    ]
    return FlowSpec(f"{shape}-{size}", nodes)


def _job(after: list[str]) -> str:
    return "join" if len(after) > 2 else "noop"


class Meter:
    """Handlers, and the time spent inside the one that does nothing."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        self.calls = self.nanoseconds = 0
        self.handlers.handler("noop")(self.noop)
        self.handlers.handler("join")(join)
        self.handlers.handler("gate")(gate)

    async def noop(self, _: Context) -> Any:
        """A job that does nothing, timed."""
        begun = time.perf_counter_ns()
        result = RESULT
        self.calls += 1
        self.nanoseconds += time.perf_counter_ns() - begun
        return result


async def join(ctx: Context) -> Any:
    """A node that waits for many."""
    return len(ctx.inputs)


async def gate(ctx: Context) -> None:
    """Hold a slot."""
    await async_gate(str(ctx.data))


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal; then print how long the handlers took."""
    work_with(url, concurrency, lambda worker: worker.run())


def work_with(url: str, concurrency: int, run: Callable[[Worker], None]) -> None:
    """Make a worker, run it, and print how long the handlers took."""
    meter = Meter()
    run(Worker(url, queues=[QUEUE], concurrency=concurrency, handlers=meter.handlers))
    print(json.dumps({"handler_us": meter.nanoseconds / 1_000 / max(meter.calls, 1)}), flush=True)


if __name__ == "__main__":
    talk.run(Producer, work)
