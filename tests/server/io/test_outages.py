"""A server that is cut off, emptied, restarted or loses its libraries in mid-run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    AsyncEventReader,
    AsyncFlowProducer,
    AsyncQueue,
    Client,
    EmbeddedServer,
    EventReader,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    Queue,
)
from glidemq_orchestrate.clients import outage
from glidemq_orchestrate.errors import ConnectionFailed, TransportError, WaitTimeout
from tests.server.connections.topologies import Server

if TYPE_CHECKING:
    from collections.abc import Callable
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
    idle = timedelta(seconds=5)

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
            time.sleep(1.5)
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


def test_who_waits_for_a_flow_goes_on_after_an_outage(
    tmp_path: Path,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outage, "SILENT_SECONDS", 0)
    server = Server(tmp_path / "data")
    url = f"valkey://127.0.0.1:{server.port}"
    spec = FlowSpec("n", [FlowNode("a", queue="etl", job="work")])
    begun = Counter[str]()

    async def in_loop(how: str) -> Any:
        async with AsyncFlowProducer(url) as flows:
            flow = await flows.get("f")
            begun[how] += 1
            if how == "watch":
                return [change.state async for change in flow.watch(timeout=LONG)]
            return await (flow.wait() if how == "wait" else flow.result(timeout=LONG))

    def in_thread(how: str) -> Any:
        with FlowProducer(url) as flows:
            flow = flows.get("f")
            begun[how] += 1
            if how == "watch":
                return [change.state for change in flow.watch()]
            return flow.wait(timeout=LONG) if how == "wait" else flow.result()

    try:
        with FlowProducer(url) as flows, ThreadPoolExecutor(6) as threads:
            flow = flows.submit(spec, flow_id="f")
            hows = ("wait", "result", "watch")
            todo = [partial(in_thread, how) for how in hows] + [
                partial(asyncio.run, in_loop(how)) for how in hows
            ]
            done = [threads.submit(one) for one in todo]
            eventually(lambda: begun == dict.fromkeys(hows, 2))
            time.sleep(0.5)  # until they wait
            server.kill()
            time.sleep(1.5)
            server.start()
            flow.complete_node("a", 7)
            waited, results, states = ([one.result(timeout=30) for one in done[at::3]] for at in range(3))
        assert [one.status.state for one in waited] == [FlowState.COMPLETED] * 2
        assert results == [{"a": 7}] * 2
        assert [one[-2:] for one in states] == [["completed", "completed"]] * 2
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert any(text.startswith("flow f: the server is unreachable: ") for text in told), told
    finally:
        server.close()


def test_who_awaits_a_job_goes_on_after_an_outage(
    tmp_path: Path, run_worker: RunWorker, eventually: Eventually
) -> None:
    server = Server(tmp_path / "data")
    url = f"valkey://127.0.0.1:{server.port}"

    async def in_loop() -> Any:
        async with AsyncQueue("etl", url) as queue:
            return await queue.add_and_wait("work", timeout=60)

    try:
        with Queue("etl", url) as queue, ThreadPoolExecutor(2) as threads:
            done = [
                threads.submit(queue.add_and_wait, "work", timeout=60),
                threads.submit(asyncio.run, in_loop()),
            ]
            eventually(lambda: queue.counts()[JobState.WAITING] == 2)
            server.kill()
            time.sleep(1.5)
            server.start()
            worker = run_worker(["etl"], {"work": lambda _: 7}, url=url)
            assert [one.result(timeout=30) for one in done] == [7, 7]
            worker.stop()
            server.kill()
            began = time.monotonic()
            with pytest.raises(ConnectionFailed):  # nothing was added
                queue.add_and_wait("work")
            assert time.monotonic() - began < 15
    finally:
        server.close()


@pytest.mark.parametrize("is_outage", [False, True], ids=["connected", "outage"])
def test_closing_a_client_ends_its_waits(tmp_path: Path, *, is_outage: bool) -> None:
    server = Server(tmp_path / "data")
    url = f"valkey://127.0.0.1:{server.port}"

    async def close_in_loop() -> None:
        async with AsyncFlowProducer(url) as flows:
            waiting = asyncio.create_task((await flows.get("f")).wait())
            await asyncio.sleep(0.5)
            if is_outage:
                server.kill()
                await asyncio.sleep(1.2)  # into a pause between two tries
            await flows.close()
            await waiting

    try:
        with ThreadPoolExecutor(4) as threads:
            flows, queue, client = FlowProducer(url), Queue("etl", url), Client(url)
            spec = FlowSpec("n", [FlowNode("a", queue="etl", job="work")])
            reader = EventReader("etl", url)
            todo: list[Callable[[], Any]] = [
                flows.submit(spec, flow_id="f").wait,
                partial(queue.add_and_wait, "work"),
                lambda: list(client.flows.get("f").watch()),
                lambda: list(reader),
            ]
            waiting = [threads.submit(one) for one in todo]
            time.sleep(0.5)  # until they wait
            if is_outage:
                server.kill()
                time.sleep(1.2)
            for closed in (flows, queue, client, reader):
                closed.close()
            for one in waiting:
                assert isinstance(one.exception(timeout=5), TransportError)
        if is_outage:
            server.start()
        with pytest.raises(TransportError):
            asyncio.run(asyncio.wait_for(close_in_loop(), 20))
    finally:
        server.close()


def test_an_outage_is_waited_out_until_the_timeout(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        with FlowProducer(f"valkey://127.0.0.1:{server.port}") as flows:
            flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="etl", job="work")]))
            server.kill()
            for wait in (
                lambda: flow.wait(timeout=0.5),
                lambda: flow.result(timeout=0.5),
                lambda: list(flow.watch(timeout=0.5)),
            ):
                began = time.monotonic()
                with pytest.raises(ConnectionFailed):
                    wait()
                assert time.monotonic() - began >= 0.5
            with pytest.raises(ConnectionFailed):
                list(flow.watch_batches())
            server.start()
            with pytest.raises(WaitTimeout, match="0 of 1 nodes completed after 100 ms"):
                flow.wait(timeout=0.1)
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
            time.sleep(1.5)
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
