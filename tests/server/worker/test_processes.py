"""Handlers in processes of their own: each harms its own job only, and none outlives its worker."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from glidemq_orchestrate import (
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    JobState,
    Queue,
)
from tests.processes import is_alive, is_gone, runs, spawned
from tests.server import process_handlers

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

MINUTE = timedelta(minutes=1)
ROOT = Path(__file__).parents[3]

REASONS = {
    "exit": "SystemExit: 0",
    "exit-with-code": "SystemExit: 2",
    "interrupt": "KeyboardInterrupt",
    "generator-exit": "GeneratorExit",
    "stop-iteration": "StopIteration",
    "base": "Foul",
    "odd": "Odd: this and that",
    "sealed": "Sealed: x",
    "liar": "Liar",
    "no-json": "EncodeError: result of job end is not JSON",
    "bad-result": "SystemExit: 9",
    "quick-exit": "ProcessExpired: the handler's process ended with exit code 0",
    "quick-exit-with-code": "ProcessExpired: the handler's process ended with exit code 3",
    "killed": "ProcessExpired: the handler's process was ended by SIGKILL",
    "segfault": "ProcessExpired: the handler's process was ended by SIGSEGV",
    "big": "PayloadTooLarge: result of job end is 2,000,002 bytes",
    "writes-everywhere": "ProcessExpired: the handler's process closed the connection to its worker",
    "stops": "TimeoutError: still running after 0:00:03",
    "closes-everything": "ProcessExpired: the handler's process ended with exit code 1",
}


def handlers_of(*functions: Callable[..., Any]) -> Handlers:
    handlers = Handlers()
    for function in functions:
        handlers.handler(function.__name__, process=True)(function)
    return handlers


def has_state(queue: Queue, job_id: str, state: JobState) -> bool:
    return queue.get_job(job_id).state is state


def has_text(file: Path) -> bool:
    return file.exists() and bool(file.read_text())


def test_however_a_handler_ends_only_its_own_job_fails(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers = handlers_of(process_handlers.end, process_handlers.measure)
    run_worker(["etl"], handlers, concurrency=1)
    for end, reason in REASONS.items():
        options = JobOptions(timeout=timedelta(seconds=3) if end == "stops" else None)
        bad = queue.add("end", end, options=options)
        # The next takes the process that this one has left, or a new one; the worker has one place.
        fine = queue.add("measure", end)
        eventually(partial(has_state, queue, fine, JobState.COMPLETED), 20)
        assert queue.get_job(fine).result["data"] == end
        job = queue.get_job(bad)
        assert job.state is JobState.FAILED, end
        assert str(job.failed_reason).startswith(reason), end


@pytest.mark.long
def test_a_process_that_dies_between_two_jobs_is_replaced(queue: Queue, run_worker: RunWorker) -> None:
    run_worker(["etl"], handlers_of(process_handlers.measure), concurrency=1)
    pids = []
    for _ in range(3):
        result: Any = queue.add_and_wait("measure", timeout=MINUTE)
        pids.append(result["pid"])
        os.kill(result["pid"], signal.SIGKILL)
    assert len(set(pids)) == 3


@pytest.mark.long
def test_a_process_starts_while_handlers_keep_the_threads_of_the_loop(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    go, handlers = threading.Event(), handlers_of(process_handlers.end)

    @handlers.handler("busy")
    async def busy(ctx: Context) -> None:
        await asyncio.gather(*(asyncio.to_thread(go.wait, 30) for _ in range(40)))

    run_worker(["etl"], handlers)
    waits = queue.add("busy")
    eventually(partial(has_state, queue, waits, JobState.ACTIVE))
    queue.add_and_wait("end", "talks", timeout=MINUTE / 4)
    assert has_state(queue, waits, JobState.ACTIVE)
    go.set()


def test_a_process_is_used_again(queue: Queue, run_worker: RunWorker) -> None:
    run_worker(["etl"], handlers_of(process_handlers.measure, process_handlers.end), concurrency=1)
    pids = set()
    for _ in range(3):
        result: Any = queue.add_and_wait("measure", timeout=MINUTE)
        pids.add(result["pid"])
        queue.add_and_wait("end", "talks", timeout=MINUTE)
    assert len(pids) == 1


def pid_of(process: Any) -> int | None:
    pid: int | None = process._process.pid
    return pid


@pytest.mark.long
@pytest.mark.parametrize(("end", "result"), [("forks", "parent"), ("pool", [1, 2]), ("talks", None)])
def test_a_handler_may_use_processes_of_its_own(
    queue: Queue, run_worker: RunWorker, end: str, result: Any
) -> None:
    run_worker(["etl"], handlers_of(process_handlers.end), concurrency=1)
    for _ in range(2):
        assert queue.add_and_wait("end", end, timeout=MINUTE) == result


def test_what_a_handler_left_running_ends_with_the_worker(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    running = run_worker(["etl"], handlers_of(process_handlers.end), concurrency=1)
    left: Any = queue.add_and_wait("end", "forks-for-good", timeout=MINUTE)
    assert is_alive(left)
    running.stop()
    eventually(partial(is_gone, left), 5)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_leaves_the_processes_to_its_parent(queue: Queue, run_worker: RunWorker) -> None:
    running = run_worker(["etl"], handlers_of(process_handlers.measure), concurrency=1)
    first: Any = queue.add_and_wait("measure", timeout=MINUTE)
    pid = os.fork()
    if pid == 0:
        try:
            running.worker._processes.close()  # type: ignore[union-attr]
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    second: Any = queue.add_and_wait("measure", timeout=MINUTE)
    assert first["pid"] == second["pid"]


@pytest.mark.long
def test_processes_that_are_killed_at_random_lose_no_job(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    chance = random.Random(3)
    running = run_worker(["etl"], handlers_of(process_handlers.measure), concurrency=3)
    ids = [queue.add("measure", number, options=JobOptions(attempts=50)) for number in range(1_000)]
    kills = 0
    while kills < 15 and not has_state(queue, ids[-1], JobState.COMPLETED):
        if below := [pid for pid in map(pid_of, list(running.worker._processes._all)) if pid]:  # type: ignore[union-attr]
            with suppress(ProcessLookupError):
                os.kill(chance.choice(below), signal.SIGKILL)
            kills += 1
        time.sleep(0.05)
    assert kills > 3
    for job_id in ids:
        eventually(partial(has_state, queue, job_id, JobState.COMPLETED), 60)
    assert running.error is None


@pytest.mark.parametrize(
    ("signal_name", "state"),
    [("later", JobState.DELAYED), ("never", JobState.FAILED), ("park", JobState.SUSPENDED)],
)
def test_a_handler_in_a_process_steers_its_job_as_any_other(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, signal_name: str, state: JobState
) -> None:
    job_id = queue.add("steer", signal_name, options=JobOptions(attempts=3))
    run_worker(["etl"], handlers_of(process_handlers.steer))
    eventually(partial(has_state, queue, job_id, state), 20)
    job = queue.get_job(job_id)
    assert job.attempts_made == (1 if signal_name == "never" else 0)


def test_a_node_in_a_process_may_be_skipped(flows: FlowProducer, run_worker: RunWorker) -> None:
    run_worker(["etl"], handlers_of(process_handlers.steer))
    flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="etl", job="steer", data="skip")]), flow_id="f")
    outcome = flow.wait(timeout=MINUTE)
    assert (outcome.status.skipped, outcome.status.failed) == (1, 0)


def test_the_exception_is_the_handlers_own_where_it_can_travel(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    errors: list[BaseException] = []
    handlers = handlers_of(process_handlers.end)

    @handlers.backoff("mine")
    def mine(_: int, error: BaseException) -> timedelta:
        errors.append(error)
        return timedelta(0)

    job_id = queue.add("end", "odd")
    redis_client.hset(f"glide:{{etl}}:job:{job_id}", "opts", '{"attempts":2,"backoff":{"type":"mine"}}')
    run_worker(["etl"], handlers)
    eventually(lambda: errors, 20)
    assert isinstance(errors[0], process_handlers.Odd)
    assert "in _raise" in str(errors[0].__cause__)


@pytest.mark.parametrize("how", ["timeout", "revoke"])
def test_what_a_handler_started_ends_with_it(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "pids"
    options = JobOptions(timeout=timedelta(seconds=5)) if how == "timeout" else JobOptions()
    job_id = queue.add("spin", str(file), options=options)
    run_worker(["etl"], handlers_of(process_handlers.spin), concurrency=1)
    eventually(partial(has_text, file), 20)
    if how == "revoke":
        queue.revoke(job_id)
    for pid in map(int, file.read_text().split()):
        eventually(partial(is_gone, pid), 20)


APP = """
from glidemq_orchestrate import Handlers
from tests.server import process_handlers

