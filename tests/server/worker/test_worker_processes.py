"""Several worker processes by one command: what they run, and who dies, is replaced, drained or restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobState, Queue
from tests.processes import is_gone, spawned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Eventually

    Start = Callable[..., subprocess.Popen[bytes]]

APP = """
import asyncio, os, time
from pathlib import Path
from glidemq_orchestrate import Handlers

handlers, kept = Handlers(), []

@handlers.handler
async def sleep(ctx):
    with Path("begun").open("a") as file:
        file.write(f"{ctx.job_id} {os.getpid()}\\n")
    await asyncio.sleep(ctx.data)
    return os.getpid()

@handlers.handler
async def keep(ctx):
    kept.append(b"x" * ctx.data)
    return os.getpid()
"""
COMMAND = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "app", "--queue", "etl"]


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url) as made:
        yield made


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts the command with more options in a folder with the app; its log is in the file ``log``."""
    with ExitStack() as stack:

        def start(*options: str, app: str = APP) -> subprocess.Popen[bytes]:
            (tmp_path / "app.py").write_text(app)
            log = stack.enter_context((tmp_path / "log").open("wb"))
            command = [*COMMAND, "--url", url, *options]
            return stack.enter_context(spawned(command, cwd=tmp_path, stderr=log))

        yield start


def pids(queue: Queue) -> set[int]:
    return {worker.pid for worker in queue.workers() if worker.pid is not None}


def begun(tmp_path: Path) -> Counter[str]:
    """How often each job has begun."""
    file = tmp_path / "begun"
    return Counter(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else Counter()


def test_jobs_run_in_all_processes_and_sigterm_leaves_none_of_them_active(
    start: Start, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    parent = start("--processes", "2", "--concurrency", "5", "--stop-after", "0.5")
    eventually(lambda: len(pids(queue)) == 2, 60)
    assert parent.pid not in (processes := pids(queue))
    jobs = [queue.add("sleep", 0.2) for _ in range(20)]
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 20, 20)
    assert {job.result for one in jobs if (job := queue.get_job(one))} == processes
    assert max(begun(tmp_path).values()) == 1
    log = (tmp_path / "log").read_text()
    assert "[1] worker gmo-worker-" in log
    assert "up to 3 jobs at a time" in log
    assert "up to 2 jobs at a time" in log
    running = [queue.add("sleep", 60) for _ in range(6)]
    eventually(lambda: queue.counts()[JobState.ACTIVE] == 5, 20)
    parent.terminate()
    assert parent.wait(20) == 0
    assert (queue.counts()[JobState.ACTIVE], queue.counts()[JobState.WAITING]) == (0, 6)
    assert [job.attempts_made for one in running if (job := queue.get_job(one))] == [0] * 6
    assert all(map(is_gone, processes))
    assert not queue.workers()


def test_a_killed_process_is_replaced_and_its_job_runs_again(
    start: Start, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    parent = start("--processes", "2", "--lease", "1")
    eventually(lambda: len(pids(queue)) == 2, 60)
    job_id = queue.add("sleep", 1)
    eventually(lambda: begun(tmp_path)[job_id] == 1, 20)
    victim = int((tmp_path / "begun").read_text().split()[1])
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(pids(queue) - {victim}) == 2, 20)
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 1, 20)
    log = (tmp_path / "log").read_text()
    assert f"(pid {victim}) was killed by SIGKILL" in log
    assert "; another one starts in 0.5 s" in log
    assert parent.poll() is None


