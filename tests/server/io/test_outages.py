"""A server that is cut off, emptied, restarted or loses its libraries in mid-run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    AsyncEventReader,
    AsyncQueue,
    EmbeddedServer,
    EventReader,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    Queue,
)
from glidemq_orchestrate.errors import ConnectionFailed
from tests.server.connections.topologies import Server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker

LONG = timedelta(seconds=60)
SECOND = timedelta(seconds=1)
STREAM = "glide:{etl}:stream"


class Load:
    """Many small flows, and how often each node ran and was accepted."""

    def __init__(self, flows: FlowProducer, count: int) -> None:
        nodes = [
            FlowNode("a", queue="etl", job="work"),
            *(FlowNode(f"b{n}", queue="etl", job="work", after=["a"]) for n in range(5)),
        ]
        spec = FlowSpec("n", [*nodes, FlowNode("c", queue="etl", job="work", after=[n.name for n in nodes])])
        self.flows = [flows.submit(spec, flow_id=f"f{n}") for n in range(count)]
        self.nodes = 7 * count

    def check(self, redis_client: Any) -> None:
        for flow in self.flows:
            outcome = flow.wait(timeout=LONG)
            assert outcome.status.state is FlowState.COMPLETED, outcome
            assert (outcome.status.completed, outcome.status.failed) == (7, 0)
        assert redis_client.zcard("glide:{etl}:completed") == self.nodes
        assert redis_client.xlen(STREAM) == 0
        assert redis_client.scard("glide:{etl}:gmo:todo") == 0


async def slow(ctx: Any) -> str:
    await asyncio.sleep(0.01)
    return str(ctx.node)


def test_lost_libraries_are_loaded_again_in_mid_run(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    load = Load(flows, 10)
    run_worker(["etl"], {"work": slow}, concurrency=4)
    for flow in load.flows[::2]:
        redis_client.function_flush()
        flow.status()
        flow.wait(timeout=LONG)
    load.check(redis_client)


def test_cut_connections_lose_nothing_and_finish_nothing_twice(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    load = Load(flows, 60)  # enough for several cuts on a fast machine
    workers = [run_worker(["etl"], {"work": slow}, concurrency=4, lease=SECOND) for _ in range(2)]
    own, end, cuts = redis_client.client_id(), time.monotonic() + 60, 0

    def cut() -> bool:
        """Cut all but this client; true when the last flow has ended."""
        nonlocal cuts
        others = [client["id"] for client in redis_client.client_list() if int(client["id"]) != own]
        cuts += sum(redis_client.client_kill_filter(_id=client) for client in others)
        threading.Event().wait(0.15)  # between two cuts, not for anything
        return bool(redis_client.zcard("glide:{etl}:completed") == load.nodes)

    while not cut():
        assert time.monotonic() < end
    assert cuts > 5
    load.check(redis_client)
    for running in workers:
        running.stop()
    events = [
        fields for _, fields in redis_client.xrange("glide:{etl}:events") if fields["event"] == "completed"
    ]
    assert max(Counter(fields["jobId"] for fields in events).values()) == 1


def test_an_emptied_database_does_not_end_a_worker(
    queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
) -> None:
    run_worker(["etl"], {"work": lambda ctx: 1})
    redis_client.flushall()
    job_id = queue.add("work")
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=20)


def test_a_server_that_restarts_loses_nothing(
    tmp_path: Path, run_worker: RunWorker, eventually: Eventually
) -> None:
    with EmbeddedServer(data_dir=tmp_path / "data") as first:
        url = first.url
        port = int(url.rsplit(":", 1)[1])
        calls = Counter[str]()

        def work(ctx: Any) -> str:
            calls[ctx.node] += 1
            threading.Event().wait(0.05)
            return str(ctx.node)

        run_worker(["etl"], {"work": work}, url=url, concurrency=2, lease=SECOND)
        nodes = [
            FlowNode(f"n{n}", queue="etl", job="work", after=[f"n{n - 2}"] if n > 1 else [])
            for n in range(30)
        ]
        with FlowProducer(url) as flows:
            flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
            eventually(lambda: flow.status().completed > 5)
        # Writes reach the disk within a second; a crash may take the last one back, an orderly stop does not.
        first.stop()
        with EmbeddedServer(data_dir=tmp_path / "data", port=port), FlowProducer(url) as flows:
            outcome = flows.get("f").wait(timeout=LONG)
            assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 30)
            assert set(calls) == {node.name for node in nodes}
            assert sum(calls.values()) <= 30 + 2 * 2


def test_who_iterates_over_events_goes_on_after_an_outage(tmp_path: Path, eventually: Eventually) -> None:
    server = Server(tmp_path / "data")
    url, found = f"valkey://127.0.0.1:{server.port}", {"sync": list[str](), "async": list[str]()}
    idle = timedelta(seconds=8)

    def read(reader: EventReader) -> None:
        for event in reader:
            found["sync"].append(event.job_id)

    async def read_async() -> None:
        async with AsyncEventReader("etl", url, position="0-0", idle_timeout=idle) as reader:
            async for event in reader:
                found["async"].append(event.job_id)

    try:
        with (
            Queue("etl", url) as queue,
            EventReader("etl", url, position="0-0", idle_timeout=idle) as reader,
            ThreadPoolExecutor(2) as threads,
        ):
            done = [threads.submit(read, reader), threads.submit(asyncio.run, read_async())]
            ids = [queue.add("work")]
            eventually(lambda: list(found.values()) == [ids, ids])
            server.kill()
            time.sleep(3)
            server.start()
            ids.append(queue.add("work"))
            eventually(lambda: list(found.values()) == [ids, ids], timeout=20)
            server.kill()
            for one in done:  # it ends by the error, not as if nothing had happened
                assert isinstance(one.exception(timeout=30), ConnectionFailed)
        with EventReader("etl", url, position="0-0") as reader, pytest.raises(ConnectionFailed):
            next(iter(reader))
    finally:
        server.close()


def test_who_watches_tracked_jobs_goes_on_after_an_outage(tmp_path: Path, eventually: Eventually) -> None:
    server = Server(tmp_path / "data")
    url, found = f"valkey://127.0.0.1:{server.port}", {"sync": list[Any](), "async": list[Any]()}

    def watch() -> None:
        with Queue("etl", url) as queue:
            for change in queue.watch_tracked():
                found["sync"].append(change.now.state)
                if change.now.is_removed:
                    return

    async def watch_async() -> None:
        async with AsyncQueue("etl", url) as queue:
            async for change in queue.watch_tracked():
                found["async"].append(change.now.state)
                if change.now.is_removed:
                    return

    try:
        with Queue("etl", url) as queue, ThreadPoolExecutor(2) as threads:
            job_id = queue.add("work")
            queue.track(job_id)
            done = [threads.submit(watch), threads.submit(asyncio.run, watch_async())]
            eventually(lambda: list(found.values()) == [["waiting"]] * 2)
            server.kill()
            time.sleep(3)
            server.start()
            queue.remove(job_id)
            for one in done:
                one.result(timeout=30)
        assert list(found.values()) == [["waiting", None]] * 2
        server.kill()
        with Queue("etl", url) as queue, pytest.raises(ConnectionFailed):
            next(iter(queue.watch_tracked()))
    finally:
        server.close()
