"""The work that ``instructions`` counts, using public names only, so that older checkouts can run it.

``python -m benchmarks.workload URL WORK COUNT``. For programs.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from benchmarks.contenders.shapes import nodes_of
from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, NewJob, Queue, Worker

QUEUE: Final = "bench"
DATA: Final[Any] = {"month": 1, "path": "/data/in/part-0001.parquet", "rows": [1, 2, 3]}
RESULT: Final = {"rows": 12345, "path": "/data/out/part-0001.parquet"}


def main(url: str, work: str, count: int) -> None:
    """Do the work for ``count`` jobs or nodes."""
    if work == "add":
        with Queue(QUEUE, url) as queue:
            for _ in range(count):
                queue.add("work", DATA)
    elif work == "add in bulk":
        with Queue(QUEUE, url) as queue:
            queue.add_many([NewJob("work", DATA) for _ in range(count)])
    elif work.startswith("submit"):
        with FlowProducer(url) as flows:
            flows.submit(flow(work.removeprefix("submit "), count), flow_id="counted")
    elif work.startswith(("drain", "run")):
        serve(url, count)
    else:
        raise SystemExit(f"no such work: {work}")


def serve(url: str, count: int) -> None:
    """Run this many jobs."""
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
    """One of the flows of the comparison, with this many nodes."""
    return FlowSpec(
        shape,
        [
            FlowNode(name, queue=QUEUE, job="work", data=DATA, after=after)
            for name, after in nodes_of(shape, count)
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
