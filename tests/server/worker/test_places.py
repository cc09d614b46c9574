"""The places of a worker are shared by its queues: a queue that starts no job keeps none from the others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import Queue

if TYPE_CHECKING:
    from tests.conftest import RunWorker

LONG = timedelta(seconds=20)


def test_a_queue_whose_calls_are_refused_keeps_no_place(
    url: str, redis_client: Any, run_worker: RunWorker
) -> None:
    redis_client.set("glide:{bad}:meta", "not a hash")
    running = run_worker(["bad", "good"], {"work": lambda ctx: ctx.data}, concurrency=1)
    with Queue("good", url) as queue:
        for number in range(3):
            assert queue.add_and_wait("work", number, timeout=LONG) == number
    assert running.error is None


def test_a_queue_without_jobs_keeps_no_place(url: str, run_worker: RunWorker) -> None:
    run_worker(["empty", "good"], {"work": lambda ctx: ctx.data}, concurrency=1)
    with Queue("good", url) as queue:
        assert queue.add_and_wait("work", 1, timeout=LONG) == 1
