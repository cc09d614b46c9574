"""Flows with nodes that only Node workers run: whoever of ours has to do with one supervises its queues."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import AsyncFlowProducer, FlowNode, FlowProducer, FlowSpec, FlowState
from glidemq_orchestrate.clients.servers import Verdict, examine
from glidemq_orchestrate.errors import WaitTimeout
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.conftest import Eventually, RunWorker
from tests.node import PlainNode

SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=30)
LOCK = "glide:{nodeq}:gmo:supervisor"


def mixed(length: int = 6, *, last: str = "nodeq") -> FlowSpec:
    """A chain that changes between the queues with each node, most of them in ``nodeq``."""
    queues = ["nodeq" if number % 2 == 0 else "py" for number in range(length)]
    nodes = [
        FlowNode(f"n{number}", queue=queue, job="work", after=[f"n{number - 1}"] if number else [])
        for number, queue in enumerate(queues)
    ]
    nodes += [FlowNode(f"m{number}", queue=last, job="work", after=[nodes[-1].name]) for number in range(3)]
    return FlowSpec("mixed", nodes)


@contextmanager
def node_workers(client: Any, queue: str = "nodeq") -> Iterator[None]:
    """A worker as glide-mq's in Node, in a thread: it knows nothing of flows."""
    ended = threading.Event()

    def serve() -> None:
        worker = PlainNode(client, queue)
        while not ended.wait(0.02):
            worker.at = time.time_ns() // 1_000_000
            worker.run_all()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def node(redis_client: Any) -> Iterator[None]:
    with node_workers(redis_client):
        yield


def ends(flow: Any) -> Callable[[], bool]:
    return lambda: flow.status().state is FlowState.COMPLETED


@pytest.mark.usefixtures("node")
def test_a_worker_of_another_queue_supervises_the_home(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    flow = flows.submit(mixed(), flow_id="f")  # before any worker of ours: the home is where most nodes are
    assert flow.home == "nodeq"
    running = run_worker(["py"], {"work": lambda _: 1})
    eventually(ends(flow), timeout=20)
    assert flow.is_supervised()
    running.stop()
    eventually(lambda: redis_client.get(LOCK) is None, timeout=2)


@pytest.mark.usefixtures("node")
def test_a_worker_of_the_home_supervises_the_other_queues(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["py"], {"work": lambda _: 1})
    eventually(lambda: _is_served(flows, "py"))
    flow = flows.submit(mixed(10), flow_id="f")
    assert flow.home == "py"
    began = time.monotonic()
    eventually(ends(flow), timeout=20)
    assert time.monotonic() - began < 12  # a walk over the open nodes every 15 s is not how it moved


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("way", ["wait", "watch", "async wait", "async watch", "supervise", "short waits"])
def test_a_client_supervises_and_lets_go(
    flows: FlowProducer, redis_client: Any, url: str, way: str, eventually: Eventually
) -> None:
    nodes = [FlowNode(f"n{n}", queue="nodeq", job="work", after=[f"n{n - 1}"] if n else []) for n in range(5)]
    flow = flows.submit(FlowSpec("node", nodes), flow_id="f")

    async def awaited() -> None:
        async with AsyncFlowProducer(url) as producer:
            found = await producer.get("f")
            if way == "async wait":
                await found.wait(timeout=LONG)
            else:
                assert [change async for change in found.watch(timeout=LONG)]

    def short() -> bool:
        try:
            flow.wait(timeout=timedelta(milliseconds=200))
        except WaitTimeout:
            assert redis_client.get(LOCK) is None
            return False
        return True

    def supervised() -> bool:
        flow.supervise()
        return ends(flow)()

    if way == "wait":
        flow.wait(timeout=LONG)
    elif way == "watch":
        assert list(flow.watch(timeout=LONG))
    elif way == "supervise":
        eventually(supervised, timeout=20)
    elif way == "short waits":
        eventually(short, timeout=20)
    else:
        asyncio.run(awaited())
    assert flow.status().state is FlowState.COMPLETED
    assert redis_client.get(LOCK) is None


def test_a_cancelled_or_closed_wait_lets_go(redis_client: Any, url: str, eventually: Eventually) -> None:
    async def run() -> None:
        async with AsyncFlowProducer(url) as producer:
            flow = await producer.submit(FlowSpec("n", [FlowNode("a", queue="nodeq", job="work")]))
            waiting = asyncio.create_task(flow.wait())
            await asyncio.to_thread(eventually, lambda: redis_client.get(LOCK) is not None)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert redis_client.get(LOCK) is None
            changes = flow.watch_batches(rest=SECOND)
            while redis_client.get(LOCK) is None:
                await anext(changes)
            await changes.aclose()  # type: ignore[attr-defined]
            assert redis_client.get(LOCK) is None

    asyncio.run(asyncio.wait_for(run(), 30))


def test_of_many_that_wait_one_leads_and_the_others_read(
    flows: FlowProducer, redis_client: Any, eventually: Eventually
) -> None:
    flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="nodeq", job="work")]), flow_id="f")
    handles, leaders = [flows.get("f") for _ in range(12)], set[str]()
    with ThreadPoolExecutor(12) as threads:
        waiting = [threads.submit(handle.wait, timeout=LONG) for handle in handles]
        eventually(lambda: redis_client.get(LOCK) is not None)
        time.sleep(1)  # all have looked by now
        before = redis_client.info("commandstats")
        for _ in range(25):
            leaders.add(redis_client.get(LOCK))
            time.sleep(0.1)
        after = redis_client.info("commandstats")
        with node_workers(redis_client):
            assert {done.result().status.state for done in waiting} == {FlowState.COMPLETED}
    assert len(leaders - {None}) == 1
    functions = after["cmdstat_fcall"]["calls"] - before["cmdstat_fcall"]["calls"]
    # Twelve waits read the status and the deadlines, once in 5 s; one leader ticks every 2 s.
    assert functions < 12 * 2 * 2 + 4 * 25
    assert flow.status().state is FlowState.COMPLETED


