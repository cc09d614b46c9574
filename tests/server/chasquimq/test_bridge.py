"""Workers of ChasquiMQ run the nodes of flows, each once, whoever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from glidemq_orchestrate import Client, EmbeddedServer, FlowNode, FlowSpec, JobState, Queue
from glidemq_orchestrate.chasquimq import AsyncChasquiQueue, ChasquiBridge, ChasquiQueue, ChasquiWorker
from glidemq_orchestrate.chasquimq import bridge as bridge_module
from glidemq_orchestrate.chasquimq import remote as remote_module
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.remote import Remotes
from glidemq_orchestrate.errors import FlowFailed, HandlerNotFound
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.jobs.attempt import Attempt
from tests.conftest import Eventually
from tests.processes import spawned
from tests.profile import sampled
from tests.server.chasquimq import crashing_bridge as crashing
from tests.server.chasquimq import handlers as module
from tests.server.chasquimq.conftest import Raw, Serve

ROOT = Path(__file__).parents[3]
Start = Callable[..., ChasquiBridge]


@dataclass
class Sides:
    """Both sides of a bridge: our queue and that of ChasquiMQ."""

    client: Client
    images: ChasquiQueue
    raw: Raw

    @property
    def queue(self) -> Queue:
        return self.client.queue("images")

    @property
    def added(self) -> list[str]:
        """What was ever handed over."""
        keys = [key.partition("handed-over:") for key in sorted(self.raw.keys())]
        return [job_id for _, mark, job_id in keys if mark]


@pytest.fixture
def bridge(url: str) -> Iterator[Start]:
    """Starts bridges between the queues ``images`` of one server."""
    with ExitStack() as stack:

        def start(**options: Any) -> ChasquiBridge:
            made = ChasquiBridge("images", url, lease=options.pop("lease", 1), **options)
            return stack.enter_context(made.running())

        yield start


@pytest.fixture
def sides(url: str, images: ChasquiQueue, raw: Raw) -> Iterator[Sides]:
    with Client(url) as client:
        yield Sides(client, images, raw)


def command(url: str) -> AbstractContextManager[subprocess.Popen[Any]]:
    """A bridge as a process."""
    words = ["bridge", "chasquimq", "--queue", "images", "--url", url, "--lease", "1"]
    return spawned([sys.executable, "-m", "glidemq_orchestrate", *words], cwd=ROOT)


def echo(ctx: Any) -> Any:
    return {"name": ctx.name, "data": ctx.data}


def test_nodes_of_a_flow_run_there_with_the_results_of_their_dependencies(
    sides: Sides, bridge: Start, serve: Serve
) -> None:
    serve(echo)
    bridge()
    nodes = [
        FlowNode("a", job="echo", data={"n": 1}),
        FlowNode("b", job="echo", data=[1]),
        FlowNode("c", job="echo", after=["a", "b"], data={"n": 3}),
    ]
    flow = sides.client.flows.submit(FlowSpec("f", nodes, queue="images"), flow_id="f")
    results = flow.wait(timeout=30).results
    assert results["a"] == {"name": "echo", "data": {"n": 1}}
    assert results["b"] == {"name": "echo", "data": [1]}
    assert results["c"]["data"] == {"n": 3, "inputs": {"a": results["a"], "b": results["b"]}}
    assert len(sides.added) == 3
    client = sides.raw.client
    assert all(client.ttl(key) > 0 for key in client.keys("*handed-over*"))


def test_a_queue_with_shards_is_handed_over_whole(sides: Sides, bridge: Start, serve: Serve) -> None:
    sides.client.queue("images", shards=3).shards()
    serve(echo)
    bridge()
    ids = [sides.queue.add("echo", number) for number in range(6)]
    assert [sides.queue.add_and_wait("echo", number)["data"] for number in range(3)] == [0, 1, 2]
    wait_until = time.monotonic() + 30
    while any(state is not JobState.COMPLETED for state in sides.queue.states(ids)):
        assert time.monotonic() < wait_until
        time.sleep(0.05)


def test_the_job_decides_on_attempts_and_time(sides: Sides, bridge: Start, serve: Serve) -> None:
    runs: list[int] = []

    def fails(_: Any) -> None:
        runs.append(1)
        raise ValueError("boom")

    serve(fails)
    bridge()
    flow = sides.client.flows.submit(
        FlowSpec("f", [FlowNode("a", job="fails", attempts=3)], queue="images"), flow_id="f"
    )
    with pytest.raises(FlowFailed, match="boom"):
        flow.result(timeout=30)
    assert len(runs) == len(sides.added) == 3
    flow.retry_failed()
    with pytest.raises(FlowFailed, match="boom"):
        flow.result(timeout=30)
    assert len(runs) == len(sides.added) == 6


@pytest.mark.long
def test_a_retried_job_is_handed_over_anew(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually
) -> None:
    runs: list[int] = []

    def once(_: Any) -> str:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("boom")
        return "fine"

    serve(once)
    bridge()
    queue = sides.queue
    job_id = queue.add("once")
    eventually(lambda: queue.get_job(job_id).state is JobState.FAILED)
    queue.retry(job_id)
    eventually(lambda: queue.get_job(job_id).result == "fine")
    assert len(sides.added) == 2


def test_a_job_of_any_name_may_be_submitted(sides: Sides, bridge: Start) -> None:
    bridge()
    spec = FlowSpec("f", [FlowNode("a", job="unheard")], queue="images")
    try:
        sides.client.flows.submit(spec, flow_id="f", require_workers=True)
    except HandlerNotFound:
        pytest.fail("the bridge runs jobs of any name")
    (worker,) = sides.queue.workers()
    assert worker.handlers is None


def test_prometheus_reads_what_it_hands_over(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually
) -> None:
    serve(echo)
    url = bridge(metrics_port=0).metrics_url
    assert url is not None
    sides.queue.add_and_wait("echo", timeout=20)
    ended = 'glidemq_worker_jobs_ended_total{handler="echo",outcome="completed",queue="images"} 1.0'
    eventually(lambda: ended in httpx.get(url).text, 20)
    assert "glidemq_worker_places 100.0" in httpx.get(url).text


def test_a_cancelled_job_is_withdrawn_if_nobody_has_it(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually
) -> None:
    bridge()
    queue, images = sides.queue, sides.images
    waiting = queue.add("echo")
    eventually(lambda: images.counts().waiting == 1)
    queue.revoke(waiting)
    eventually(lambda: images.counts().waiting == 0)
    eventually(lambda: queue.get_job(waiting).state is JobState.FAILED)
    began, goes_on = threading.Event(), threading.Event()

    def slow(_: Any) -> None:
        began.set()
        goes_on.wait(20)

    serve(slow)
    running = queue.add("slow")
    assert began.wait(20)
    queue.revoke(running)
    eventually(lambda: queue.get_job(running).state is JobState.FAILED)
    assert images.counts().active == 1
    goes_on.set()
    eventually(lambda: images.counts().active == 0)


def test_a_time_limit_ends_the_wait(sides: Sides, bridge: Start, eventually: Eventually) -> None:
    bridge()
    queue, images = sides.queue, sides.images
    job_id = queue.add("echo", timeout=0.3)
    eventually(lambda: queue.get_job(job_id).state is JobState.FAILED)
    assert "still running after" in (queue.get_job(job_id).failed_reason or "")
    eventually(lambda: images.counts().waiting == 0)


def test_a_stopped_bridge_gives_its_jobs_back_and_another_continues(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually
) -> None:
    first = bridge(shutdown_timeout=0.1, lease=30)
    queue, images = sides.queue, sides.images
    ids = [queue.add("echo", number, attempts=1) for number in range(20)]
    eventually(lambda: images.counts().waiting == 20)
    first.stop()
    eventually(lambda: queue.counts()[JobState.ACTIVE] == 0)
    before = sides.added
    bridge()
    serve(echo)
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 20)
    assert [queue.get_job(job_id).result["data"] for job_id in ids] == list(range(20))
    assert sides.added == before
    assert len(before) == 20


class SlowBridge(ChasquiBridge):
    """Stops for a while where it is told to, so that a stop or a time limit meets it there."""

    where = ""

    async def _pause(self, where: str) -> None:
        if where == self.where:
            await asyncio.sleep(30)

    async def _note(self, attempt: Attempt, remote_id: str, **more: bool) -> None:
        await super()._note(attempt, remote_id, **more)
        if not more:
            await self._pause("noted")

    async def _add(self, *words: Any) -> Any:
        remote = await super()._add(*words)
        await self._pause("added")
        return remote


@pytest.mark.parametrize("where", ["noted", "added"])
def test_a_bridge_that_is_stopped_while_it_adds_goes_on_with_the_same_job(
    sides: Sides, url: str, serve: Serve, eventually: Eventually, where: str
) -> None:
    job_id = sides.queue.add("echo", 1, attempts=1)
    for _ in range(2):  # the second one continues, and is stopped there, too
        slow = SlowBridge("images", url, lease=30, shutdown_timeout=0)
        slow.where = where
        with slow.running():
            eventually(lambda: sides.queue.get_job(job_id).state is JobState.ACTIVE)
            time.sleep(0.5)
    assert sides.queue.get_job(job_id).progress["chasquimq"]["given_back"] is True
    with ChasquiBridge("images", url).running():
        serve(echo)
        eventually(lambda: sides.queue.get_job(job_id).state is JobState.COMPLETED)
    assert len(sides.added) == 1


def test_a_time_limit_while_it_adds_withdraws_the_job(sides: Sides, url: str, eventually: Eventually) -> None:
    slow = SlowBridge("images", url, lease=30, shutdown_timeout=0)
    slow.where = "added"
    job_id = sides.queue.add("echo", 1, attempts=1, timeout=0.5)
    with slow.running():
        eventually(lambda: sides.queue.get_job(job_id).state is JobState.FAILED)
        eventually(lambda: sides.images.counts().waiting == 0)
    assert len(sides.added) == 1


def test_a_killed_bridge_adds_nothing_twice(
    sides: Sides, url: str, serve: Serve, eventually: Eventually
) -> None:
    queue, images = sides.queue, sides.images
    ids = [queue.add("work", {"sleep": 0.1, "n": number}, attempts=1) for number in range(20)]
    with command(url) as process:  # killed while nothing runs yet
        eventually(lambda: images.counts().waiting == 20, timeout=60)
        process.kill()
    with command(url) as process, ExitStack() as stack:  # killed while jobs run and end
        eventually(lambda: all("was lost" in str(queue.logs(job_id)) for job_id in ids), timeout=60)
        worker = stack.enter_context(spawned([sys.executable, "-m", module.__name__, url]))
        eventually(lambda: queue.counts()[JobState.COMPLETED] >= 3, timeout=60)
        process.kill()
        worker.kill()
    with command(url) as process:
        serve(handlers=module.handlers)
        eventually(lambda: queue.counts()[JobState.COMPLETED] == 20, timeout=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert len(sides.added) == 20
    assert all(queue.get_job(job_id).result for job_id in ids)
    assert queue.counts()[JobState.ACTIVE] == 0
    completed = [one.job_id for one in images.events("0-0", idle_timeout=0.1) if one.kind == "completed"]
    assert len(completed) == len(set(completed)) == 20


@pytest.mark.long
@pytest.mark.parametrize("point", sampled(["fetched", "noted", "added", "ended"]))
def test_a_bridge_that_dies_at_any_point_adds_once(
    sides: Sides, url: str, serve: Serve, eventually: Eventually, point: str
) -> None:
    job_id = sides.queue.add("echo", 1, attempts=1)
    if point == "ended":
        serve(echo)
    with spawned([sys.executable, "-m", crashing.__name__, url, point], cwd=ROOT) as process:
        assert process.wait(60) == -signal.SIGKILL
    assert sides.images.counts().waiting == (point == "added")
    with command(url):
        serve(echo)
        eventually(lambda: sides.queue.get_job(job_id).state is JobState.COMPLETED, timeout=60)
    assert sides.queue.get_job(job_id).result == {"name": "echo", "data": 1}
    assert len(sides.added) == 1
    completed = [one for one in sides.images.events("0-0", idle_timeout=0.1) if one.kind == "completed"]
    assert len(completed) == 1


def test_ends_are_found_without_their_events(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually
) -> None:
    sides.raw.client.set(sides.raw.key("events"), "no stream: no event can be written")

    def fails(_: Any) -> None:
        raise ValueError("boom")

    serve(echo, fails)
    bridge()
    queue = sides.queue
    fine, broken = queue.add("echo", 1), queue.add("fails")
    eventually(lambda: queue.get_job(fine).result == {"name": "echo", "data": 1})
    eventually(lambda: queue.get_job(broken).state is JobState.FAILED)
    assert "retries_exhausted" in (queue.get_job(broken).failed_reason or "")


@pytest.mark.long
def test_the_error_of_a_job_is_known_although_its_event_is_read_late(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "EVENT_SECONDS", 0.2)
    monkeypatch.setattr(bridge_module, "CHECK_SECONDS", 0.1)
    read, goes_on = Remotes.read_events, threading.Event()

    async def read_later(remotes: Remotes) -> None:
        await asyncio.to_thread(goes_on.wait, 20)
        await read(remotes)

    monkeypatch.setattr(Remotes, "read_events", read_later)

    def fails(_: Any) -> None:
        raise ValueError("boom")

    serve(fails)
    bridge()
    job_id = sides.queue.add("fails")
    eventually(lambda: sides.images.counts().dead == 1)
    time.sleep(1)
    goes_on.set()
    eventually(lambda: sides.queue.get_job(job_id).state is JobState.FAILED)
    assert sides.queue.get_job(job_id).failed_reason == "RemoteFailed: ValueError: boom"


class Ahead(SystemClock):
    """Two days ahead of the server."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * 86_400_000


