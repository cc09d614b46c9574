"""The traceback of a failed attempt is in the log of its job: bounded, the user's frames first."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Handlers, JobOptions, JobState, Queue, RetryLater, Unrecoverable
from glidemq_orchestrate.worker.handlers.signals import BatchError
from glidemq_orchestrate.worker.handlers.tracebacks import MAX_CHARACTERS
from tests.server import process_handlers

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

SECRET = "hunter2"
HEAD = "attempt 1 failed: Traceback (most recent call last):"


def parse(text: str) -> Any:
    password = SECRET
    return json.loads(text) if password else None


def plain(ctx: Any) -> None:
    parse(ctx.data)


async def on_loop(ctx: Any) -> None:
    await asyncio.sleep(0)
    parse(ctx.data)


async def in_group(ctx: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(on_loop(ctx))


def chained(ctx: Any) -> None:
    try:
        parse(ctx.data)
    except ValueError as exc:
        raise Unrecoverable("no such day") from exc


def deep(ctx: Any) -> None:
    def go(depth: int) -> None:
        if depth:
            other(depth - 1)
        raise ValueError("x" * 100_000)

    def other(depth: int) -> None:
        go(depth)

    go(200)


async def waits(ctx: Any) -> None:
    await asyncio.sleep(60)


def in_batch(batch: list[Any]) -> list[Any]:
    results: list[Any] = []
    for ctx in batch:
        try:
            results.append(parse(ctx.data))
        except ValueError as exc:
            results.append(exc)
    raise BatchError(results)


HANDLERS = {"plain": plain, "on_loop": on_loop, "in_group": in_group, "chained": chained, "deep": deep}


@pytest.mark.parametrize("name", [*HANDLERS, "in_batch", "end"])
def test_it_is_in_the_log_of_the_job(
    name: str, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers = Handlers()
    for known, function in HANDLERS.items():
        handlers.handler(known)(function)
    handlers.handler("end", process=True)(process_handlers.end)
    handlers.batch_handler("in_batch", size=1)(in_batch)
    job_id = queue.add(name, "odd")
    run_worker(["etl"], handlers)
    eventually(lambda: queue.get_job(job_id).state is JobState.FAILED, 30)
    (line,) = queue.logs(job_id).lines
    assert line.startswith("attempt 1 failed: ")
    assert len(line) <= MAX_CHARACTERS + 200
    own, first = "process_handlers" if name == "end" else "test_tracebacks", line.index("File ")
    assert own in line[first:].split("\n")[0]
    assert ("in _raise" if name == "end" else "in go" if name == "deep" else "in parse") in line
    assert "glidemq_orchestrate/worker" not in line
    assert SECRET not in line
    reason = str(queue.get_job(job_id).failed_reason)
    assert line.rstrip().endswith(reason.partition(": ")[2][-20:]) or name in ("in_group", "chained", "deep")


def test_each_failed_attempt_has_its_own_and_what_is_no_failure_has_none(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Any) -> None:
        if ctx.attempt < 3:
            ctx.log(f"at {ctx.attempt}")
            raise ValueError(f"no {ctx.attempt}")

    def later(_ctx: Any) -> None:
        raise RetryLater(timedelta(hours=1), counts=False)

    job_id, waits = queue.add("work", options=JobOptions(attempts=3)), queue.add("later")
    run_worker(["etl"], {"work": work, "later": later})
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 20)
    lines = [line.splitlines() for line in queue.logs(job_id).lines]
    assert [(line[0], line[-1]) for line in lines] == [
        ("at 1", "at 1"),
        (HEAD, "ValueError: no 1"),
        ("at 2", "at 2"),
        (HEAD.replace("1", "2"), "ValueError: no 2"),
    ]
    eventually(lambda: queue.get_job(waits).state is JobState.DELAYED, 20)
    assert queue.logs(waits).lines == []


def test_a_run_that_timed_out_shows_where_it_waited(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def stays(_ctx: Any) -> None:
        time.sleep(0.5)

    limit = JobOptions(timeout=timedelta(milliseconds=100))
    job_ids = [queue.add(name, options=limit) for name in ("waits", "stays")]
    run_worker(["etl"], {"waits": waits, "stays": stays})
    eventually(lambda: all(queue.get_job(one).state is JobState.FAILED for one in job_ids), 20)
    (line,) = queue.logs(job_ids[0]).lines
    first = line.index("File ")
    assert "test_tracebacks" in line[first:].split("\n")[0]
    assert "await asyncio.sleep(60)" in line
    assert "glidemq_orchestrate/worker" not in line
    assert line.endswith("TimeoutError: still running after 0:00:00.100000")
    assert queue.logs(job_ids[1]).lines == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_line_with_half_characters_is_not_lost(
    is_async: bool,  # noqa: FBT001
    queue: Queue,
    run_worker: RunWorker,
    eventually: Eventually,
) -> None:
    """As names of files have that are not UTF-8: it cannot be sent as it is."""

    def work(ctx: Any) -> None:
        ctx.log("caf\udce9.csv")
        ctx.log("next")
        raise ValueError("caf\udce9.csv")

    async def on_loop(ctx: Any) -> None:
        work(ctx)

    job_id = queue.add("work")
    run_worker(["etl"], {"work": on_loop if is_async else work})
    eventually(lambda: queue.get_job(job_id).state is JobState.FAILED, 20)
    first, second, traceback = queue.logs(job_id).lines
    assert (first, second) == ("caf\\udce9.csv", "next")
    assert traceback.endswith("ValueError: caf\\udce9.csv")
