"""Who runs a job, until when its lease holds, and jobs that do not run again after their worker was lost."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    AsyncQueue,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    JobState,
    Queue,
)

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker


def test_a_job_shows_its_worker_and_its_lease_while_it_runs(
    url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    go = threading.Event()

    def work(_ctx: Context) -> None:
        go.wait(30)

    with Queue("etl", url) as queue:
        job_id = queue.add("work", options=JobOptions(lease=timedelta(seconds=5)))
        before = queue.get_job(job_id)
        assert (before.worker, before.lease_until) == (None, None)
        run_worker(["etl"], {"work": work}, lease=timedelta(seconds=60))
        eventually(lambda: queue.get_job(job_id).state is JobState.ACTIVE, 10)
        job, now = queue.get_job(job_id), queue.now()
        (worker,) = queue.workers()
        assert job.worker == worker.id
        lease = job.lease_until or now
        assert now < lease <= now + timedelta(seconds=6)
        eventually(lambda: (queue.get_job(job_id).lease_until or now) > lease, 10)
        other = queue.add("work")
        eventually(lambda: queue.get_job(other).state is JobState.ACTIVE, 10)
        until = queue.get_job(other).lease_until or now
        assert until > queue.now() + timedelta(seconds=30), "as its worker says, in its id"
        go.set()
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 10)
        ended = queue.get_job(job_id)
        assert (ended.worker, ended.lease_until) == (worker.id, None)


def test_a_node_shows_its_worker(url: str, run_worker: RunWorker) -> None:
    with FlowProducer(url) as flows, Queue("etl", url) as queue:
        spec = FlowSpec(
            "nightly",
            [FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl", job="work", after=["a"])],
        )
        flow = flows.submit(spec)
        assert [node.worker for node in flow.nodes()] == [None, None]
        run_worker(["etl"], {"work": lambda _: None})
        flow.wait(timeout=timedelta(seconds=20))
        (worker,) = queue.workers()
        assert [node.worker for node in flow.nodes()] == [worker.id, worker.id]


async def test_the_servers_time_is_told(url: str) -> None:
    with Queue("etl", url) as queue:
        async with AsyncQueue("etl", url) as twin:
            assert abs(queue.now() - await twin.now()) < timedelta(seconds=5)
        assert abs(queue.now() - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_job_of_a_handler_that_runs_once_fails_after_its_worker_was_lost(
    url: str, run_worker: RunWorker, redis_client: Any, eventually: Eventually, kind: str
) -> None:
    handlers, ran = Handlers(), []

    def plain(ctx: Context) -> None:
        ran.append(ctx.job_id)

    async def on_loop(ctx: Context) -> None:
        ran.append(ctx.job_id)

    handlers.handler("once", at_most_once=True)(plain if kind == "plain" else on_loop)
    handlers.handler("again")(plain)
    with Queue("etl", url) as queue:
        lost, other = (queue.add(name, options=JobOptions(attempts=5)) for name in ("once", "again"))
        fresh = queue.add("once")
        for job_id in (lost, other):  # as it is after a worker was lost
            redis_client.hset(f"glide:{{etl}}:job:{job_id}", "stalledCount", 1)
        run_worker(["etl"], handlers)
        eventually(
            lambda: all(state.is_terminal for state in queue.states([lost, other, fresh]) if state), 10
        )
        assert "worker that ran it was lost" in str(queue.get_job(lost).failed_reason)
        assert queue.get_job(lost).state is JobState.FAILED
    assert sorted(ran) == sorted([other, fresh])
