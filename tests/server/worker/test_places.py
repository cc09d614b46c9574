"""The places of a worker are shared by its queues, and limits of a queue count at once.

A queue that starts no job keeps no place from the others, and jobs that wait here for one may run elsewhere.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Handlers, JobOptions, JobState, NewJob, Ordering, Queue, RateLimit
from glidemq_orchestrate.worker import listener, runner

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

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


@pytest.mark.parametrize("limit", ["rate lifted", "rate raised", "concurrency", "ordering key"])
def test_a_limit_that_is_changed_counts_at_once(
    url: str, run_worker: RunWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(listener, "BLOCK_MS", 30_000)
    began: list[str] = []
    may_end = threading.Event()

    def work(ctx: Any) -> None:
        began.append(ctx.job_id)
        may_end.wait(20)

    ordering = JobOptions(ordering=Ordering("k", concurrency=2))
    with Queue("etl", url) as queue:
        if limit == "concurrency":
            queue.set_global_concurrency(1)
        elif limit == "ordering key":
            queue.rate_limit_group("k", LONG)
        else:
            queue.set_global_rate_limit(RateLimit(1, timedelta(minutes=1)))
        run_worker(["etl"], {"work": work})
        options = ordering if limit == "ordering key" else JobOptions()
        queue.add_many([NewJob("work", options=options) for _ in range(2)])
        eventually(lambda: len(began) == (limit != "ordering key"))
        time.sleep(0.3)  # it has asked for more, and listens
        if limit == "concurrency":
            queue.set_global_concurrency(2)
        elif limit == "ordering key":
            queue.rate_limit_group("k", timedelta(milliseconds=1), extend=False)
        else:
            queue.set_global_rate_limit(None if "lifted" in limit else RateLimit(2, timedelta(minutes=1)))
        eventually(lambda: len(began) == 2, timeout=5)
        may_end.set()


def test_what_node_changes_about_a_limit_counts_amid_events_of_others(
    url: str, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    began: list[str] = []

    def work(ctx: Any) -> None:
        began.append(ctx.job_id)
        while len(began) == 1:
            ctx.progress(time.monotonic())
            time.sleep(0.05)

    redis_client.hset("glide:{etl}:meta", mapping={"rateLimitMax": 1, "rateLimitDuration": 60_000})
    run_worker(["etl"], {"work": work})
    with Queue("etl", url) as queue:
        queue.add_many([NewJob("work")] * 2)
        eventually(lambda: began)
        redis_client.hdel("glide:{etl}:meta", "rateLimitMax")
        try:
            eventually(lambda: len(began) == 2, timeout=5)
        finally:
            began.append("")


@pytest.mark.parametrize("batch", [0, 10])
def test_what_was_fetched_behind_long_jobs_runs_on_an_idle_worker(
    batch: int, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    held, running = threading.Event(), list[str]()

    def holds(ctx: Any) -> None:
        running.append(ctx.job_id)
        assert held.wait(60)

    def made() -> Handlers:
        handlers = Handlers()
        handlers.handler("holds")(holds)
        if batch:
            handlers.batch_handler("quick", size=batch)(lambda batch: [1 for _ in batch])
        else:
            handlers.handler("quick")(lambda _ctx: 1)
        return handlers

    def completed() -> int:
        return queue.counts()[JobState.COMPLETED]

    queue.pause()
    quick = [NewJob("quick") for _ in range(300)]
    queue.add_many([*quick, NewJob("holds"), NewJob("holds"), *quick[:60]])
    run_worker(["etl"], made(), concurrency=2)
    queue.resume()
    eventually(lambda: len(running) == 2, 30)
    run_worker(["etl"], made(), concurrency=2)
    eventually(lambda: completed() == 360, 20)
    held.set()


def test_suspects_that_wait_for_another_one_run_on_an_idle_worker(
    queue: Queue,
    run_worker: RunWorker,
    eventually: Eventually,
    redis_client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, running = threading.Event(), list[str]()

    def holds(ctx: Any) -> None:
        running.append(ctx.job_id)
        assert held.wait(30)

    monkeypatch.setattr(runner, "ASIDE_SECONDS", 1.0)
    job_ids = [queue.add("holds") for _ in range(2)]
    for job_id in job_ids:  # as it is after a worker was lost that ran both
        redis_client.hset(f"glide:{{etl}}:job:{job_id}", mapping={"gmo:suspect": 1, "gmo:lost": 1})
    run_worker(["etl"], {"holds": holds}, concurrency=4)
    eventually(lambda: len(running) == 1, 20)
    (other,) = {*job_ids} - {*running}
    reason = "its worker was lost: other workers run its jobs one or a few at a time"
    eventually(lambda: getattr(queue.wait_of(other), "reason", "") == reason, 10)
    assert queue.wait_of(running[0]) is None
    run_worker(["etl"], {"holds": holds}, concurrency=4)
    eventually(lambda: len(running) == 2, 8)  # the other worker gets it the first time it is given back
    assert queue.wait_of(other) is None
    held.set()
