"""One address in front of two servers: after a failover, open clients go on with the one that took over."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import (
    AsyncBroadcast,
    Broadcast,
    ConnectionSettings,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    NewJob,
    Queue,
    Schedule,
)
from glidemq_orchestrate.clients import AsyncSchedules, Schedules
from glidemq_orchestrate.clients.schedules import JobTemplate
from glidemq_orchestrate.errors import OutcomeUnknown, ServerBusy
from tests.chaos.proxy import Proxy
from tests.conftest import Eventually, RunWorker
from tests.server.conftest import Clients
from tests.server.connections.topologies import Server

SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=30)
SPEC = FlowSpec(
    "n", [FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl", job="work", after=["a"])]
)


class Front:
    """The address, the server that it leads to, and the other one."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary, self.replica = primary, replica
        self.proxy = Proxy(primary.port)
        self.url = f"valkey://127.0.0.1:{self.proxy.port}"

    def follow(self) -> None:
        """Let the replica follow the primary, and wait until it has all."""
        self.primary.client.replicaof("NO", "ONE")
        self.replica.client.replicaof("127.0.0.1", self.primary.port)
        end = time.monotonic() + 20
        while self.replica.client.role()[3] != "connected":
            assert time.monotonic() < end
            time.sleep(0.02)
        self.primary.client.set("marker", "1")
        assert self.primary.client.wait(1, 5000) == 1

    def promote(self) -> None:
        """The other one takes over, and new connections lead to it; those that are open stay."""
        self.primary, self.replica = self.replica, self.primary
        self.primary.client.replicaof("NO", "ONE")
        self.proxy.target = self.primary.port

    def fail_over(self) -> None:
        """As ``promote``; the old primary becomes a replica."""
        self.promote()
        self.replica.client.replicaof("127.0.0.1", self.primary.port)

    def links(self, server: Server) -> int:
        """How many clients a server has, without the other server and without us."""
        return len([one for one in server.client.client_list(_type="normal") if one["cmd"] != "client|list"])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    directory = tmp_path_factory.mktemp("front")
    first, second = Server(directory / "a"), Server(directory / "b")
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def front(servers: tuple[Server, Server]) -> Iterator[Front]:
    primary, replica = servers
    primary.client.replicaof("NO", "ONE")
    primary.client.flushall()
    made = Front(primary, replica)
    made.follow()
    yield made
    made.proxy.close()


@pytest.fixture(params=["sync", "async"])
def clients(request: pytest.FixtureRequest, front: Front) -> Iterator[Clients]:
    made = Clients(front.url, request.param)
    yield made
    made.close()


def test_every_call_of_an_open_client_goes_on_with_the_new_primary(clients: Clients, front: Front) -> None:
    is_sync, url = clients.kind == "sync", front.url
    queue, flows = clients.queue(), clients.flows()
    schedulers: Any = clients.keep((Schedules if is_sync else AsyncSchedules)("etl", url))
    news: Any = clients.keep((Broadcast if is_sync else AsyncBroadcast)("news", url))
    do = clients.do
    flow = do(flows.submit(SPEC, flow_id="first"))
    do(queue.add("work", 0))
    do(schedulers.upsert("first", Schedule(every=LONG), JobTemplate("work")))
    do(news.publish("topic", 0))
    front.fail_over()
    calls: list[Callable[[], Any]] = [
        lambda: queue.add("work", 1),
        lambda: flows.submit(SPEC, flow_id="second"),
        flow.cancel,
        lambda: schedulers.upsert("second", Schedule(every=LONG), JobTemplate("work")),
        lambda: news.publish("topic", 1),
    ]
    for call in calls:  # a client each: none of them finds what another has closed
        do(call())
    do(queue.add_many([NewJob("work", n) for n in (2, 3)]))
    do(queue.pause())
    jobs = [job.data for job in do(queue.search(name="work")) if job.flow_id is None]
    assert sorted(jobs) == [0, 1, 2, 3]
    assert do(flow.status()).state is FlowState.CANCELLED
    assert [one.name for one in do(schedulers.list())] == ["first", "second"]
    assert do(queue.is_paused())


def test_one_refusal_closes_the_idle_connections_too(front: Front, eventually: Eventually) -> None:
    with Queue("etl", front.url) as queue:
        queue.add("work")
        together = threading.Barrier(5)

        def read(_: int) -> None:
            together.wait()
            for _ in range(50):
                queue.counts()

        with ThreadPoolExecutor(5) as threads:
            list(threads.map(read, range(5)))
        assert front.links(front.primary) > 1
        front.fail_over()
        queue.add("work")
        eventually(lambda: front.links(front.replica) == 0)
        assert queue.counts()[JobState.WAITING] == 2


@pytest.mark.long
def test_a_worker_keeps_its_leases_through_a_failover(front: Front, run_worker: RunWorker) -> None:
    calls, begun = Counter[str](), threading.Semaphore(0)

    def work(ctx: Any) -> str:
        calls[ctx.node] += 1
        begun.release()
        time.sleep(3)  # longer than the lease
        return str(ctx.node)

    run_worker(["etl"], {"work": work}, url=front.url, concurrency=4, lease=SECOND)
    run_worker(["etl"], {"work": work}, url=front.url, concurrency=1, lease=SECOND)
    with FlowProducer(front.url) as flows:
        nodes = [FlowNode(f"n{n}", queue="etl", job="work") for n in range(4)]
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
        for _ in nodes:
            assert begun.acquire(timeout=10)
        front.fail_over()
        outcome = flow.wait(timeout=LONG)
    assert outcome.status.state is FlowState.COMPLETED, outcome
    assert set(calls.values()) == {1}


def test_a_server_that_is_stuck_costs_one_time_out(front: Front) -> None:
    with Queue("etl", ConnectionSettings(front.url, socket_timeout=0.5)) as queue:
        queue.add("work")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: queue.counts(), range(40)))
        old = front.primary
        assert old.process is not None
        front.promote()
        old.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknown):
                queue.add("work")
            for _ in range(5):
                began = time.monotonic()
                queue.add("work")
                assert time.monotonic() - began < 0.5
        finally:
            old.process.send_signal(signal.SIGCONT)
            with suppress(ServerBusy):
                front.follow()


def test_a_primary_without_its_replicas_is_left(front: Front) -> None:
    with Queue("etl", front.url) as queue:
        queue.add("work")
        old = front.primary
        front.promote()
        old.client.config_set("min-replicas-to-write", 1)
        try:
            queue.add("work")
            assert front.primary.client.get("glide:{etl}:id") == "2"
        finally:
            old.client.config_set("min-replicas-to-write", 0)


def test_who_waits_goes_on_with_the_new_primary(
    front: Front, run_worker: RunWorker, eventually: Eventually
) -> None:
    with FlowProducer(front.url) as flows, ThreadPoolExecutor(1) as threads:
        flow = flows.submit(SPEC, flow_id="f")
        waiting = threads.submit(flow.wait, timeout=LONG)
        eventually(lambda: any(one["cmd"] == "xread" for one in front.primary.client.client_list()))
        front.fail_over()
        run_worker(["etl"], {"work": lambda _: 1}, url=front.url)
        assert waiting.result().status.state is FlowState.COMPLETED
