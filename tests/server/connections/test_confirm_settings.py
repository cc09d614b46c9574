"""What confirmed writes need of a server, and which calls wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import (
    Broadcast,
    Client,
    ConnectionSettings,
    EventReader,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    NewJob,
    Queue,
    Schedule,
)
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.clients.schedules import JobTemplate
from glidemq_orchestrate.errors import ConfigurationError, NotConfirmed, WaitTimeout
from glidemq_orchestrate.server.findings import confirm_rule, rule
from tests.conftest import Eventually, RunWorker
from tests.server.conftest import Clients
from tests.server.connections.topologies import Server

HOUR = timedelta(hours=1)
MOMENT = timedelta(milliseconds=50)
NODE = FlowNode("a", queue="etl", job="work")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("alone") / "server")
    yield server
    server.close()


@pytest.fixture
def never(alone: Server) -> ConnectionSettings:
    """Waits for a replica that there is not."""
    alone.client.flushall()
    return settings(alone, "replicas:1", limit=0.02)


@pytest.fixture
def disk(alone: Server) -> Iterator[ConnectionSettings]:
    alone.client.flushall()
    yield settings(alone, "disk", limit=20.0)
    alone.client.config_set("appendonly", "yes")
    alone.client.config_set("appendfsync", "always")


def settings(server: Server, confirm: str, *, limit: float) -> ConnectionSettings:
    return ConnectionSettings(f"valkey://127.0.0.1:{server.port}", confirm=confirm, confirm_timeout=limit)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_changes_something_waits_and_what_reads_does_not(never: ConnectionSettings, kind: str) -> None:
    clients = Clients(never, kind)  # type: ignore[arg-type]  # settings stand for an URL
    do, queue, flows = clients.do, clients.queue(), clients.flows()
    node, spec = FlowNode("b", queue="etl", job="work"), FlowSpec("n", [NODE])
    writes: list[Callable[[], Any]] = [
        lambda: queue.add("work", options=JobOptions(job_id="a")),
        lambda: queue.add_many([NewJob("work"), NewJob("other")]),
        lambda: queue.change_delay("a", HOUR),
        lambda: queue.promote("a"),
        lambda: queue.update_data("a", 1),
        lambda: queue.add_log("a", "line"),
        queue.pause,
        queue.resume,
        lambda: queue.set_global_concurrency(3),
        lambda: queue.revoke("a"),
        lambda: queue.retry("a"),
        lambda: queue.remove("a"),
        lambda: flows.submit(spec, flow_id="f"),
        lambda: flows.submit(spec, flow_id="f"),
        lambda: do(flows.get("f")).extend([node]),
        lambda: do(flows.get("f")).cancel("why"),
        lambda: do(flows.get("f")).retry_failed(),
        lambda: do(flows.get("f")).cancel("why"),
        lambda: do(flows.get("f")).restart(),
        queue.drain,
    ]
    for number, write in enumerate(writes):
        with pytest.raises(NotConfirmed, match="The write stands"):
            pytest.fail(f"write {number} was confirmed: {do(write())}")
    flow = do(flows.get("f"))
    assert do(flow.status()).state is FlowState.RUNNING
    names = clients.client().queues
    for read in (
        queue.counts, queue.is_paused, queue.workers, queue.metrics, queue.groups, queue.scan_jobs,
        queue.dead_letters, queue.usage_summary, flow.nodes, flow.results, flows.list, names,
        lambda: queue.get_jobs("waiting"), lambda: queue.search(name="work"), lambda: queue.logs("a"),
        lambda: queue.get_job("f~a"), lambda: queue.children_values("f~a"), lambda: queue.parents("f~a"),
        lambda: queue.suspend_info("f~a"), lambda: queue.usage("f~a"), lambda: queue.flow_budget("f~a"),
        lambda: queue.read_output("f~a"), lambda: flow.node("a"), lambda: flows.get("f"),
    ):  # fmt: skip
        do(read())
    with pytest.raises(WaitTimeout):
        do(flow.wait(timeout=MOMENT))
    clients.close()


def test_schedulers_and_broadcasts_wait_too(never: ConnectionSettings) -> None:
    with Schedules("etl", never) as schedulers, Broadcast("news", never) as news:
        with pytest.raises(NotConfirmed):
            schedulers.upsert("hourly", Schedule(every=HOUR), JobTemplate("work"))
        assert [entry.name for entry in schedulers.list()] == ["hourly"]
        with pytest.raises(NotConfirmed):
            schedulers.remove("hourly")
        with pytest.raises(NotConfirmed):
            news.publish("order.paid", {})
    with EventReader("etl", never, position="0-0") as reader, Client(never) as queues:
        reader.read()
        queues.queues()


def test_a_worker_without_the_replicas_runs_jobs_but_confirms_none(
    alone: Server, never: ConnectionSettings, run_worker: RunWorker, eventually: Eventually
) -> None:
    raised: list[str] = []

    def work(ctx: Any) -> int:
        try:
            ctx.flow.add_nodes([FlowNode("more", queue="etl", job="rest")])
        except NotConfirmed as exc:
            raised.append(str(exc))
        return 1

    url = f"valkey://127.0.0.1:{alone.port}"
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", [NODE]), flow_id="f")
        run_worker(["etl"], {"work": work, "rest": lambda ctx: 2}, url=never)
        eventually(lambda: flow.results().get("a") == 1)
        assert [node.name for node in flow.nodes()] == ["a", "more"]
        assert len(raised) == 1


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_the_disk_confirms(
    alone: Server, disk: ConnectionSettings, run_worker: RunWorker, fsync: str
) -> None:
    alone.client.config_set("appendfsync", fsync)
    with Queue("etl", disk) as queue:
        run_worker(["etl"], {"work": lambda ctx: 1}, url=disk)
        assert queue.add_and_wait("work") == 1
        assert alone.client.execute_command("WAITAOF", 1, 0, 1) == [1, 0]


def test_a_disk_that_is_never_asked_to_write_confirms_nothing(
    alone: Server, disk: ConnectionSettings
) -> None:
    with Queue("etl", settings(alone, "disk", limit=0.1)) as queue:
        queue.add("work")
        alone.client.config_set("appendfsync", "no")
        with pytest.raises(NotConfirmed, match=r"it was not on the disk of the server within 0\.1 s"):
            queue.add("work")
    with Queue("etl", settings(alone, "disk,replicas:1", limit=0.1)) as queue:
        alone.client.config_set("appendfsync", "always")
        with pytest.raises(NotConfirmed, match="only 0 of 1 replicas got it"):
            queue.add("work")


def test_without_an_append_only_file_the_first_call_says_what_to_do(
    alone: Server, disk: ConnectionSettings
) -> None:
    with Queue("etl", disk) as queue:
        queue.add("work")
        alone.client.config_set("appendonly", "no")
        with pytest.raises(
            NotConfirmed, match=r"appendonly is disabled.*Fix: set appendonly yes on the server"
        ):
            queue.add("work")
    with Queue("etl", disk) as queue, pytest.raises(ConfigurationError, match="set appendonly yes"):
        queue.counts()


@pytest.mark.parametrize("confirm", ["disk", "replicas:1"])
def test_a_user_needs_the_right_to_wait(alone: Server, confirm: str) -> None:
    alone.client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">do", *rule().split())
    mine = ConnectionSettings(
        f"valkey://worker:do@127.0.0.1:{alone.port}",
        confirm=confirm,
        confirm_timeout=10 if confirm == "disk" else 0.02,
    )
    with Queue("etl", mine) as queue, pytest.raises(ConfigurationError, match=r"lacks a permission.*wait"):
        queue.add("work")
    alone.client.execute_command("ACL", "SETUSER", "worker", *confirm_rule().split())
    with Queue("etl", mine) as queue:
        queue.counts()
        if confirm == "disk":
            queue.add("work")
