"""An array with a queue timeout waits that long for a worker that has its handler, as any node does."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode, Context, FlowProducer, FlowSpec, FlowState, Queue

if TYPE_CHECKING:
    from tests.conftest import RunWorker


def flow_of(*, as_jobs: bool, queue_timeout: float, elements: int = 5) -> FlowSpec:
    array = ArrayNode("a", over=range(elements), as_jobs=as_jobs, queue_timeout=queue_timeout)
    return FlowSpec("f", [array], queue="etl")


@pytest.mark.parametrize("as_jobs", [False, True])
def test_it_waits_for_a_worker_with_its_handler(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    run_worker(["etl"], {"other": lambda ctx: 1})
    flow = flows.submit(flow_of(as_jobs=as_jobs, queue_timeout=30), flow_id="x")
    time.sleep(0.5)
    assert flow.array("a").counts().failed == 0
    run_worker(["etl"], {"a": lambda ctx: ctx.index})
    assert flow.wait(timeout=30).state is FlowState.COMPLETED


def test_a_worker_without_its_handler_leases_few_slices(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    """It would return them 2,000 times a second, while those that can run them wait for the server."""
    run_worker(["etl"], {"other": lambda ctx: ctx.index}, concurrency=10)
    flow = flows.submit(flow_of(as_jobs=False, queue_timeout=60, elements=10_000), flow_id="x")
    time.sleep(2)
    assert 0 < int(redis_client.hget("glide:{etl}:gmo:array:x~a", "leases")) < 200
    own = flows.submit(FlowSpec("f", [ArrayNode("other", over=range(1_000))], queue="etl"), flow_id="y")
    assert own.wait(timeout=30).state is FlowState.COMPLETED
    run_worker(["etl"], {"a": lambda ctx: ctx.index})
    assert flow.wait(timeout=60).state is FlowState.COMPLETED


@pytest.mark.parametrize("as_jobs", [False, True])
def test_it_fails_with_the_reason_of_those_that_handed_it_back(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    run_worker(["etl"], {"other": lambda ctx: 1})
    flow = flows.submit(flow_of(as_jobs=as_jobs, queue_timeout=1), flow_id="x")
    (failed,) = flow.wait(timeout=20).failed
    reason = (
        "queue timeout: no worker of queue etl began it within 1 s: HandlerNotFound: no handler for job 'a'"
    )
    assert failed.reason.startswith(reason)
    assert flow.array("a").counts().failed == 0
    assert queue.counts().elements.waiting == 0
    run_worker(["etl"], {"a": lambda ctx: ctx.index})
    flow.retry_failed()
    assert flow.wait(timeout=20).state is FlowState.COMPLETED


@pytest.mark.parametrize("as_jobs", [False, True])
def test_one_that_was_begun_has_met_it(flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(ctx: Context) -> int | None:
        begun.set()
        go.wait(20)
        return ctx.index

    run_worker(["etl"], {"other": lambda ctx: 1}, concurrency=1, prefetch=0)  # it cannot hold all of them
    flow = flows.submit(flow_of(as_jobs=as_jobs, queue_timeout=2), flow_id="x")
    time.sleep(0.5)  # until it was handed back
    run_worker(["etl"], {"a": work}, concurrency=1)
    assert begun.wait(20)
    time.sleep(3)
    go.set()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
