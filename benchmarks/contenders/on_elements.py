"""Runs a function over a range: ``python -m benchmarks.contenders.on_elements SYSTEM COUNT [URL]``.

Prints ``{"submit_s", "run_s"}``: until the range is submitted, and from then until every result is there. One
process runs the elements. Each system is started, and has run one element, before the clock starts.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

WAIT_SECONDS: Final = 0.02
PATIENCE: Final = 600


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

    with Client(url) as client, _worker(_serve, url):
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


def on_celery(count: int, url: str) -> tuple[float, float]:
    """A ``group``, on a worker with the pool ``solo``."""
    from celery import group  # noqa: PLC0415  as above

    task = _celery_task(url)
    with _worker(_serve_celery, url):
        task.delay(1).get(timeout=PATIENCE)
        began = time.monotonic()
        results = group(task.s(at) for at in range(count)).apply_async()
        submitted = time.monotonic()
        assert len(results.join_native(timeout=PATIENCE)) == count
        return submitted - began, time.monotonic() - submitted


def _celery_task(url: str) -> Any:
    from celery import Celery  # noqa: PLC0415  as above

    app: Any = Celery("bench", broker=url, backend=url)
    app.conf.update(worker_prefetch_multiplier=128, worker_hijack_root_logger=False)
    return app.task(name="double")(double)


def _serve_celery(url: str) -> None:
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
    _celery_task(url).app.worker_main(["worker", "-P", "solo", *options])


def on_dramatiq(count: int, url: str) -> tuple[float, float]:
    """A ``group`` of messages whose results are stored, on a worker with eight threads."""
    import dramatiq  # noqa: PLC0415  as above

    actor = _dramatiq_actor(url)
    with _worker(_serve_dramatiq, url):
        actor.send(1).get_result(block=True, timeout=1_000 * PATIENCE)
        began = time.monotonic()
        group = dramatiq.group([actor.message(at) for at in range(count)]).run()
        submitted = time.monotonic()
        assert len(list(group.get_results(block=True, timeout=1_000 * PATIENCE))) == count
        return submitted - began, time.monotonic() - submitted


def _dramatiq_actor(url: str) -> Any:
    import dramatiq  # noqa: PLC0415  as above
    from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415  as above
    from dramatiq.results import Results  # noqa: PLC0415  as above
    from dramatiq.results.backends import RedisBackend  # noqa: PLC0415  as above

    broker: Any = RedisBroker(url=url)
    broker.add_middleware(Results(backend=RedisBackend(url=url)))
    dramatiq.set_broker(broker)
    return dramatiq.actor(store_results=True)(double)


def _serve_dramatiq(url: str) -> None:
    import dramatiq  # noqa: PLC0415  as above

    dramatiq.Worker(_dramatiq_actor(url).broker, worker_threads=8).start()
    threading.Event().wait()


@contextmanager
def _worker(serve: Callable[[str], None], url: str) -> Iterator[None]:
    """A worker in a process of its own, which is killed at the end."""
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(url,))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


SYSTEMS: Final[dict[str, Callable[[int, str], tuple[float, float]]]] = {
    "glidemq": on_glidemq,
    "glidemq batch": on_glidemq_batch,
    "dask": on_dask,
    "hyperqueue": on_hyperqueue,
    "celery": on_celery,
    "dramatiq": on_dramatiq,
}


if __name__ == "__main__":
    system, size, *address = sys.argv[1:]
    submit_s, run_s = SYSTEMS[system](int(size), address[0] if address else "")
    print(json.dumps({"submit_s": submit_s, "run_s": run_s}))
