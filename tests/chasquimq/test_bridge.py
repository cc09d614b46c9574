"""Workers of the real ChasquiMQ 1.3 run the nodes of our flows."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec, JobState
from glidemq_orchestrate.errors import FlowFailed
from tests.chasquimq.conftest import StartPeer
from tests.conftest import Eventually
from tests.server.chasquimq.test_bridge import Sides, Start, bridge, command, sides

__all__ = ["bridge", "sides"]


def test_a_flow_runs_in_workers_of_the_package(sides: Sides, bridge: Start, start_peer: StartPeer) -> None:
    bridge()
    start_peer().work(store_results=True)
    nodes = [
        FlowNode("a", job="x", data={"returns": {"rows": 1}}),
        FlowNode("b", job="y", data={"returns": [2]}, after=["a"]),
        FlowNode("c", job="z", after=["a", "b"]),
    ]
    flow = sides.client.flows.submit(FlowSpec("f", nodes, queue="images"), flow_id="f")
    assert dict(flow.wait(timeout=60).results) == {"a": {"rows": 1}, "b": [2], "c": None}


def test_errors_of_the_package_are_those_of_the_node(
    sides: Sides, bridge: Start, start_peer: StartPeer
) -> None:
    bridge()
    peer = start_peer()
    peer.work(store_results=True)
    nodes = [
        FlowNode("fails", job="x", data={"fails": 9}, attempts=2),
        FlowNode("final", job="x", data={"unrecoverable": "not this one"}, attempts=9),
    ]
    flow = sides.client.flows.submit(FlowSpec("f", nodes, queue="images"), flow_id="f")
    with pytest.raises(FlowFailed) as raised:
        flow.result(timeout=60)
    reasons = {node.name: (node.reason, node.attempts) for node in raised.value.failed}
    assert "boom" in reasons["fails"][0]
    assert "not this one" in reasons["final"][0]
    assert sorted(job["fails"] for _, _, job, _ in peer.get_runs() if "fails" in job) == [9, 9]
    assert len(peer.get_runs()) == 3


def await_completed(sides: Sides, eventually: Eventually, count: int) -> None:
    eventually(lambda: sides.queue.counts()[JobState.COMPLETED] >= count, timeout=60)


def test_every_node_ends_once_though_bridge_and_workers_are_killed(
    sides: Sides, start_peer: StartPeer, url: str, eventually: Eventually
) -> None:
    nodes = [
        FlowNode(f"n{number}", job="x", data={"returns": number, "sleep": 0.05}, attempts=1)
        for number in range(60)
    ]
    last = FlowNode("last", job="x", after=[node.name for node in nodes], attempts=1)
    flow = sides.client.flows.submit(FlowSpec("f", [*nodes, last], queue="images"), flow_id="f")
    for _ in range(2):
        with command(url) as process:
            peer = start_peer()
            with suppress(BrokenPipeError, ValueError):
                peer.work(store_results=True, concurrency=4, claim_min_idle_ms=1_000, read_block_ms=100)
            await_completed(sides, eventually, sides.queue.counts()[JobState.COMPLETED] + 5)
            process.kill()
            peer.process.kill()
    with command(url) as process:
        start_peer().work(store_results=True, claim_min_idle_ms=1_000, read_block_ms=100)
        results = flow.wait(timeout=90).results
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert {name: value for name, value in results.items() if name != "last"} == {
        f"n{number}": number for number in range(60)
    }
    assert len(sides.added) == 61
