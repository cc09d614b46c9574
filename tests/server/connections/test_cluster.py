"""A cluster of three primaries: every client finds the owner of a queue, whatever happens to it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import (
    ConnectionSettings,
    EventReader,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
    NewJob,
    Queue,
    Schedule,
)
from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.clients.schedules import JobTemplate
from glidemq_orchestrate.clients.servers import Libraries
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowFailed,
    LibraryVersionMismatch,
    TransportError,
)
from glidemq_orchestrate.io.gathering import GatheringDriver
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.server.findings import cluster_rule, rule
from glidemq_orchestrate.wire.call import ask, command
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import slot_node
from tests.chaos.versions import NEWER, OLDER, of_version
from tests.conftest import Eventually, RunWorker
from tests.server.conftest import Clients
from tests.server.connections.topologies import Move, Primaries, running_primaries

QUEUES = ("b", "c", "q")  # one for each primary
LONG = timedelta(seconds=30)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primaries]:
    with running_primaries(tmp_path_factory.mktemp("primaries")) as running:
        assert len({running.owner(queue).port for queue in QUEUES}) == 3
        yield running


@pytest.fixture
def url(primaries: Primaries) -> str:
    for server in primaries.servers:
        server.client.flushall()
    return primaries.url


# a(b) -> m(c), n(q) -> end(b);  side(q)
FLOW = FlowSpec(
    "n",
    [
        slot_node("a"),
        slot_node("m", "a", queue="c"),
        slot_node("n", "a", queue="q"),
        slot_node("end", "m", "n"),
        slot_node("side", queue="q"),
    ],
)


def test_the_first_call_loads_the_libraries_on_every_primary(primaries: Primaries, url: str) -> None:
    for server in primaries.servers:
        server.client.function_flush()
    with Queue("b", url) as queue:
        queue.add("work")
    statuses = Libraries(url).status()
    assert statuses == Libraries(f"valkey://127.0.0.1:{primaries.servers[0].port}").status()
    assert set(statuses) == {f"valkey://127.0.0.1:{server.port}" for server in primaries.servers}
    assert all(status.ours for found in statuses.values() for status in found)


def test_libraries_that_one_primary_has_lost_are_loaded_again(primaries: Primaries, url: str) -> None:
    with Queue("b", url) as queue:
        queue.add("work")
        primaries.owner("b").client.function_flush()
        assert queue.add("work") == "2"


@pytest.mark.parametrize("number", range(3))
def test_an_older_library_on_one_primary_is_replaced(primaries: Primaries, url: str, number: int) -> None:
    queue_of = {primaries.owner(queue).port: queue for queue in QUEUES}
    server = primaries.servers[number]
    with Queue(queue_of[server.port], url) as queue:
        queue.add("work")
        source = of_version(ORCHESTRATE, OLDER).source.replace("'gmo_add_jobs'", "'gmo_other'")
        server.client.function_load(source, replace=True)
        assert queue.add_many([NewJob("work")]) == ["2"]
        assert all(status.ours for found in Libraries(url).status().values() for status in found)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(("name", "version"), [(ORCHESTRATE, NEWER), (GLIDEMQ, "92")])
def test_a_library_of_another_version_on_one_primary_is_reported(
    primaries: Primaries, url: str, number: int, name: str, version: str
) -> None:
    server = primaries.servers[number]
    server.client.function_load(of_version(name, version).source, replace=True)
    try:
        with Queue("b", url) as queue, pytest.raises(LibraryVersionMismatch, match=version):
            queue.add("work")
    finally:
        server.client.function_load(library(name).source, replace=True)


def test_a_newer_library_on_one_primary_is_not_replaced(primaries: Primaries, url: str) -> None:
    newer, older = (primaries.owner(queue).client for queue in ("c", "b"))
    with Queue("b", url) as queue:
        queue.add("work")
        newer.function_load(of_version(ORCHESTRATE, NEWER).source, replace=True)
        source = of_version(ORCHESTRATE, OLDER).source.replace("'gmo_add_jobs'", "'gmo_other'")
        older.function_load(source, replace=True)
        try:
            with pytest.raises(LibraryVersionMismatch, match=NEWER):
                queue.add_many([NewJob("work")])
        finally:
            newer.function_load(library(ORCHESTRATE).source, replace=True)
        assert queue.add_many([NewJob("work")]) == ["2"]


def double(ctx: Any) -> int:
    return int(ctx.data) * 2


def test_queues_of_every_slot_work_by_one_client_of_each_kind(twins: Clients, run_worker: RunWorker) -> None:
    run_worker(QUEUES, {"work": double}, url=twins.url)
    for name in QUEUES:
        queue = twins.queue(name)
        assert twins.do(queue.add_and_wait("work", 21)) == 42
        ids = twins.do(queue.add_many([NewJob("work", n) for n in range(250)]))
        assert len(set(ids)) == 250
        twins.do(queue.pause())
        assert twins.do(queue.is_paused())
    assert twins.do(twins.client().queues()) == list(QUEUES)


def test_a_child_of_a_job_in_another_slot_is_refused(url: str) -> None:
    with Queue("b", url) as queue, Queue("c", url) as other:
        parent = JobRef("b", queue.add("work"))
        with pytest.raises(ConfigurationError, match="a job and its parent must be in queues of one slot"):
            other.add("work", options=JobOptions(parent=parent))
        assert sum(other.counts().values()) == 0


@pytest.mark.parametrize("name", QUEUES)
def test_events_schedulers_scans_and_removal_stay_with_the_queue(url: str, name: str) -> None:
    with Queue(name, url) as queue, EventReader(name, url, position="0-0") as reader:
        ids = {queue.add("work") for _ in range(30)}
        assert {event.job_id for event in reader.read()} == ids
        found, page = set[str](), queue.scan_jobs()
        found |= {job.id for job in page.jobs}
        while page.cursor != "0":
            page = queue.scan_jobs(cursor=page.cursor)
            found |= {job.id for job in page.jobs}
        assert found == ids
        with Schedules(name, url) as schedulers:
            schedulers.upsert("hourly", Schedule(every=HOUR), JobTemplate("work"))
            assert [entry.name for entry in schedulers.list()] == ["hourly"]
        queue.obliterate()
        assert sum(queue.counts().values()) == 0


def test_a_flow_across_slots_runs_in_order_and_every_node_gets_its_inputs(
    twins: Clients, run_worker: RunWorker
) -> None:
    seen: dict[str, dict[str, Any]] = {}

    def work(ctx: Any) -> str:
        assert (ctx.flow_id, ctx.data) == ("f", {"n": ctx.node})
        seen[ctx.node] = dict(ctx.inputs)
        return f"{ctx.node}!"

    run_worker(QUEUES, {"work": work}, url=twins.url)
    flow = twins.do(twins.flows().submit(FLOW, flow_id="f"))
    outcome = twins.do(flow.wait(timeout=LONG))
    assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 5)
    assert outcome.results == {name: f"{name}!" for name in ("a", "m", "n", "end", "side")}
    assert seen == {"a": {}, "side": {}, "m": {"a": "a!"}, "n": {"a": "a!"}, "end": {"m": "m!", "n": "n!"}}


def test_a_flow_across_slots_goes_on_when_no_client_waits_for_it(
    url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(QUEUES, {"work": lambda ctx: 1}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FLOW, flow_id="f")
        eventually(lambda: flow.status().state is FlowState.COMPLETED, timeout=20)


def test_a_failure_reaches_other_slots_and_a_retry_repairs_it(url: str, run_worker: RunWorker) -> None:
    broken = {"m"}
    calls = Counter[str]()

    def work(ctx: Any) -> str:
        calls[ctx.node] += 1
        if ctx.node in broken:
            raise ValueError("boom")
        return str(ctx.node)

    run_worker(QUEUES, {"work": work}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FLOW, flow_id="f")
        with pytest.raises(FlowFailed, match="m: ValueError: boom") as failed:
            flow.result(timeout=LONG)
        assert [(one.name, one.reason) for one in failed.value.failed][1:] == [("end", "upstream failed: m")]
        broken.clear()
        flow.retry_failed()
        assert set(flow.result(timeout=LONG)) == {"a", "m", "n", "end", "side"}
    assert calls == {"a": 1, "n": 1, "side": 1, "m": 2, "end": 1}


def test_flows_across_slots_are_listed(url: str, run_worker: RunWorker) -> None:
    with FlowProducer(url) as flows:
        labelled = FlowSpec("n", [slot_node("a"), slot_node("m", "a", queue="c")], labels={"dag": "nightly"})
        first = flows.submit(labelled, flow_id="first")
        flows.submit(FlowSpec("n", [slot_node("x", queue="q")]), flow_id="second")
        assert [flow.id for flow in flows.list()] == ["second", "first"]
        assert [flow.id for flow in flows.list(state="running", label=("dag", "nightly"))] == ["first"]
        first.cancel("enough")
        assert [flow.id for flow in flows.list(state="cancelled")] == ["first"]
        assert [flow.id for flow in flows.list(state="running")] == ["second"]
        run_worker(QUEUES, {"work": lambda ctx: 1}, url=url)
        first.retry_failed()
        first.result(timeout=LONG)
        assert [flow.id for flow in flows.list(state="completed", label=("dag", "nightly"))] == ["first"]


def test_a_user_with_the_documented_rights_is_enough(
    primaries: Primaries, url: str, run_worker: RunWorker
) -> None:
    words = f"{rule()} {cluster_rule()}".split()
    for server in primaries.servers:
        server.client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *words)
        server.client.acl_log_reset()
    settings = ConnectionSettings(url, user="worker", password="secret")
    run_worker(QUEUES, {"work": lambda ctx: 1}, url=settings)
    with FlowProducer(settings) as flows, Queue("q", settings) as queue:
        assert len(flows.submit(FLOW, flow_id="f").result(timeout=LONG)) == 5
        assert [flow.id for flow in flows.list()] == ["f"]
        move = Move(primaries, "q")  # in the middle of a move, calls are sent with ASKING
        move.begin()
        move.carry(1000)
        assert queue.get_job("f~n").state is JobState.COMPLETED
        move.end()
        move.back()
    assert [entry for server in primaries.servers for entry in server.client.acl_log()] == []


def test_a_cancel_reaches_other_slots(url: str, run_worker: RunWorker) -> None:
    started = threading.Event()

    def work(ctx: Any) -> None:
        started.set()
        ctx.cancelled.wait(20)

    run_worker(QUEUES, {"work": work}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", [slot_node("a"), slot_node("m", "a", queue="c")]), flow_id="f")
        assert started.wait(20)
        flow.cancel("enough")
        assert flow.wait(timeout=LONG).status.state is FlowState.CANCELLED


def test_a_worker_survives_the_death_and_the_restart_of_a_primary(
    primaries: Primaries, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Any) -> int:
        threading.Event().wait(0.02)
        return int(ctx.data)

    lock = timedelta(seconds=1)
    run_worker(QUEUES, {"work": work}, url=url, concurrency=4, lease=lock)
    queues = {name: Queue(name, url) for name in QUEUES}
    for queue in queues.values():
        queue.add_many([NewJob("work", n) for n in range(100)])
    primaries.owner("c").kill()
    with pytest.raises(TransportError):
        queues["c"].add("work", 1)
    primaries.owner("c").start()
    eventually(lambda: _is_up(primaries), timeout=20)
    counts = [queue.counts for queue in queues.values()]
    eventually(lambda: all(count()[JobState.COMPLETED] >= 100 for count in counts), timeout=30)
    eventually(lambda: not any(count()[JobState.ACTIVE] for count in counts), timeout=30)
    for queue in queues.values():
        assert queue.add_and_wait("work", 5) == 5
        queue.close()


def _is_up(primaries: Primaries) -> bool:
    infos = [server.client.execute_command("CLUSTER INFO") for server in primaries.servers]
    return all(one["cluster_state"] == "ok" for one in infos)


async def test_chores_of_a_silent_primary_hold_up_no_others(primaries: Primaries, url: str) -> None:
    """They share trips with others to the same server only."""
    driver = GatheringDriver(ConnectionSettings.resolve(url))
    read = {name: ask(command("EXISTS", QueueKeys("glide", name).key("meta"), decode=int)) for name in QUEUES}
    await driver.run(ask(command("EXISTS", QueueKeys("glide", "b").key("id"), decode=int)))
    silent = primaries.owner("b").process
    assert silent is not None
    silent.send_signal(signal.SIGSTOP)
    try:
        tasks = {name: asyncio.create_task(driver.run(op)) for name, op in read.items()}
        async with asyncio.timeout(5):
            assert [await tasks[name] for name in QUEUES if name != "b"] == [0, 0]
        assert not tasks["b"].done()
    finally:
        silent.send_signal(signal.SIGCONT)
    assert await tasks["b"] == 0
    await driver.aclose()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_worker_goes_on_at_the_replica_of_a_primary_that_died(
    run_worker: RunWorker, eventually: Eventually, tmp_path: Path, how: signal.Signals
) -> None:
    """If it is frozen, calls have no reply and connections stay open."""
    with running_primaries(tmp_path) as primaries:  # its own: it has lost a node afterwards
        dying, settings = primaries.owner("c"), ConnectionSettings(primaries.url, socket_timeout=120)
        assert dying.process is not None
        with primaries.replica_of(dying, tmp_path) as replica, Queue("c", settings) as queue:
            ids = queue.add_many([NewJob("work", n) for n in range(100)])
            dying.client.set("{c}", "1")
            assert dying.client.wait(1, 5000) == 1
            options: dict[str, Any] = {"concurrency": 4, "lease": SECOND}
            running = run_worker(["b", "c"], {"work": slowly}, url=settings, **options)
            eventually(lambda: queue.counts()[JobState.COMPLETED] > 10, timeout=20)
            dying.process.send_signal(how)
            eventually(lambda: replica.client.role()[0] == "master", timeout=60)
            eventually(lambda: _is_done(queue, len(ids)), timeout=40)
            assert queue.add_and_wait("work", timeout=LONG) is None
            running.stop()


def slowly(ctx: Any) -> None:
    threading.Event().wait(0.02)


def _is_done(queue: Queue, count: int) -> bool:
    try:
        return queue.counts()[JobState.COMPLETED] >= count
    except TransportError:
        return False


def test_a_url_of_a_server_for_a_cluster_or_the_reverse_is_reported(
    primaries: Primaries, server: Any
) -> None:
    port = primaries.owner("b").port
    with (
        Queue("c", f"valkey://127.0.0.1:{port}") as queue,
        pytest.raises(ConfigurationError, match=r"valkey\+cluster://"),
    ):
        queue.add("work")
    alone = ConnectionSettings(server.url.replace("valkey://", "valkey+cluster://").removesuffix("/0"))
    with Queue("c", alone) as queue, pytest.raises(ConfigurationError, match="is not a cluster"):
        queue.add("work")


def test_the_leases_of_a_blocked_worker_are_renewed_on_every_primary(
    url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    async def block(ctx: Any) -> None:
        await asyncio.sleep(0.5)  # until all have begun
        if ctx.data:
            time.sleep(3)  # noqa: ASYNC251  the defect

    with ExitStack() as stack:
        queues = [stack.enter_context(Queue(name, url)) for name in QUEUES]
        run_worker(list(QUEUES), {"block": block}, url=url, lease=SECOND)
        ids = [queue.add("block", number == 0) for number, queue in enumerate(queues)]
        jobs = list(zip(queues, ids, strict=True))
        eventually(lambda: all(one.get_job(job_id).state is JobState.ACTIVE for one, job_id in jobs), 20)
        time.sleep(2.5)
        for one, job_id in jobs:
            job, now = one.get_job(job_id), one.now()
            assert job.state is JobState.COMPLETED or (job.lease_until or now) > now, "it was renewed"
        eventually(lambda: all(one.get_job(job_id).state is JobState.COMPLETED for one, job_id in jobs), 20)
        assert [one.get_job(job_id).lost_attempts for one, job_id in jobs] == [0, 0, 0]
