"""The supervisor as a process of its own: it wakes, takes over, and survives what happens to the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, FlowState
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.node import PlainNode
from tests.processes import spawned

if TYPE_CHECKING:
    from tests.conftest import Eventually

DIAMOND = FlowSpec(
    "nightly",
    [
        FlowNode(name, queue="etl", job="work", after=list(after))
        for name, after in zip("abcd", ["", "a", "a", "bc"], strict=True)
    ],
)
LOCK = QueueKeys("glide", "etl").supervisor()


class Running:
    """A supervisor in a thread."""

    def __init__(self, url: str, **kw: Any) -> None:
        self.supervisor = Supervisor(url, queues=kw.pop("queues", ["etl"]), **kw)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.supervisor.run()
        except BaseException as exc:  # noqa: BLE001  shown by stop()
            self.error = exc

    def stop(self) -> None:
        self.supervisor.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.error is None, self.error


@pytest.fixture
def run_supervisor(url: str) -> Iterator[Callable[..., Supervisor]]:
    started: list[Running] = []

    def start(**kw: Any) -> Supervisor:
        started.append(Running(url, interval=timedelta(milliseconds=200), **kw))
        assert started[-1].supervisor.ready.wait(60), started[-1].error
        return started[-1].supervisor

    yield start
    for running in started:
        running.supervisor.stop()
    for running in started:
        running.stop()


def node_worker(client: Any) -> PlainNode:
    return PlainNode(client, "etl", SystemClock().now_ms())


def test_a_fleet_of_node_workers_alone_ends_its_flows(
    flows: FlowProducer, redis_client: Any, run_supervisor: Callable[..., Supervisor]
) -> None:
    found = flows.submit(DIAMOND)
    node_worker(redis_client).run_all("~c")
    run_supervisor()
    outcome = found.wait(timeout=timedelta(seconds=20))
    assert outcome.status.state is FlowState.FAILED
    assert sorted(failed.name for failed in outcome.failed) == ["c", "d"]


def test_a_supervisor_that_was_idle_wakes_when_a_node_worker_ends_jobs(
    flows: FlowProducer, redis_client: Any, run_supervisor: Callable[..., Supervisor]
) -> None:
    run_supervisor()
    found = flows.submit(DIAMOND)
    node_worker(redis_client).run_all()
    assert found.wait(timeout=timedelta(seconds=20)).status.state is FlowState.COMPLETED


def test_a_second_supervisor_takes_over_from_one_that_was_killed(
    flows: FlowProducer, redis_client: Any, run_supervisor: Callable[..., Supervisor], eventually: Eventually
) -> None:
    redis_client.set(LOCK, "somebody who is dead", px=1500)
    second = run_supervisor()
    found = flows.submit(DIAMOND)
    node_worker(redis_client).run_all()
    assert found.wait(timeout=timedelta(seconds=20)).status.state is FlowState.COMPLETED
    eventually(lambda: redis_client.get(LOCK) == second.id)


def test_it_gives_the_lead_up_at_its_end(redis_client: Any, url: str) -> None:
    running = Running(url)
    assert running.supervisor.ready.wait(60)
    assert redis_client.get(LOCK) == running.supervisor.id
    running.stop()
    assert redis_client.exists(LOCK) == 0


def test_it_survives_a_server_that_lost_its_functions(
    flows: FlowProducer, redis_client: Any, run_supervisor: Callable[..., Supervisor]
) -> None:
    run_supervisor()
    redis_client.function_flush()
    found = flows.submit(DIAMOND)
    node_worker(redis_client).run_all()
    assert found.wait(timeout=timedelta(seconds=20)).status.state is FlowState.COMPLETED


def test_it_wakes_delayed_jobs_and_takes_back_those_of_dead_workers(
    flows: FlowProducer, redis_client: Any, run_supervisor: Callable[..., Supervisor], eventually: Eventually
) -> None:
    flows.submit(DIAMOND)
    dead = node_worker(redis_client)
    dead.at -= 5_000
    assert dead.begin_next()
    run_supervisor(lease=timedelta(seconds=1))
    living = PlainNode(redis_client, "etl", SystemClock().now_ms(), "node-2")
    eventually(living.run_all, timeout=20)


def test_values_that_make_no_sense_are_refused() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("queues", {"queues": []}),
        ("queues", {"queues": "etl"}),
        ("queue name", {"queues": ["a:b"]}),
        ("interval", {"queues": ["etl"], "interval": timedelta(seconds=6)}),
        ("interval", {"queues": ["etl"], "interval": timedelta(0)}),
        ("lease", {"queues": ["etl"], "lease": timedelta(milliseconds=1)}),
    ]
    for expected, values in cases:
        with pytest.raises(ConfigurationError, match=expected):
            Supervisor("valkey://127.0.0.1:1", **values)


def test_a_server_that_is_not_there_is_reported_at_the_start() -> None:
    with pytest.raises(ConnectionFailed):
        Supervisor("valkey://127.0.0.1:1", queues=["etl"]).run()


def test_the_command_ends_flows_and_stops_at_sigterm(
    flows: FlowProducer, redis_client: Any, url: str, eventually: Eventually
) -> None:
    command = [sys.executable, "-m", "glidemq_orchestrate", "supervise", "--queue", "etl"]
    environment = {**os.environ, "GLIDEMQ_URL": url}
    with spawned(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = flows.submit(DIAMOND)
            node_worker(redis_client).run_all()
            eventually(lambda: found.status().state is FlowState.COMPLETED, timeout=60)
        finally:
            process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "supervises queues etl" in log
