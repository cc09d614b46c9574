"""A handler that blocks its worker costs the jobs beside it nothing, and is named.

A process of its own renews the leases of a worker that cannot. It ends with its worker, and is replaced when
it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from glidemq_orchestrate import Broadcast, BroadcastWorker, Context, JobOptions, JobState, Queue, Worker
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.worker.renewing import Renewer
from tests.processes import end, runs, spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Eventually, RunWorker

APP = """
    import asyncio, time
    from glidemq_orchestrate import Handlers

    handlers = Handlers()

    @handlers.handler("on_loop")
    async def on_loop(ctx):
        time.sleep(2.5) if ctx.data else await asyncio.sleep(0.2)

    @handlers.handler("in_thread")
    def in_thread(ctx):  # keeps the interpreter, in C
        sum(range(2 * 10**8 if ctx.data else 0))

    @handlers.handler("sleep")
    def sleep(ctx):
        time.sleep(ctx.data)
"""


def renewers(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(worker.pid).children():
        with contextlib.suppress(psutil.Error):  # it ends just now
            found += [child] if any("renewing_process.py" in word for word in child.cmdline()) else []
    return found


def has_completed(queue: Queue, ids: list[Any]) -> bool:
    return all(state is JobState.COMPLETED for state in queue.states(ids))


def is_logged(log: Path, pattern: str) -> bool:
    return re.search(pattern, log.read_text()) is not None


@pytest.fixture
def start(
    url: str, redis_client: Any, eventually: Eventually, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a worker of the command line with a lease of a second."""
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    started = []

    def one(lock: int = 1) -> subprocess.Popen[bytes]:
        before = redis_client.zcard("glide:{etl}:gmo:workers")
        program = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "app", "--queue", "etl"]
        program += ["--url", url, "--lease", str(lock), "--processes", "1"]
        with (tmp_path / "log").open("ab") as log:
            process = spawn(program, cwd=tmp_path, stderr=log)
        started.append(process)
        eventually(lambda: redis_client.zcard("glide:{etl}:gmo:workers") > before, timeout=60)
        eventually(lambda: renewers(process), timeout=30)
        return process

    yield one
    for process in started:
        end(process)


def test_only_the_culprit_is_named_and_nobody_is_run_twice(
    start: Callable[[], subprocess.Popen[bytes]],
    queue: Queue,
    redis_client: Any,
    eventually: Eventually,
    tmp_path: Path,
) -> None:
    start(), start()
    for name in ("on_loop", "in_thread"):
        ids = [queue.add(name, number == 2) for number in range(6)]
        eventually(partial(has_completed, queue, ids), 60)
        assert [queue.get_job(job_id).lost_attempts for job_id in ids] == [0] * 6
        assert [redis_client.hget(f"glide:{{etl}}:job:{job_id}", "stalledCount") for job_id in ids] == [
            None
        ] * 6
        pattern = rf"handler {name} of job {ids[2]} .*: \d+\.\d s.*process=True"
        eventually(partial(is_logged, tmp_path / "log", pattern), 20)
    log = (tmp_path / "log").read_text()
    assert "was lost" not in log
    assert "stale" not in log


@pytest.mark.long
def test_a_neighbour_with_short_leases_ends_none_of_a_blocked_worker(
    start: Callable[..., subprocess.Popen[bytes]], url: str, queue: Queue, eventually: Eventually
) -> None:
    start(20)
    with Worker(url, queues=["etl"], lease=timedelta(seconds=1), only_known=True).running():
        ids = [queue.add("sleep", 4) for _ in range(3)]
        eventually(lambda: [str(state) for state in queue.states(ids)] == ["active"] * 3, 20)
        blocks = queue.add("on_loop", 1)
        eventually(partial(has_completed, queue, [*ids, blocks]), 60)
    assert [queue.get_job(job_id).lost_attempts for job_id in ids] == [0] * 3


@pytest.mark.long
def test_a_job_with_a_short_lease_of_its_own_keeps_it(
    start: Callable[..., subprocess.Popen[bytes]], url: str, queue: Queue, eventually: Eventually
) -> None:
    worker = start(30)
    keep = queue.add("sleep", 9, options=JobOptions(lease=timedelta(seconds=2)))
    eventually(lambda: queue.get_job(keep).state is JobState.ACTIVE, 20)
    (renewer,) = renewers(worker)
    eventually(lambda: renewer.memory_info().rss > 20 * 1024 * 1024, 20)  # it has imported what it needs
    blocks = queue.add("on_loop", 1)
    with Worker(url, queues=["etl"], lease=timedelta(seconds=3), only_known=True).running():
        eventually(partial(has_completed, queue, [keep, blocks]), 60)
    assert queue.get_job(keep).lost_attempts == 0


