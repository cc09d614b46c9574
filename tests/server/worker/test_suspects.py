"""Jobs of lost workers beside each other: each loss makes them fewer, until the one that kills is alone."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, JobState, Queue, Worker
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.processes import spawned

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

KILLER = """
    import asyncio, os, signal, sys
    from datetime import timedelta
    from glidemq_orchestrate import Worker

    worker = Worker(sys.argv[1], queues=["etl"], lease=timedelta(seconds=1), max_stalled=1, max_suspects=64)

    @worker.handler("hold")
    async def hold(ctx):
        if ctx.data == "kill":
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(1)

    worker.run()
"""

BESIDE = {1: 16, 2: 2, 3: 1, 1_000_000: 1}
"""How many run beside each other after so many losses, of at most 16."""


@pytest.fixture
def lost(queue: Queue, redis_client: Any) -> Callable[..., list[str]]:
    """Adds jobs as they are after the worker that ran them was lost, each as often as given."""

    def add(*losses: int) -> list[str]:
        queue.pause()
        ids: list[str] = [queue.add("hold") for _ in losses]
        for job_id, count in zip(ids, losses, strict=True):
            marks = {"gmo:suspect": count, "gmo:lost": count}
            redis_client.hset(f"glide:{{etl}}:job:{job_id}", mapping=marks)
        queue.resume()
        return ids

    return add


@pytest.mark.parametrize("losses", BESIDE)
def test_each_loss_lets_fewer_suspects_run_beside_each_other(
    queue: Queue,
    lost: Callable[..., list[str]],
    run_worker: RunWorker,
    eventually: Eventually,
    losses: int,
) -> None:
    running, go, beside = list[str](), threading.Event(), BESIDE[losses]

    def hold(ctx: Context) -> None:
        running.append(ctx.job_id)
        assert go.wait(30)

    ids = lost(*[losses] * 20)
    run_worker(["etl"], {"hold": hold}, concurrency=20, max_suspects=16)
    eventually(lambda: len(running) == beside, 20)
    time.sleep(0.5)
    assert len(running) == beside
    go.set()
    eventually(lambda: set(queue.states(ids)) == {JobState.COMPLETED}, 20)
    assert len(running) == 20


def test_the_one_with_the_most_losses_runs_alone(
    queue: Queue, lost: Callable[..., list[str]], run_worker: RunWorker, eventually: Eventually
) -> None:
    running, beside, changing = set[str](), dict[str, int](), threading.Lock()

    def hold(ctx: Context) -> None:
        with changing:
            running.add(ctx.job_id)
            for job_id in running:
                beside[job_id] = max(beside.get(job_id, 0), len(running))
        time.sleep(0.3)
        with changing:
            running.discard(ctx.job_id)

    ids = lost(1, 1, 1, 1, 3, 1, 1, 1, 1)
    run_worker(["etl"], {"hold": hold}, concurrency=20, max_suspects=64)
    eventually(lambda: set(queue.states(ids)) == {JobState.COMPLETED}, 20)
    assert beside.pop(ids[4]) == 1
    assert max(beside.values()) > 1


@pytest.mark.long
def test_a_job_that_kills_its_workers_fails_and_takes_none_of_those_beside_it(
    url: str, queue: Queue, eventually: Eventually, tmp_path: Path
) -> None:
    program = tmp_path / "killed.py"
    program.write_text(textwrap.dedent(KILLER))
    killer = queue.add("hold", "kill")
    others = [queue.add("hold", number) for number in range(9)]

    def has_ended() -> bool:
        return all(state and state.is_terminal for state in queue.states([killer, *others]))

    with Supervisor(url, queues=["etl"], lease=timedelta(seconds=1), max_stalled=1).running():
        for _ in range(5):  # all ten at once, all again, eight, one, and none
            with spawned([sys.executable, program, url]) as worker:
                eventually(lambda: worker.poll() is not None or has_ended(), 40)
    assert queue.get_job(killer).failed_reason == "job stalled more than maxStalledCount"
    assert set(queue.states(others)) == {JobState.COMPLETED}


@pytest.mark.parametrize("most", [0, -1, 1.5, True])
def test_at_least_one_suspect_runs(most: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_suspects"):
        Worker("valkey://127.0.0.1:1", queues=["etl"], max_suspects=most)