def test_processes_drain_when_their_parent_was_killed(
    start: Start, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    parent = start("--processes", "2")
    eventually(lambda: len(pids(queue)) == 2, 60)
    processes, job_id = pids(queue), queue.add("sleep", 1)
    eventually(lambda: begun(tmp_path)[job_id] == 1, 20)
    parent.kill()
    eventually(lambda: all(map(is_gone, processes)), 20)
    job = queue.get_job(job_id)
    assert job is not None
    assert (job.state, begun(tmp_path)[job_id]) == ("completed", 1)
    assert not queue.workers()


def test_a_flow_runs_through_processes_that_are_replaced_all_the_time(
    url: str, start: Start, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    start("--processes", "2", "--concurrency", "4", "--max-jobs", "12")
    eventually(lambda: len(pids(queue)) == 2, 60)
    names = [f"n{number}" for number in range(150)]
    nodes = [
        FlowNode(name, job="sleep", data=0.05, after=names[max(at - 8, 0) : max(at - 7, 0)])
        for at, name in enumerate(names)
    ]
    with FlowProducer(url) as flows:
        outcome = flows.submit(FlowSpec("many", nodes, queue="etl"), flow_id="f").wait(timeout=60)
        attempts = {node.name: node.attempts + node.lost_attempts for node in flows.get("f").nodes()}
    assert set(outcome.results) == set(names)
    assert set(attempts.values()) == {1}
    assert Counter(begun(tmp_path).values()) == {1: 150}
    assert len(set(outcome.results.values())) >= 4
    log = (tmp_path / "log").read_text()
    marks = [line for line in log.splitlines() if " is replaced " in line or "serves queues" in line][2:]
    assert [" is replaced " in line for line in marks] == [at % 2 == 0 for at in range(len(marks))]
    assert "ERROR" not in log


@pytest.mark.long
def test_a_process_over_its_memory_is_replaced_when_its_jobs_have_ended(
    start: Start, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    start("--processes", "1", "--max-memory", "200MB")
    eventually(lambda: len(pids(queue)) == 1, 60)
    (first,) = pids(queue)
    running = queue.add("sleep", 2)
    eventually(lambda: begun(tmp_path)[running] == 1, 20)
    queue.add("keep", 200_000_000)
    eventually(lambda: "is replaced when its jobs have ended: it uses" in (tmp_path / "log").read_text(), 20)
    last = queue.add("sleep", 0)
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 3, 30)
    results = [job.result for one in (running, last) if (job := queue.get_job(one))]
    assert results[0] == first
    assert results[1] != first
    assert set(begun(tmp_path).values()) == {1}


def test_with_one_process_there_is_no_parent(start: Start, queue: Queue) -> None:
    worker = start("--processes", "1")
    assert queue.add_and_wait("sleep", 0, timeout=60) == worker.pid


def test_an_app_that_cannot_be_imported_ends_the_command(start: Start, tmp_path: Path) -> None:
    assert start("--processes", "2", app="import nothing_of_the_kind").wait(60) == 2
    assert "app imports nothing_of_the_kind, which is not installed" in (tmp_path / "log").read_text()
    assert "worker process" not in (tmp_path / "log").read_text()


def test_a_process_that_says_why_it_cannot_start_ends_the_command(start: Start, tmp_path: Path) -> None:
    app = f"{APP}\n@handlers.on_start\ndef start():\n    os._exit(9)\n"
    assert start("--processes", "2", app=app).wait(60) == 9
    assert "has ended with exit code 9 before it was ready, so all end" in (tmp_path / "log").read_text()


@pytest.mark.long
def test_so_does_one_that_is_killed_at_each_start(start: Start, tmp_path: Path) -> None:
    app = f"{APP}\n@handlers.on_start\ndef start():\n    os.kill(os.getpid(), 9)\n"
    begun_at = time.monotonic()
    assert start("--processes", "2", app=app).wait(60) == 128 + 9
    assert time.monotonic() - begun_at > 7, "it waits longer each time"
    assert (tmp_path / "log").read_text().count("was killed by SIGKILL before it was ready") == 5


@pytest.mark.long
def test_they_are_spawned_beside_other_threads(
    start: Start, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    parent = start("--processes", "2", app=thread + APP)
    eventually(lambda: len(pids(queue)) == 2, 60)
    assert queue.add_and_wait("sleep", 0, timeout=20) in pids(queue)
    assert "2 worker processes (spawned)" in (tmp_path / "log").read_text()
    parent.terminate()
    assert parent.wait(20) == 0


@pytest.mark.long
def test_a_change_of_the_code_restarts_them_and_a_broken_one_waits_for_the_next(
    start: Start, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    def log() -> str:
        return (tmp_path / "log").read_text()

    answer = "\n@handlers.handler\ndef answer(ctx):\n    return {}\n"
    parent = start("--reload", app=APP + answer.format(1))
    assert queue.add_and_wait("answer", timeout=60) == 1
    (tmp_path / "app.py").write_text(APP + answer.format("(((("))
    eventually(lambda: "it starts again after the next change" in log(), 30)
    assert "SyntaxError: '(' was never closed" in log()
    (tmp_path / "app.py").write_text(APP + answer.format(3))
    assert queue.add_and_wait("answer", timeout=60) == 3
    parent.send_signal(signal.SIGINT)
    assert parent.wait(20) == 0


def test_a_function_starts_them_in_python(
    url: str, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
            import sys
            from functools import partial
            from app import handlers
            from glidemq_orchestrate import Worker
            from glidemq_orchestrate.worker import run_processes

            if __name__ == "__main__":
                make = partial(Worker, sys.argv[1], queues=["etl"], handlers=handlers)
                sys.exit(run_processes(make, 2, max_jobs=100, metrics_port=int(sys.argv[2])))
        """)
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with spawned([sys.executable, tmp_path / "main.py", url, str(port)], cwd=tmp_path) as parent:
        eventually(lambda: len(pids(queue)) == 2, 60)
        assert queue.add_and_wait("sleep", 0) in pids(queue)
        eventually(lambda: "_places 20.0" in httpx.get(f"http://127.0.0.1:{port}/metrics").text, 20)
        parent.terminate()
        assert parent.wait(20) == 0