def test_a_stopped_worker_loses_its_leases_and_a_dead_one_has_no_renewer(
    start: Callable[[], subprocess.Popen[bytes]], queue: Queue, eventually: Eventually
) -> None:
    first = start()
    job_id = queue.add("sleep", 2)
    eventually(lambda: queue.get_job(job_id).state is JobState.ACTIVE, 20)
    (renewer,) = renewers(first)
    assert "://" not in " ".join(
        [*renewer.cmdline(), *(v for k, v in renewer.environ().items() if "GLIDEMQ" in k)]
    )
    first.send_signal(signal.SIGSTOP)
    start()
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    assert queue.get_job(job_id).lost_attempts == 1
    first.kill()
    eventually(lambda: not runs(renewer), 5)


@pytest.mark.long
def test_a_stopped_worker_does_not_take_jobs_from_itself(
    start: Callable[[], subprocess.Popen[bytes]], queue: Queue, eventually: Eventually
) -> None:
    worker = start()
    ids = [queue.add("sleep", 1) for _ in range(4)]
    eventually(lambda: queue.states(ids) == [JobState.ACTIVE] * 4, 20)
    worker.send_signal(signal.SIGSTOP)
    time.sleep(2)  # longer than the lease, and than the handlers take
    worker.send_signal(signal.SIGCONT)
    eventually(partial(has_completed, queue, ids), 20)
    assert [queue.get_job(job_id).lost_attempts for job_id in ids] == [0] * 4


AHEAD = """
    import sys, time
    from datetime import timedelta
    from glidemq_orchestrate import Worker

    second = timedelta(seconds=1)
    worker = Worker(sys.argv[1], queues=["etl"], concurrency=1, prefetch=50, lease=second)

    @worker.handler("work")
    async def work(ctx):
        print(ctx.job_id, flush=True)
        time.sleep(0.02)

    worker.run()
"""


def test_a_stopped_worker_that_goes_on_runs_no_jobs_of_others(
    url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path
) -> None:
    (tmp_path / "ahead.py").write_text(textwrap.dedent(AHEAD))
    ids, log = [queue.add("work") for _ in range(100)], tmp_path / "ran"
    with log.open("wb") as file:
        worker = spawn([sys.executable, "ahead.py", url], cwd=tmp_path, stdout=file)
    try:
        eventually(lambda: len(log.read_text().split()) > 20, 30)
        worker.send_signal(signal.SIGSTOP)
        before = len(log.read_text().split())
        run_worker(["etl"], {"work": lambda _: None}, lease=timedelta(seconds=1))
        eventually(partial(has_completed, queue, ids), 30)
        worker.send_signal(signal.SIGCONT)
        new = queue.add("work")
        eventually(partial(has_completed, queue, [new]), 30)
        time.sleep(1)
        again = set(log.read_text().split()[before:]) - {str(new)}
        assert len(again) <= 1, "one may be about to begin when the process is stopped"
    finally:
        end(worker)


@pytest.mark.long
def test_a_killed_renewer_is_replaced_and_ends_with_the_worker(
    start: Callable[[], subprocess.Popen[bytes]], eventually: Eventually
) -> None:
    worker = start()
    (first,) = renewers(worker)
    first.kill()
    eventually(lambda: [one for one in renewers(worker) if one.pid != first.pid], 10)
    (second,) = renewers(worker)
    second.suspend()
    worker.terminate()
    assert worker.wait(30) == 0
    eventually(lambda: not runs(second), 5)


@pytest.mark.long
def test_messages_of_a_blocked_subscription_keep_their_leases(url: str, eventually: Eventually) -> None:
    second, ran = timedelta(seconds=1), list[str]()

    async def block(ctx: Context) -> None:
        ran.append(ctx.job_id)
        await asyncio.sleep(0.2)
        time.sleep(2.5 if ctx.data else 0)  # noqa: ASYNC251  the defect

    workers = [
        BroadcastWorker("news", block, url, subscription="s", lease=second, start_from="0-0")
        for _ in range(2)
    ]
    with Broadcast("news", url) as news, workers[0].running():
        ids = [news.publish("a", number == 1) for number in range(3)]
        eventually(lambda: len(ran) == 3, 20)
        with workers[1].running():
            eventually(lambda: all(news.states(one)["s"].state == "completed" for one in ids), 20)
    assert sorted(ran) == sorted(ids)


def test_it_is_light_and_no_forked_copy_keeps_it(url: str, eventually: Eventually) -> None:
    settings = ConnectionSettings.resolve(url)
    renewer = Renewer("gmo-worker-1-a", ["etl"], settings, 30.0)
    try:
        renewer.start()
        assert renewer.renewed()
        process = psutil.Process(renewer.pid)
        time.sleep(0.3)
        assert process.memory_info().rss < 20 * 1024 * 1024
        child = os.fork()
        if not child:
            os._exit(0 if renewer.pid is None else 1)  # it is its parent's
        assert os.waitpid(child, 0)[1] == 0
        assert renewer.renewed()
    finally:
        renewer.close()
    assert not process.is_running()
    renewer.start()
    assert renewer.pid is None, "a worker that ends starts no other"
