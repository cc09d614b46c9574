"""The time limit of a handler, for jobs that have none of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Handlers, JobState, Queue

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

LATE = "TimeoutError: still running after 0:00:00.200000"


async def sleep(ctx: Any) -> str:
    await asyncio.sleep(ctx.data)
    return "slept"


async def sleep_all(contexts: list[Any]) -> list[str]:
    await asyncio.sleep(max(ctx.data for ctx in contexts))
    return ["slept" for _ in contexts]


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers()
    handlers.handler(timeout=0.2)(sleep)
    handlers.handler("unlimited")(sleep)
    handlers.batch_handler(size=2, wait=0.5, timeout=0.2)(sleep_all)
    return handlers


def test_a_handler_limits_the_jobs_that_have_no_limit(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, handlers: Handlers
) -> None:
    late, patient = queue.add("sleep", 60), queue.add("sleep", 0.4, timeout=30)
    unlimited, alone = queue.add("unlimited", 0.4), queue.add("sleep_all", 60)
    run_worker(["etl"], handlers)
    jobs = (late, patient, unlimited, alone)
    eventually(lambda: all(queue.get_job(one).finished_at for one in jobs), 20)
    assert (queue.get_job(late).failed_reason, queue.get_job(alone).failed_reason) == (LATE, LATE)
    assert queue.get_job(patient).result == queue.get_job(unlimited).result == "slept"


def test_the_limit_of_a_batch_is_the_longest_of_its_jobs(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, handlers: Handlers
) -> None:
    jobs = [queue.add("sleep_all", 0.4), queue.add("sleep_all", 0.4, timeout=30)]
    run_worker(["etl"], handlers)
    eventually(lambda: all(queue.get_job(one).state is JobState.COMPLETED for one in jobs), 20)