def test_where_nobody_supervises_it_is_told(flows: FlowProducer, url: str, redis_client: Any) -> None:
    flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="nodeq", job="work")]), flow_id="f")
    assert not flow.is_supervised()
    found = {finding.check: finding for finding in examine(url)}["supervision"]
    assert (found.verdict, found.found) == (
        Verdict.WARNING,
        "running flows have a home queue without a supervisor: nodeq",
    )
    assert found.advice.endswith("glidemq supervise --queue nodeq")
    redis_client.execute_command("ACL", "SETUSER", "reader", "on", ">x", "~*", "+@all", "-set")
    try:
        with (
            FlowProducer(url.replace("//", "//reader:x@")) as reading,
            pytest.raises(WaitTimeout, match=r"No supervisor for nodeq.* glidemq supervise --queue nodeq"),
        ):
            reading.get("f").wait(timeout=2 * SECOND)
    finally:
        redis_client.execute_command("ACL", "DELUSER", "reader")


def test_a_repeated_submission_keeps_its_home(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    first = flows.submit(mixed(), flow_id="f")
    assert first.home == "nodeq"
    running = run_worker(["py"], {"work": lambda _: 1})
    eventually(lambda: _is_served(flows, "py"))
    assert flows.submit(mixed(), flow_id="f").home == "nodeq"
    assert flows.submit(mixed(), flow_id="g").home == "py"
    running.stop()
    assert flows.submit(mixed(), flow_id="g").home == "py"
    assert flows.submit(mixed(), flow_id="g", on_existing="restart").home == "py"


def test_links_end_with_the_flows(
    flows: FlowProducer, url: str, redis_client: Any, eventually: Eventually
) -> None:
    flow = flows.submit(mixed(), flow_id="f")
    assert redis_client.smembers("glide:{py}:gmo:beside") == {"nodeq"}
    assert redis_client.smembers("glide:{nodeq}:gmo:beside") == {"py"}
    flow.cancel()
    redis_client.delete("glide:{nodeq}:gmo:flows")  # as after its retention
    with Supervisor(url, queues=["py"], interval=SECOND / 5).running():
        eventually(lambda: not redis_client.keys("*gmo:beside"), timeout=20)


def _is_served(flows: FlowProducer, queue: str) -> bool:
    try:
        flows.check_workers({queue: ["work"]})
    except Exception:  # noqa: BLE001  it has not begun
        return False
    return True
