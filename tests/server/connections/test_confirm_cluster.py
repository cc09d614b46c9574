"""Confirmed writes in a cluster: each primary that was written to confirms its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from glidemq_orchestrate import (
    ConnectionSettings,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    NewJob,
    Queue,
)
from glidemq_orchestrate.errors import JobNotFound, NotConfirmed
from tests.conftest import Eventually, RunWorker
from tests.server.connections.test_sentinel import unless_down
from tests.server.connections.topologies import Primaries, Server, cut_off, running_primaries

QUEUES = ("b", "c", "q")  # one for each primary
ACROSS = FlowSpec(
    "n",
    [
        FlowNode("a", queue="b", job="work"),
        FlowNode("m", queue="c", job="work", after=["a"]),
        FlowNode("n", queue="q", job="work", after=["a"]),
        FlowNode("end", queue="b", job="work", after=["m", "n"]),
    ],
)


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primaries]:
    with running_primaries(tmp_path_factory.mktemp("primaries")) as running:
        yield running


@pytest.fixture
def replica(primaries: Primaries, tmp_path: Path) -> Iterator[Server]:
    """Of the primary of queue ``b``."""
    with primaries.replica_of(primaries.owner("b"), tmp_path) as running:
        yield running


def named(job_id: str) -> JobOptions:
    return JobOptions(job_id=job_id)


def test_a_flow_across_slots_is_confirmed_by_every_disk(primaries: Primaries, run_worker: RunWorker) -> None:
    disk = ConnectionSettings(primaries.url, confirm="disk", confirm_timeout=20.0)
    run_worker(QUEUES, {"work": lambda ctx: len(ctx.inputs)}, url=disk)
    with FlowProducer(disk) as flows:
        flow = flows.submit(ACROSS, flow_id="disks")
        assert flow.result(timeout=timedelta(seconds=30)) == {"a": 0, "m": 1, "n": 1, "end": 2}
        with Queue("c", disk) as queue:
            assert None not in queue.add_many([NewJob("work", n) for n in range(300)])


def test_only_what_its_own_replica_confirmed_survives_the_primary(
    primaries: Primaries, replica: Server, eventually: Eventually
) -> None:
    primary = primaries.owner("b")
    sure = ConnectionSettings(primaries.url, confirm="replicas:1", confirm_timeout=0.3)
    chain = FlowSpec("n", [FlowNode(f"n{n}", queue="b", job="work") for n in range(100)])
    with (
        Queue("b", sure) as queue,
        Queue("c", sure) as other,
        Queue("b", primaries.url) as plain,
        FlowProducer(sure) as flows,
    ):
        with pytest.raises(NotConfirmed, match=f":{primaries.owner('c').port}: written, but only 0 of 1"):
            other.add("work", options=named("a"))
        with pytest.raises(NotConfirmed):
            flows.submit(ACROSS, flow_id="across")
        assert flows.get("across").status().state is FlowState.RUNNING
        queue.add("work", options=named("sure"))
        home = next(f"flow{n}" for n in range(1000) if primaries.owner(f"flow{n}") is primary)
        flows.submit(chain, flow_id=home)
        with cut_off(replica, primary):
            plain.add("work", options=named("plain"))
            for _ in range(2):
                with pytest.raises(NotConfirmed):
                    queue.add_many([NewJob("work", options=named("late"))])
            primary.kill()
        eventually(lambda: replica.client.role()[0] == "master", timeout=30)
        eventually(lambda: unless_down(lambda: plain.get_job("sure")), timeout=30)
        for lost in ("plain", "late"):
            with pytest.raises(JobNotFound):
                plain.get_job(lost)
        assert flows.get(home).status().total == len(chain.nodes)
        assert {node.state for node in flows.get(home).nodes()} == {"waiting"}
