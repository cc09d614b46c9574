"""A queue, a cancelled job or one without a handler holds up no other."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, Handlers, JobState, Queue
from glidemq_orchestrate.attempts.workers import longest_pause
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.server.worker.containment.states import SECOND, is_in

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.handlers.context import Context
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand


def test_a_cancel_before_the_first_step_frees_the_place(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    """The heartbeat that finds the lease lost falls into the start of a job held ahead."""
    began, go = threading.Event(), threading.Event()

    async def slow(ctx: Context) -> None:
        began.set()
        await asyncio.to_thread(go.wait, 20)

    running = run_worker(["etl"], {"slow": slow, "quick": lambda ctx: 1}, concurrency=1, prefetch=3)
    first, second = queue.add("slow"), queue.add("slow")
    assert began.wait(5)
    worker = running.worker
    eventually(lambda: len(worker._slots.held) == 2)

    def cancel_in_between() -> None:
        """Start the second job and cancel it before its task has had a step."""
        (attempt,) = worker._slots.waiting
        worker._slots.concurrency = 2
        worker._jobs.fill()  # type: ignore[union-attr]
        worker._jobs.cancel(attempt, revoked=False)  # type: ignore[union-attr]

    loop = worker._loop
    assert loop is not None
    loop.call_soon_threadsafe(cancel_in_between)
    eventually(lambda: len(worker._slots.held) == 1)
    eventually(lambda: worker._slots.running == 1)
    go.set()
    eventually(lambda: queue.get_job(first).state is JobState.COMPLETED)
    quick = queue.add("quick")
    eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)
    redis_client.hset(f"glide:{{etl}}:job:{second}", "revoked", "1")


def test_what_waits_behind_an_emptied_batch_runs(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers, go = Handlers(), threading.Event()

    @handlers.batch_handler("batch", size=2, wait=timedelta(milliseconds=10))
    def batch(contexts: list[Context]) -> list[int]:
        return [1 for _ in contexts]

    handlers.handler("slow")(lambda ctx: go.wait(20))
    handlers.handler("quick")(lambda ctx: 1)
    running = run_worker(["etl"], handlers, concurrency=1, prefetch=8, lease=SECOND)
    queue.add("slow")
    eventually(lambda: running.worker._slots.running == 1)
    batched = [queue.add("batch") for _ in range(2)]
    quick = queue.add("quick")
    eventually(lambda: len(running.worker._slots.held) == 4)
    for job in batched:
        queue.revoke(job)
    eventually(lambda: len(running.worker._slots.held) == 2)
    go.set()
    eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)


def test_workers_with_different_handlers_leave_each_other_their_jobs(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"old": lambda ctx: "old"}, concurrency=1)
    run_worker(["etl"], {"new": lambda ctx: "new"}, concurrency=1)
    jobs = {queue.add(name): name for name in ["old", "new"] * 10}
    for job, name in jobs.items():
        eventually(partial(is_in, queue, job, JobState.COMPLETED), timeout=20)
        assert queue.get_job(job).result == name
        assert queue.get_job(job).attempts_made == 0


def test_a_job_that_no_worker_can_run_fails_with_that_reason(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"old": lambda ctx: "old"})
    run_worker(["etl"], {"new": lambda ctx: "new"})
    job = queue.add("other")
    eventually(lambda: queue.get_job(job).state is JobState.FAILED)
    assert "HandlerNotFound" in (queue.get_job(job).failed_reason or "")


def test_a_worker_of_few_kinds_leaves_the_others_to_workers_to_come(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"mine": lambda ctx: "mine"}, only_known=True)
    other, mine = queue.add("other"), queue.add("mine")
    eventually(partial(is_in, queue, mine, JobState.COMPLETED))
    time.sleep(1)  # it comes back several times meanwhile
    assert not queue.get_job(other).state.is_terminal
    run_worker(["etl"], {"other": lambda ctx: "other"})
    eventually(partial(is_in, queue, other, JobState.COMPLETED))
    assert (queue.get_job(other).result, queue.get_job(other).attempts_made) == ("other", 0)


def test_a_node_that_may_wait_for_its_handler_waits(
    url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    run_worker(["etl"], {"old": lambda ctx: "old"})
    with FlowProducer(url) as flows:
        nodes = [FlowNode("n", queue="etl", job="new", queue_timeout=timedelta(seconds=30))]
        flow = flows.submit(FlowSpec("f", nodes))
        eventually(lambda: redis_client.hget(f"glide:{{etl}}:job:{flow.node('n').job_id}", "gmo:unhandled"))
        run_worker(["etl"], {"new": lambda ctx: "new"})
        assert flow.result(timeout=timedelta(seconds=20)) == {"n": "new"}


def test_a_node_that_may_wait_long_for_its_handler_is_looked_at_seldom(
    path: str, flows: FlowProducer, hand: Hand, redis_client: Any
) -> None:
    for seconds, pause_ms in ((None, None), (1, 1_000), (30, 3_000), (600, 10_000)):
        found = flows.submit(FlowSpec("f", [FlowNode("n", queue="etl", job="new", queue_timeout=seconds)]))
        job_id = found.node("n").job_id
        options = RunOptions.from_wire(redis_client.hget(f"glide:{{etl}}:job:{job_id}", "opts"))
        attempt = Attempt("etl", job_id, "1-1", "w/t", "1", "new", "null", options, 0, found.id, "n")
        longest = longest_pause(QueueKeys("glide", "etl"), attempt, "w", "no handler", SystemClock())
        assert hand.run(longest) == pause_ms


def test_its_queue_timeout_reports_that_it_has_none(url: str, queue: Queue, run_worker: RunWorker) -> None:
    run_worker(["etl"], {"old": lambda ctx: "old"})
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("f", [FlowNode("n", queue="etl", job="new", queue_timeout=SECOND)]))
        (failed,) = flow.wait(timeout=timedelta(seconds=20)).failed
    assert failed.reason.startswith(
        "queue timeout: no worker of queue etl began it within 1 s: HandlerNotFound"
    )
    assert "known: old" in failed.reason


@pytest.mark.parametrize("key", ["stream", "events", "meta", "scheduled", "completed", "gmo:workers"])
def test_a_broken_queue_harms_no_other(  # noqa: PLR0917  fixtures
    url: str,
    queue: Queue,
    run_worker: RunWorker,
    eventually: Eventually,
    redis_client: Any,
    key: str,
) -> None:
    running = run_worker(["broken", "etl"], {"work": lambda ctx: 1}, concurrency=2)
    with Queue("broken", url) as broken:
        assert broken.add_and_wait("work") == 1
        redis_client.delete(f"glide:{{broken}}:{key}")
        redis_client.set(f"glide:{{broken}}:{key}", "no such thing")
        for _ in range(30):
            assert queue.add_and_wait("work", timeout=timedelta(seconds=10)) == 1
        redis_client.delete(f"glide:{{broken}}:{key}")
        assert broken.add_and_wait("work", timeout=timedelta(seconds=20)) == 1
    assert running.error is None


def test_a_queue_that_is_broken_at_the_start_harms_no_other(
    url: str, queue: Queue, run_worker: RunWorker, redis_client: Any
) -> None:
    redis_client.set("glide:{broken}:stream", "no such thing")
    running = run_worker(["broken", "etl"], {"work": lambda ctx: 1}, may_leave_active=True)
    assert queue.add_and_wait("work") == 1
    assert running.error is None
