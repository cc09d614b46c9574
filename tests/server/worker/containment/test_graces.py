"""A handler that overstays its time delays no other job."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Handlers, JobOptions, JobState, Queue
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker import threads
from tests.server.worker.containment.states import SECOND, is_in

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.handlers.context import Context
    from tests.conftest import Eventually, RunWorker


def test_a_handler_that_overstays_costs_the_next_job_no_time(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    ended = threading.Event()
    options = JobOptions(timeout=timedelta(milliseconds=100))
    running = run_worker(["etl"], {"deaf": lambda ctx: ended.wait(60), "quick": lambda ctx: 1})
    deaf = [queue.add("deaf", options=options) for _ in range(60)]
    for job in deaf:
        eventually(partial(is_in, queue, job, JobState.FAILED), timeout=20)
    quick = queue.add("quick", options=JobOptions(timeout=SECOND))
    eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)
    assert running.worker._threads.overstayed == 60
    ended.set()
    eventually(lambda: running.worker._threads.overstayed == 0)


def test_with_a_grace_no_attempt_begins_beside_the_one_that_timed_out(
    queue: Queue, run_worker: RunWorker
) -> None:
    handlers, running, most = Handlers(), list[int](), list[int]()

    @handlers.handler("slow", grace=20 * SECOND)
    def slow(ctx: Context) -> int:
        running.append(ctx.attempt)
        most.append(len(running))
        if ctx.attempt < 3:
            assert ctx.cancelled.wait(20)
            time.sleep(0.4)  # what it takes to end
        running.remove(ctx.attempt)
        return ctx.attempt

    worker = run_worker(["etl"], handlers).worker
    options = JobOptions(timeout=timedelta(milliseconds=100), attempts=3)
    assert queue.add_and_wait("slow", options=options) == 3
    assert most == [1, 1, 1]
    assert worker._threads.overstayed == 0


def test_after_its_grace_the_next_attempt_begins(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers, over = Handlers(), threading.Event()

    @handlers.handler("deaf", grace=timedelta(milliseconds=300))
    def deaf(ctx: Context) -> int:
        if ctx.attempt == 1:
            over.wait(20)
        return ctx.attempt

    worker = run_worker(["etl"], handlers).worker
    options = JobOptions(timeout=timedelta(milliseconds=100), attempts=2)
    assert queue.add_and_wait("deaf", options=options) == 2
    assert worker._threads.overstayed == 1
    over.set()
    eventually(lambda: worker._threads.overstayed == 0)


@pytest.mark.parametrize("wrong", [{"grace": -SECOND}, {"grace": SECOND, "process": True}])
def test_a_grace_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="grace"):
        Handlers().handler("work", **wrong)(lambda ctx: None)


def test_a_worker_does_not_wait_out_a_grace_when_it_stops(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers, begun, over = Handlers(), threading.Event(), threading.Event()

    @handlers.handler("deaf", grace=timedelta(minutes=10))
    def deaf(ctx: Context) -> None:
        begun.set()
        over.wait(60)

    running = run_worker(["etl"], handlers, shutdown_timeout=timedelta(0))
    job_id = queue.add("deaf")
    assert begun.wait(20)
    started = time.monotonic()
    running.stop()
    assert time.monotonic() - started < 20
    assert queue.get_job(job_id).state is JobState.WAITING
    over.set()


def test_too_many_that_overstay_are_waited_for(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MAX_OVERSTAYED", 3)
    ended = threading.Event()
    options = JobOptions(timeout=timedelta(milliseconds=50))
    running = run_worker(["etl"], {"deaf": lambda ctx: ended.wait(60), "quick": lambda ctx: 1})
    for _ in range(3):
        queue.add("deaf", options=options)
    eventually(lambda: running.worker._threads.overstayed == 3)
    quick = queue.add("quick", options=JobOptions(timeout=timedelta(milliseconds=300)))
    time.sleep(0.5)
    assert not queue.get_job(quick).state.is_terminal
    ended.set()
    eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)
