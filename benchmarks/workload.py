"""What ``instructions`` counts: a piece of work, by public names only, so that older checkouts can do it.

``python -m benchmarks.workload URL WORK COUNT``. Not for people.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, NewJob, Queue, Worker

QUEUE: Final = "bench"
DATA: Final[Any] = {"month": 1, "path": "/data/in/part-0001.parquet", "rows": [1, 2, 3]}
RESULT: Final = {"rows": 12345, "path": "/data/out/part-0001.parquet"}
WIDTH: Final = 100


def main(url: str, work: str, count: int) -> None:
    """Do so much of it."""
    if work == "add":
        with Queue(QUEUE, url) as queue:
            for _ in range(count):
                queue.add("work", DATA)
    elif work == "add in bulk":
        with Queue(QUEUE, url) as queue:
            queue.add_many([NewJob("work", DATA) for _ in range(count)])
    elif work == "drain":
        serve(url, count)
    elif work.startswith("submit"):
        with FlowProducer(url) as flows:
            flows.submit(flow(work.removeprefix("submit "), count), flow_id="counted")
    elif work.startswith("run"):
        serve(url, len(flow(work.removeprefix("run "), count).nodes))
    else:
        raise SystemExit(f"no such work: {work}")


def serve(url: str, count: int) -> None:
    """Run so many jobs."""
    worker, ran = Worker(url, queues=[QUEUE], concurrency=50), 0

    @worker.handler("work")
    async def handle(_: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran == count:
            worker.stop()
        return RESULT

    worker.run()


def flow(shape: str, count: int) -> FlowSpec:
    """A root with ``count`` dependents, a join of so many, or layers of 100 nodes that wait for three."""

    def node(name: str, *after: str) -> FlowNode:
        return FlowNode(name, QUEUE, "work", DATA, list(after))

    if shape == "root":
        return FlowSpec(shape, [node("root"), *(node(f"n{at}", "root") for at in range(count))])
    if shape == "join":
        names = [f"n{at}" for at in range(count)]
        return FlowSpec(shape, [*map(node, names), node("join", *names)])
    nodes = []
    for layer in range(count // WIDTH):
        for at in range(WIDTH):
            before = ((at - 1) % WIDTH, at, (at + 1) % WIDTH) if layer else ()
            nodes.append(node(f"{layer}-{at}", *(f"{layer - 1}-{one}" for one in before)))
    return FlowSpec(shape, nodes)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