def test_a_bridge_whose_clock_is_ahead_learns_of_ends_at_once(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually
) -> None:
    def fails(_: Any) -> None:
        raise ValueError("boom")

    serve(fails)
    bridge(clock=Ahead())
    job_id = sides.queue.add("fails")
    eventually(lambda: sides.queue.get_job(job_id).state is JobState.FAILED)
    assert sides.queue.get_job(job_id).failed_reason == "RemoteFailed: ValueError: boom"


def test_many_ends_are_read_in_a_few_trips(sides: Sides, url: str) -> None:
    trips: list[Any] = []

    async def look_up() -> list[Any]:
        async with AsyncChasquiQueue("images", url) as images:

            async def run(op: Any) -> Any:
                trips.append(op)
                return await images._run(op)

            remotes = Remotes(run, ChasquiKeys("images"), "0-0", time.monotonic)
            found = [remotes.expect(f"gmo:images:{number}", "1-1") for number in range(100)]
            for remote in found:
                remote.kind = "completed"
            await remotes.check_all()
            return [remote.ended.result() for remote in found]

    for number in range(100):
        sides.raw.client.set(sides.raw.key(f"result:gmo:images:{number}"), bytes([number]))
    assert asyncio.run(look_up()) == list(range(100))
    assert len(trips) == 2


