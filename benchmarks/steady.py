"""What the processes of the soak do: ``python -m benchmarks.steady ROLE URL ...``. For ``soak``.

The same work comes again and again: fan-outs, chains, flows whose nodes fail once, flows that fail, are
cancelled or add nodes, and plain jobs that are delayed, ordered or retried. How each flow ends is checked.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from benchmarks.crew import serve, tell_ready
from glidemq_orchestrate import (
    AsyncFlow,
    AsyncFlowProducer,
    AsyncQueue,
    Backoff,
    Context,
    Dependency,
    FlowNode,
    FlowSpec,
    Handlers,
    JobOptions,
    Keep,
    NewJob,
    Ordering,
    Worker,
)
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.services.supervisor import Supervisor

QUEUE: Final = "soak"
CONCURRENCY: Final = 8
RETENTION: Final = timedelta(seconds=30)
KEPT: Final = Keep(age=timedelta(seconds=30))
WAIT: Final = timedelta(seconds=120)
BEATS: Final = 2.0  # rounds of submissions per second
PLAIN: Final = 20  # plain jobs in each
SLOW_SECONDS: Final = 0.5
RESULT: Final[dict[str, Json]] = {"rows": 12_345, "path": "/data/out/part-0001.parquet"}
DATA: Final[dict[str, Json]] = {"month": 1, "path": "/data/in/part-0001.parquet", "rows": [1, 2, 3]}
TWICE: Final = JobOptions(attempts=3, backoff=Backoff("fixed", timedelta(milliseconds=100)))


def main(role: str, url: str, *options: str) -> None:
    """Be one of the processes until SIGTERM."""
    ROLES[role](url, *options)


# --- workers and supervisor ---


def async_worker(url: str) -> None:
    """A worker with async handlers."""
    handlers = Handlers()

    @handlers.handler
    async def work(ctx: Context) -> Any:
        return _work(ctx)

    @handlers.handler
    async def slow(_ctx: Context) -> Any:
        await asyncio.sleep(SLOW_SECONDS)
        return RESULT

    @handlers.handler
    async def grow(ctx: Context) -> None:
        assert ctx.flow is not None
        await ctx.flow.map_over_async(
            FlowNode("item", queue=QUEUE, job="work", data=DATA), range(5), before=["end"]
        )

    _serve(url, handlers)


def threads_worker(url: str) -> None:
    """A worker whose handlers run in threads."""
    handlers = Handlers()
    handlers.handler("work")(_work)

    @handlers.handler
    def slow(ctx: Context) -> Any:
        ctx.cancelled.wait(SLOW_SECONDS)
        return RESULT

    @handlers.handler
    def grow(ctx: Context) -> None:
        assert ctx.flow is not None
        ctx.flow.map_over(FlowNode("item", queue=QUEUE, job="work", data=DATA), range(5), before=["end"])

    _serve(url, handlers)


def processes_worker(url: str) -> None:
    """A worker whose handlers run in processes of their own."""
    handlers = Handlers()
    handlers.handler("apart", process=True)(apart)
    _serve(url, handlers, queue=f"{QUEUE}-apart", concurrency=1)


def apart(_ctx: Context) -> Any:
    """A handler that runs in another process."""
    return RESULT


def supervisor(url: str) -> None:
    """A supervisor of its own; started first, it leads."""
    serve(Supervisor(url, queues=[QUEUE]))


def _work(ctx: Context) -> Any:
    """Some progress and log lines now and then; fails as often as the data says."""
    fails = int(str(ctx.data.get("fails", 0))) if isinstance(ctx.data, dict) else 0
    if ctx.attempt <= fails:
        raise ValueError(f"attempt {ctx.attempt} of {fails} that fail")
    if random.random() < 0.05:
        ctx.progress(50)
        ctx.log("half of it is done")
    return RESULT


def _serve(url: str, handlers: Handlers, *, queue: str = QUEUE, concurrency: int = CONCURRENCY) -> None:
    """Run jobs until SIGTERM; then print how many have ended, by kind of end."""
    ends: Counter[str] = Counter()
    handlers.on_job(lambda event: ends.update([event.kind]))
    serve(Worker(url, queues=[queue], concurrency=concurrency, handlers=handlers))
    print(json.dumps(ends))


# --- the client ---


def fan_out() -> FlowSpec:
    """One node, ten after it, one after those."""
    middle = [FlowNode(f"n{at}", queue=QUEUE, job="work", data=DATA, after=["begin"]) for at in range(10)]
    end = FlowNode("end", queue=QUEUE, job="work", data=DATA, after=[node.name for node in middle])
    return _spec("fan-out", FlowNode("begin", queue=QUEUE, job="work", data=DATA), *middle, end)


def in_a_chain() -> FlowSpec:
    """Eight nodes, each after the one before."""
    return _spec(
        "chain",
        *(
            FlowNode(f"n{at}", queue=QUEUE, job="work", data=DATA, after=[f"n{at - 1}"] if at else [])
            for at in range(8)
        ),
    )


def retried() -> FlowSpec:
    """Four nodes that fail once or twice, and one after them."""
    nodes = [
        FlowNode(f"n{at}", queue=QUEUE, job="work", data=DATA | {"fails": 1 + at % 2}, options=TWICE)
        for at in range(4)
    ]
    return _spec(
        "retried",
        *nodes,
        FlowNode("end", queue=QUEUE, job="work", data=DATA, after=[node.name for node in nodes]),
    )


def failing() -> FlowSpec:
    """A node that always fails: what depends on it fails too, but for one that may run after all."""
    return _spec(
        "failing",
        FlowNode("bad", queue=QUEUE, job="work", data=DATA | {"fails": 99}, options=JobOptions(attempts=2)),
        FlowNode("next", queue=QUEUE, job="work", data=DATA, after=["bad"]),
        FlowNode("after that", queue=QUEUE, job="work", data=DATA, after=["next"]),
        FlowNode(
            "anyway", queue=QUEUE, job="work", data=DATA, after=[Dependency("bad", on_failure="ignore")]
        ),
    )


def cancelled() -> FlowSpec:
    """Slow nodes in two layers, cancelled while the first runs."""
    first = [FlowNode(f"n{at}", queue=QUEUE, job="slow", data=DATA) for at in range(3)]
    second = [FlowNode(f"m{at}", queue=QUEUE, job="work", data=DATA, after=["n0", "n1"]) for at in range(5)]
    return _spec("cancelled", *first, *second)


def growing() -> FlowSpec:
    """A node that adds five more before the end."""
    return _spec(
        "growing",
        FlowNode("grow", queue=QUEUE, job="grow"),
        FlowNode("end", queue=QUEUE, job="work", data=DATA, after=["grow"]),
    )


def elsewhere() -> FlowSpec:
    """Nodes of another queue, whose handlers run in processes."""
    return _spec(
        "elsewhere",
        FlowNode("a", queue=f"{QUEUE}-apart", job="apart"),
        FlowNode("b", queue=QUEUE, job="work", data=DATA, after=["a"]),
    )


FLOWS: Final[dict[Callable[[], FlowSpec], str]] = {
    fan_out: "completed", in_a_chain: "completed", retried: "completed", failing: "failed",
    cancelled: "cancelled", growing: "completed", elsewhere: "completed",
}  # fmt: skip
"""The flows of each round, and how they end."""


def _spec(name: str, *nodes: FlowNode) -> FlowSpec:
    return FlowSpec(name, nodes, labels={"dag": name}, retention=RETENTION)


class Client:
    """Submits a round of flows and jobs at fixed times, waits for the flows, and counts how they ended."""

    def __init__(self, flows: AsyncFlowProducer, queue: AsyncQueue) -> None:
        self._flows, self._queue = flows, queue
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._open: set[asyncio.Task[None]] = set()

    async def work(self, stopping: asyncio.Event) -> None:
        """Go on until told to stop, then wait for what is open."""
        begun, rounds = time.monotonic(), 0
        while not stopping.is_set():
            for make in list(FLOWS)[rounds % 2 :: 2]:  # half of the kinds in every round
                self._keep(self._one(make))
            self._keep(self._jobs(rounds))
            rounds += 1
            await asyncio.sleep(max(begun + rounds / BEATS - time.monotonic(), 0))
        while self._open:
            await asyncio.wait(self._open)

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if (error := task.exception()) is not None and len(self.wrong) < 20:
            self.wrong.append(f"{type(error).__name__}: {error}")

    async def _one(self, make: Callable[[], FlowSpec]) -> None:
        flow: AsyncFlow = await self._flows.submit(make())
        if make is cancelled:
            await asyncio.sleep(0.1)
            if (await flow.cancel("the soak says so")).is_terminal:
                return  # this client was slower than the nodes: nothing was cancelled
        status = (await flow.wait(timeout=WAIT)).status
        self.ends[f"{status.name} {status.state}"] += 1
        self.ends["nodes"] += status.total
        if status.state != FLOWS[make]:
            self.wrong.append(f"{status.name} {flow.id} is {status.state}: {status.reason}")

    async def _jobs(self, number: int) -> None:
        kept = JobOptions(remove_on_complete=KEPT, remove_on_fail=KEPT)
        options = [kept] * PLAIN
        options[0] = JobOptions(remove_on_complete=True, remove_on_fail=True, delay=timedelta(seconds=1))
        options[1] = JobOptions(remove_on_complete=KEPT, ordering=Ordering(f"key{number % 50}"))
        options[2] = JobOptions(remove_on_complete=KEPT, priority=1 + number % 5)
        options[3] = JobOptions(remove_on_complete=100, attempts=TWICE.attempts, backoff=TWICE.backoff)
        jobs = [NewJob("work", DATA | {"fails": int(at == 3)}, options=one) for at, one in enumerate(options)]
        added = await self._queue.add_many(jobs)
        self.ends["plain jobs"] += len(added)


def client(url: str) -> None:
    """Submit until SIGTERM; then print how everything has ended."""
    asyncio.run(_client(url))


async def _client(url: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with AsyncFlowProducer(url) as flows, AsyncQueue(QUEUE, url) as queue:
        works = Client(flows, queue)
        await queue.counts()
        tell_ready()
        await works.work(stopping)
    print(json.dumps({"ends": dict(works.ends), "wrong": works.wrong}))


ROLES: Final[dict[str, Callable[..., None]]] = {
    "async": async_worker, "threads": threads_worker, "processes": processes_worker,
    "supervisor": supervisor, "client": client,
}  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