handlers = Handlers()
for function in (process_handlers.spin, process_handlers.hang, process_handlers.measure):
    handlers.handler(function.__name__, process=True)(function)
"""


@pytest.fixture
def worker(url: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "app", "--queue", "etl"]
    command += ["--url", url, "--concurrency", "3", "--processes", "1"]
    with spawned(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        yield process


def test_nothing_of_a_killed_worker_is_left(
    worker: subprocess.Popen[bytes], queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    queue.add_and_wait("measure", timeout=MINUTE)  # its process is idle, or takes the next
    busy, waiting = tmp_path / "busy", tmp_path / "waiting"
    queue.add("spin", str(busy))
    queue.add("hang", str(waiting))
    for file in (busy, waiting):
        eventually(partial(has_text, file), 30)
    below = psutil.Process(worker.pid).children(recursive=True)
    assert {*map(int, busy.read_text().split()), int(waiting.read_text())} <= {each.pid for each in below}
    worker.kill()
    worker.wait(10)
    killed = time.monotonic()
    eventually(lambda: not any(map(runs, below)), 30)
    assert time.monotonic() - killed < 8  # it was more than ten before


@pytest.mark.long
def test_a_worker_that_ends_well_leaves_nothing_either(
    worker: subprocess.Popen[bytes], queue: Queue, eventually: Eventually
) -> None:
    queue.add_and_wait("measure", timeout=MINUTE)
    below = psutil.Process(worker.pid).children(recursive=True)
    assert below
    worker.terminate()
    assert worker.wait(20) == 0
    eventually(lambda: not any(map(runs, below)), 8)


@pytest.mark.long
def test_a_process_that_cannot_start_fails_its_job(
    url: str, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "from glidemq_orchestrate import Worker\n"
        "from tests.server import process_handlers\n"
        "if __name__ != '__main__':\n"
        "    raise SystemExit(4)\n"
        f"worker = Worker({url!r}, queues=['etl'])\n"
        "worker.handler('measure', process=True)(process_handlers.measure)\n"
        "worker.run()\n"
    )
    job_id = queue.add("measure")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with spawned([sys.executable, script], env=environment) as process:
        eventually(partial(has_state, queue, job_id, JobState.FAILED), 30)
        process.terminate()
        process.wait(20)
    reason = str(queue.get_job(job_id).failed_reason)
    assert reason == "ProcessExpired: the handler's process ended with exit code 4, before the job reached it"