@pytest.mark.long
def test_a_job_that_vanishes_fails_and_runs_again(
    sides: Sides, bridge: Start, serve: Serve, eventually: Eventually
) -> None:
    bridge()
    lost, repeated = sides.queue.add("echo"), sides.queue.add("echo", 1, attempts=2)
    eventually(lambda: sides.images.counts().waiting == 2)
    sides.raw.client.delete(sides.raw.key("stream"))
    eventually(lambda: sides.queue.get_job(lost).state is JobState.FAILED)
    assert "RemoteVanished: job gmo:images:" in (sides.queue.get_job(lost).failed_reason or "")
    serve(echo)
    eventually(lambda: sides.queue.get_job(repeated).result == {"name": "echo", "data": 1})


def test_the_bridge_knows_for_longer_what_has_not_ended(
    sides: Sides, bridge: Start, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "MARKS_SECONDS", 0.1)
    bridge()
    sides.queue.add("echo")
    eventually(lambda: sides.added)
    mark = sides.raw.key(f"gmo:handed-over:{sides.added[0]}")
    sides.raw.client.expire(mark, 100)
    eventually(lambda: sides.raw.client.ttl(mark) > 86_400)


def test_an_outage_of_the_other_server_costs_no_attempt(
    sides: Sides, tmp_path: Path, url: str, eventually: Eventually
) -> None:
    with EmbeddedServer(data_dir=tmp_path) as other:
        port = int(other.url.rpartition(":")[2])
        made = ChasquiBridge("images", url, chasquimq_url=other.url, lease=1)
        with made.running():
            queue = sides.queue
            eventually(queue.workers)
            other.stop()
            job_id = queue.add("echo", 1, attempts=1)
            time.sleep(1)
            assert queue.get_job(job_id).state is not JobState.FAILED
            with (
                EmbeddedServer(data_dir=tmp_path, port=port) as again,
                ChasquiQueue("images", again.url) as there,
            ):
                eventually(lambda: there.counts().waiting == 1, timeout=30)
                queue.revoke(job_id)
                eventually(lambda: there.counts().waiting == 0)


