"""Sensors in a real daemon: every event once, also when the daemon is killed between two steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from glidemq_orchestrate import EmbeddedServer, FlowNode, FlowProducer, FlowSpec, Queue
from tests.system.real_dagster import DagsterStack

pytestmark = [pytest.mark.system, pytest.mark.long]


@contextmanager
def running(dagster: DagsterStack, name: str) -> Iterator[None]:
    """A sensor that is on, and has stored where it begins."""
    dagster.start_sensor(name)
    dagster.wait_for_tick(name, lambda tick: bool(tick["cursor"]))
    yield
    dagster.stop_sensor(name)


def wait_for(predicate: Callable[[], object], timeout: float = 180) -> None:
    until = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.2)


def test_each_event_has_one_run_also_when_the_daemon_is_killed(
    dagster: DagsterStack, dagster_server: EmbeddedServer
) -> None:
    def runs() -> Counter[str]:
        found = dagster.instance.get_runs()
        return Counter(
            run.tags["dagster-glidemq/event"]
            for run in found
            if run.tags.get("dagster-glidemq/watched_queue") == "events"
        )

    with Queue("events", dagster_server.url) as queue, running(dagster, "events_seen"):
        for number in range(3):
            queue.add_and_wait("echo", number)
        wait_for(runs)
        dagster.kill("daemon")  # it may have launched some of them, and has not stored the cursor
        for number in range(3):
            queue.add_and_wait("echo", number)
        dagster.start_again("daemon")
        wait_for(lambda: len(runs()) == 6)
        dagster.wait_for_tick("events_seen", lambda tick: tick["skipReason"] == "nothing new on queue events")
    assert set(runs().values()) == {1}


def test_each_flow_that_ends_is_a_partition_with_a_run(
    dagster: DagsterStack, dagster_flows: FlowProducer
) -> None:
    spec = FlowSpec("watched", nodes=[FlowNode("only", queue="watched", job="echo")])
    with running(dagster, "flows_taken"):
        for flow_id in ("one", "two"):
            dagster_flows.submit(spec, flow_id=flow_id).wait()
        wait_for(lambda: len(dagster.materializations("taken")) == 2)
    assert {one.partition for one in dagster.materializations("taken")} == {"one", "two"}
    assert set(dagster.instance.get_dynamic_partitions("flows")) == {"one", "two"}


def test_a_queue_that_fills_up_has_one_run(dagster: DagsterStack, dagster_server: EmbeddedServer) -> None:
    def runs() -> list[str]:
        return dagster.runs({"dagster-glidemq/watched_queue": "deep"})

    with Queue("deep", dagster_server.url) as queue, running(dagster, "queue_deep"):
        for _ in range(4):
            queue.add("nobody")
        wait_for(runs)
        told = "queue deep has 4 jobs that are waiting or prioritized"
        dagster.wait_for_tick("queue_deep", lambda tick: tick["skipReason"] == told)
    assert len(runs()) == 1
    assert dagster.wait_for_run(runs()[0]) == "SUCCESS"
