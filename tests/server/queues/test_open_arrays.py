"""Elements of arrays are no jobs, and are counted beside them."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    Queue,
)
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients.queue import ElementCounts
from glidemq_orchestrate.errors import QueueInUse
from glidemq_orchestrate.queues import open_arrays

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

SPEC = FlowSpec(
    "f",
    [
        ArrayNode("a", over=range(10)),
        ArrayNode("limited", over=range(100), max_running=3),
        ArrayNode("later", over=range(1_000), delay=timedelta(hours=1)),
        FlowNode("first", delay=timedelta(hours=1)),
        ArrayNode("blocked", over=range(10_000), after=["first"]),
    ],
    queue="etl",
)


def test_elements_that_wait_are_counted_beside_the_jobs(flows: FlowProducer, queue: Queue) -> None:
    assert queue.counts().elements == ElementCounts()
    flows.submit(SPEC, flow_id="x")
    counts = queue.counts(indexed_only=True)
    assert counts.elements == ElementCounts(waiting=1_110, ready=13, arrays=3)
    assert counts == {**dict.fromkeys(counts, 0), JobState.DELAYED: 1}
    assert counts.with_elements() == {**counts, JobState.WAITING: 1_110}


def test_of_many_arrays_only_some_are_counted(
    flows: FlowProducer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_arrays, "MAX_ARRAYS", 2)
    nodes = [ArrayNode(f"a{number}", over=range(5)) for number in range(3)]
    flows.submit(FlowSpec("f", nodes[:2], queue="etl"), flow_id="x")
    assert queue.counts().elements == ElementCounts(waiting=10, ready=10, arrays=2)
    flows.submit(FlowSpec("f", nodes[2:], queue="etl"), flow_id="y")
    assert queue.counts().elements == ElementCounts(waiting=10, ready=10, is_partial=True, arrays=2)


def test_elements_that_run_are_counted_and_keep_the_queue(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker, url: str, eventually: Eventually
) -> None:
    go = threading.Event()
    flow = flows.submit(FlowSpec("f", [ArrayNode("a", over=range(10))], queue="etl"), flow_id="x")
    run_worker(["etl"], {"a": lambda _: go.wait(30)}, concurrency=2)
    running = ElementCounts(waiting=8, ready=8, running=2, arrays=1)
    eventually(lambda: queue.counts().elements == running, 20)
    assert queue.counts().with_elements()[JobState.ACTIVE] == 2
    with pytest.raises(QueueInUse):
        queue.obliterate()
    shown = CliRunner().invoke(app, ["queue", "show", "etl"], env={"GLIDEMQ_URL": url}).output
    assert "8 waiting, 8 of them ready, 2 running" in shown
    listed = CliRunner().invoke(app, ["queue", "list", "--json"], env={"GLIDEMQ_URL": url}).output
    assert json.loads(listed)[0]["elements"] == {
        "waiting": 8, "ready": 8, "running": 2, "is_partial": False, "arrays": 1,
    }  # fmt: skip
    go.set()
    flow.wait(timeout=30)
    assert queue.counts().elements == ElementCounts()


def test_an_array_that_another_client_removed_has_no_elements(
    flows: FlowProducer, queue: Queue, redis_client: Any
) -> None:
    flows.submit(FlowSpec("f", [ArrayNode("a", over=range(10))], queue="etl"), flow_id="x")
    redis_client.delete("glide:{etl}:job:x~a")
    assert queue.counts().elements == ElementCounts()


def test_a_slice_is_an_active_job_that_can_be_taken_back(  # noqa: PLR0917  fixtures
    flows: FlowProducer,
    queue: Queue,
    run_worker: RunWorker,
    url: str,
    redis_client: Any,
    eventually: Eventually,
) -> None:
    go, ran = threading.Event(), list[int]()

    def element(ctx: Context) -> None:
        ran.append(ctx.data)
        if len(ran) == 1:
            go.wait(30)

    flow = flows.submit(FlowSpec("f", [ArrayNode("a", over=range(3))], queue="etl"), flow_id="x")
    worker = run_worker(["etl"], {"a": element}, concurrency=1)
    eventually(lambda: ran == [0], 20)
    (job,) = queue.get_jobs("active")
    assert (job.id, job.name, job.worker) == ("x~a{1}", "a", worker.worker.id)
    shown = CliRunner().invoke(app, ["queue", "show", "etl"], env={"GLIDEMQ_URL": url}).output
    assert ": 1 job" in shown
    assert queue.take_back(job.id) == worker.worker.id
    assert queue.get_jobs("active") == []
    go.set()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert sorted(ran) == [0, 0, 1, 2]
    assert "[0] was taken back from worker" in queue.logs("x~a").lines[0]
    assert redis_client.keys("*{1}*") == []
