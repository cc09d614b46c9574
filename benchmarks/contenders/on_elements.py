"""Runs a function over a range: ``python -m benchmarks.contenders.on_elements SYSTEM COUNT [URL]``.

Prints ``{"submit_s", "run_s"}``: until the range is submitted, and from then until every result is there. One
process runs the elements. Each system is started, and has run one element, before the clock starts.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any, Final

WAIT_SECONDS: Final = 0.02


def double(at: int) -> int:
    """What every system runs for an element."""
    return 2 * at


def on_dask(count: int, _url: str) -> tuple[float, float]:
    """``client.map`` and ``gather``, on a worker process with one thread."""
    from distributed import Client, LocalCluster  # noqa: PLC0415  installed in the environment of this system

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.submit(double, 1).result()
        began = time.monotonic()
        futures = client.map(double, range(count))
        submitted = time.monotonic()
        assert len(client.gather(futures)) == count
        return submitted - began, time.monotonic() - submitted


def on_hyperqueue(count: int, _url: str) -> tuple[float, float]:
    """A job of programs ``true``, on a worker with one core; its tasks are processes."""
    from hyperqueue import Job, LocalCluster  # noqa: PLC0415  as above
    from hyperqueue.cluster import WorkerConfig  # noqa: PLC0415  as above

    with LocalCluster(worker_config=WorkerConfig(cores=1)) as cluster:
        client = cluster.client()
        first = Job()
        first.program(["true"], stdout=None, stderr=None)
        client.wait_for_jobs([client.submit(first)])
        began = time.monotonic()
        job = Job()
        for _ in range(count):
            job.program(["true"], stdout=None, stderr=None)
        submitted_job = client.submit(job)
        submitted = time.monotonic()
        client.wait_for_jobs([submitted_job])
        return submitted - began, time.monotonic() - submitted


def on_glidemq(count: int, url: str, *, job: str = "one") -> tuple[float, float]:
    """An array node, with an async handler or a batch handler."""
    from glidemq_orchestrate import ArrayNode, Client, FlowNode, FlowSpec  # noqa: PLC0415  as above

    with Client(url) as client:
        worker = multiprocessing.get_context("spawn").Process(target=_serve, args=(url,))
        worker.start()
        try:
            first = FlowSpec("warm", queue="bench", nodes=[FlowNode("one", data=1)])
            client.flows.submit(first, flow_id="warm").wait(timeout=60)
            spec = FlowSpec("array", queue="bench", nodes=[ArrayNode("a", job=job, over=range(count))])
            began = time.monotonic()
            flow = client.flows.submit(spec, flow_id="array")
            submitted = time.monotonic()
            while not flow.status().state.is_terminal:
                time.sleep(WAIT_SECONDS)
            took = time.monotonic() - submitted
            assert flow.array("a").counts().completed == count
            return submitted - began, took
        finally:
            worker.terminate()
            worker.join()


def on_glidemq_batch(count: int, url: str) -> tuple[float, float]:
    """The same with a batch handler."""
    return on_glidemq(count, url, job="many")


def _serve(url: str) -> None:
    from glidemq_orchestrate import Worker  # noqa: PLC0415  as above

    worker = Worker(url, queues=["bench"], concurrency=8)

    @worker.handler("one")
    async def one(ctx: Any) -> int:
        return double(ctx.data)

    @worker.batch_handler("many", size=100)
    async def many(contexts: list[Any]) -> list[int]:
        return [double(ctx.data) for ctx in contexts]

    worker.run()


SYSTEMS: Final[dict[str, Callable[[int, str], tuple[float, float]]]] = {
    "glidemq": on_glidemq,
    "glidemq batch": on_glidemq_batch,
    "dask": on_dask,
    "hyperqueue": on_hyperqueue,
}


if __name__ == "__main__":
    system, size, *address = sys.argv[1:]
    submit_s, run_s = SYSTEMS[system](int(size), address[0] if address else "")
    print(json.dumps({"submit_s": submit_s, "run_s": run_s}))
