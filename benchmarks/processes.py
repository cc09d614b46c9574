"""Processes of ``many_flows``, ``under_load`` and ``recovery``: ``python -m benchmarks.processes ROLE ...``.

Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.contenders.shapes import nodes_of
from benchmarks.crew import serve, tell_ready
from glidemq_orchestrate import (
    AsyncFlowProducer,
    AsyncQueue,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    Worker,
)
from glidemq_orchestrate.worker import JobEvent
from glidemq_orchestrate.worker.services.supervisor import Supervisor

QUEUE: Final = "bench"
SHAPES: Final = ("fan-in", "mesh", "ladder")
SIZE: Final = 101
RESULT: Final = {"ok": True}
FIRST: Final = "first"
THEN: Final = "then"
OPEN: Final = "open"


def worker(url: str, concurrency: str, options: str = "{}") -> None:
    """Run jobs until SIGTERM.

    Args:
        url: The server.
        concurrency: How many at once.
        options: JSON: ``seconds`` that each takes, ``record`` for a file to which the start, the return and
            the accepted result of each job are written, at once if ``at_once``, and arguments of ``Worker``.
    """
    chosen = json.loads(options)
    seconds, record = chosen.pop("seconds", 0), chosen.pop("record", None)
    write = _writer(record, at_once=chosen.pop("at_once", False))
    if "lease" in chosen:
        chosen["lease"] = timedelta(seconds=chosen["lease"])
    handlers = Handlers()

    @handlers.handler
    async def work(ctx: Context) -> Any:
        write("start", ctx.job_id)
        if seconds:
            await asyncio.sleep(seconds)
        write("return", ctx.job_id)
        return RESULT

    if record is not None:

        @handlers.on_job
        def ended(event: JobEvent) -> None:
            if event.kind == "completed":
                write("accepted", event.job_id)

    serve(Worker(url, queues=[QUEUE], concurrency=int(concurrency), handlers=handlers, **chosen))


def supervisor(url: str) -> None:
    """Supervise until SIGTERM; started before the workers, it leads."""
    serve(Supervisor(url, queues=[QUEUE]))


def submitter(url: str, number: str, of: str, flows: str, folder: str) -> None:
    """Submit this share of the flows as fast as possible once a folder has a file named ``open``.

    Prints when the submission of each began and ended, by the wall clock, and ends.
    """
    specs = [(at, flow(SHAPES[at % len(SHAPES)])) for at in range(int(number), int(flows), int(of))]
    with FlowProducer(url) as producer:
        producer.list(limit=1)  # connect
        tell_ready()
        while not Path(folder, OPEN).exists():
            time.sleep(0.002)
        took = []
        for at, spec in specs:
            began = time.time()
            producer.submit(spec, flow_id=f"flow-{at}")
            took.append((at, began, time.time()))
    print(json.dumps(took), flush=True)


def flow(shape: str) -> FlowSpec:
    """A flow of about 100 nodes."""
    return FlowSpec(
        shape, [FlowNode(name, queue=QUEUE, job="work", after=after) for name, after in nodes_of(shape, SIZE)]
    )


def generator(url: str, seed: str, rate: str, seconds: str, folder: str) -> None:
    """Add jobs at times drawn beforehand: exponential pauses, whatever happened to the jobs before.

    Begins once the folder has a file named ``open``. Each tenth is a flow of two nodes. The intended time is
    written beside that of the call, so that a late call counts as latency. With a rate of 0, 32 callers add
    one after the other, as fast as they can.
    """
    asyncio.run(_generator(url, int(seed), float(rate), float(seconds), Path(folder)))


async def _generator(url: str, seed: int, rate: float, seconds: float, folder: Path) -> None:
    chance, tasks = random.Random(seed), set()
    write = _writer(str(folder / f"generator{seed}.record"), at_once=False)
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(AsyncQueue(QUEUE, url))
        flows = await stack.enter_async_context(AsyncFlowProducer(url))
        await queue.counts()
        await flows.list(limit=1)
        tell_ready()
        while not (folder / OPEN).exists():  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.002)
        add = _adding(queue, flows, seed, write)
        begun = time.monotonic()
        if not rate:

            async def again() -> None:
                while time.monotonic() < begun + seconds:
                    await add(time.monotonic())

            await asyncio.gather(*(again() for _ in range(32)))
        else:
            for intended in _times(chance, rate, seconds):
                if (ahead := begun + intended - time.monotonic()) > 0:
                    await asyncio.sleep(ahead)
                task = asyncio.create_task(add(begun + intended))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                if len(tasks) % 64 == 0:
                    await asyncio.sleep(0)
            while tasks:
                await asyncio.wait(tasks)


def _times(chance: random.Random, rate: float, seconds: float) -> Iterator[float]:
    """The arrivals of a Poisson process."""
    at = chance.expovariate(rate)
    while at < seconds:
        yield at
        at += chance.expovariate(rate)


def _adding(
    queue: AsyncQueue, flows: AsyncFlowProducer, seed: int, write: Callable[..., None]
) -> Callable[[float], Coroutine[Any, Any, None]]:
    """Adds the next job or flow, and writes its job and when it was due."""
    count = 0

    async def add(intended: float) -> None:
        nonlocal count
        count += 1
        called = time.monotonic()
        if count % 10:
            job_id = await queue.add("work", {"n": count})
            write("due", job_id, intended)
            write("called", job_id, called)
            return
        flow_id = f"{seed}-{count}"
        nodes = [
            FlowNode(FIRST, queue=QUEUE, job="work"),
            FlowNode(THEN, queue=QUEUE, job="work", after=[FIRST]),
        ]
        await flows.submit(FlowSpec("two", nodes), flow_id=flow_id)
        write("due", f"{flow_id}~{FIRST}", intended)
        write("called", f"{flow_id}~{FIRST}", called)

    return add


def _writer(record: str | None, *, at_once: bool) -> Callable[..., None]:
    """Writes a line: what happened to which job, and when."""
    if record is None:
        return lambda *_: None
    file = Path(record).open("a", buffering=1 if at_once else 1 << 20)  # noqa: SIM115  until the end
    atexit.register(file.close)

    def write(what: str, job_id: str, when: float | None = None) -> None:
        file.write(f"{what} {job_id} {time.monotonic() if when is None else when:.6f}\n")

    return write


ROLES: Final[dict[str, Callable[..., None]]] = {
    "worker": worker, "supervisor": supervisor, "submitter": submitter, "generator": generator,
}  # fmt: skip


if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