def test_a_flow_ends_though_the_server_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    def work(ctx: Any) -> Any:
        time.sleep(0.02)
        return ctx.data

    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(data_dir=tmp_path))
        url = server.url
        worker = ChasquiWorker("images", url, lease=1, concurrency=4)
        worker.handler(work)
        stack.enter_context(worker.running())
        stack.enter_context(ChasquiBridge("images", url, lease=1).running())
        client = stack.enter_context(Client(url))
        nodes = [FlowNode(f"n{number}", job="work", data=number, attempts=1) for number in range(60)]
        last = FlowNode("last", job="work", after=[node.name for node in nodes], attempts=1)
        flow = client.flows.submit(FlowSpec("f", [*nodes, last], queue="images"), flow_id="f")
        queue = client.queue("images")
        eventually(lambda: queue.counts()[JobState.COMPLETED] >= 10)
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        stack.enter_context(EmbeddedServer(data_dir=tmp_path, port=int(url.rpartition(":")[2])))
        results = flow.wait(timeout=60).results
        assert {name: value for name, value in results.items() if name != "last"} == {
            f"n{number}": number for number in range(60)
        }
        with redis.Redis(port=int(url.rpartition(":")[2])) as raw:
            assert len(raw.keys("*handed-over*")) == 61


def test_queues_of_other_names_and_large_data(sides: Sides, url: str, eventually: Eventually) -> None:
    with ChasquiBridge("etl", url, chasquimq_queue="images", lease=1).running():
        queue = sides.client.queue("etl")
        queue.add("echo", 1)
        eventually(lambda: sides.images.counts().waiting == 1)
        large = queue.add("echo", "x" * 1_048_560, attempts=1)
        eventually(lambda: queue.get_job(large).state is JobState.FAILED)
        assert "1,048,576" in (queue.get_job(large).failed_reason or "")
