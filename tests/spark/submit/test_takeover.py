"""The driver of a program outlives its worker; the next one on the machine takes it over."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, Queue
from glidemq_orchestrate.runs import Duration
from glidemq_orchestrate.spark.submit.application import JOB_NAME
from glidemq_orchestrate.spark.submit.handler import DriverFailed, run_application
from glidemq_orchestrate.worker.handlers.context import Cancelled
from tests.conftest import Eventually
from tests.processes import spawned
from tests.spark.conftest import Run
from tests.spark.submit.machine import drivers_of, kept, move

pytestmark = pytest.mark.usefixtures("_spark_environment")

WORKER = """
import sys
from datetime import timedelta
from glidemq_orchestrate import Worker
from glidemq_orchestrate.spark.submit import handlers
seconds = {"lease": timedelta(seconds=2), "shutdown_timeout": timedelta(seconds=1)}
Worker(sys.argv[1], queues=["spark"], handlers=handlers, **seconds).run()
"""
RUNS = """
import json, os, sys, time
folder = sys.argv[1]
open(f"{folder}/runs", "a").write(os.environ["GLIDEMQ_JOB"] + "\\n")
print("first line", flush=True)
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.05)
print("last line", flush=True)
json.dump(sys.argv[2], open(os.environ["GLIDEMQ_RESULT"], "w"))
sys.exit(int(os.path.exists(f"{folder}/fails")))
"""


class Taken:
    """A job whose program runs until it may end, and the workers that have it."""

    def __init__(self, url: str, folder: Path, eventually: Eventually) -> None:
        (folder / "program.py").write_text(RUNS)
        self.url, self.folder, self.eventually = url, folder, eventually
        self.data = {"application": str(folder / "program.py"), "args": [str(folder), "result"]}

    @property
    def runs(self) -> list[Any]:
        """What each run of the program has been told."""
        file = self.folder / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add(self, queue: Queue, **options: Any) -> str:
        """Add the job."""
        return queue.add(JOB_NAME, self.data, options=JobOptions(**options))

    def completes(self, queue: Queue, job: str) -> None:
        """Wait until the job has completed, and nothing is kept any more."""
        self.eventually(lambda: queue.get_job(job).state == "completed", timeout=60)
        self.eventually(lambda: kept() == [], timeout=10)

    def taken_over(self, queue: Queue, job: str) -> int:
        """How often a worker has taken over its driver."""
        return str(queue.logs(job).lines).count("took over the driver")

    def has_run_once(self, queue: Queue, job: str) -> None:
        """Check that all of a single run has reached the job."""
        assert queue.get_job(job).result == "result"
        assert [run["attempt"] for run in self.runs] == [1], "the program ran once"
        lines = [line for line in queue.logs(job).lines if " line" in line]
        assert sorted(set(lines)) == ["first line", "last line"]
        assert len(lines) - len(set(lines)) <= 1, "a line may be there twice after a kill"

    def lose_worker(self, number: int = signal.SIGKILL) -> None:
        """Start a worker, and end it when the program runs."""
        with spawned([sys.executable, "-c", WORKER, self.url]) as worker:
            self.eventually(lambda: self.runs, timeout=60)
            time.sleep(0.3)
            worker.send_signal(number)
            worker.wait(30)


@pytest.fixture
def taken(url: str, folder: Path, eventually: Eventually) -> Iterator[Taken]:
    made = Taken(url, folder, eventually)
    yield made
    (folder / "go").touch()


def test_the_next_worker_takes_over_the_driver_of_one_that_is_gone(taken: Taken) -> None:
    """One was killed, and the next one stopped."""
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker()
        for count in (1, 2):
            with spawned([sys.executable, "-c", WORKER, taken.url]) as worker:
                taken.eventually(lambda: taken.taken_over(queue, job) == count, timeout=60)  # noqa: B023  now
                if count == 1:
                    worker.send_signal(signal.SIGTERM)
                    worker.wait(30)
                else:
                    (taken.folder / "go").touch()
                    taken.completes(queue, job)
        taken.has_run_once(queue, job)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_ends_while_no_worker_is_there_is_taken_over(taken: Taken, number: int) -> None:
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker(number)
        (taken.folder / "go").touch()
        taken.eventually(lambda: any(folder.code == 0 for folder in kept()), timeout=10)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: taken.taken_over(queue, job) == 1, timeout=60)
            taken.completes(queue, job)
        taken.has_run_once(queue, job)


@pytest.mark.long
def test_a_driver_that_fails_while_no_worker_is_there_fails_the_attempt(taken: Taken) -> None:
    (taken.folder / "fails").touch()
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker()
        (taken.folder / "go").touch()
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: queue.get_job(job).state == "failed", timeout=60)
        assert str(queue.get_job(job).failed_reason).endswith("ended with exit code 1: last line")
    assert len(taken.runs) == 1


@pytest.mark.long
def test_a_node_of_a_flow_that_was_restarted_takes_nothing_over(taken: Taken) -> None:
    """The flow was restarted: the driver of before is ended first."""
    with FlowProducer(taken.url) as flows:
        flow = flows.submit(
            FlowSpec("f", [FlowNode("n", queue="spark", job=JOB_NAME, data=taken.data)]), flow_id="f"
        )
        taken.lose_worker()
        flow.restart()
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: len(taken.runs) == 2, timeout=60)
            assert len(kept()) == len(drivers_of(taken.folder)) == 1
            (taken.folder / "go").touch()
            assert flow.wait(timeout=timedelta(seconds=60)).status.state == "completed"
            taken.eventually(lambda: kept() == [], timeout=10)
        assert taken.runs[0]["job_id"] != taken.runs[1]["job_id"]


@pytest.mark.long
@pytest.mark.parametrize("patience", ["0", "1"])
def test_a_driver_ends_when_no_worker_comes_and_the_next_one_runs_it_again(
    taken: Taken, monkeypatch: pytest.MonkeyPatch, patience: str
) -> None:
    monkeypatch.setenv("GLIDEMQ_SPARK_DRIVER_PATIENCE", patience)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{taken.folder}/one,{taken.folder}/two")
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker()
        taken.eventually(lambda: kept() == [], timeout=30)
        assert not list(taken.folder.glob("*/glidemq-spark-*"))
        assert drivers_of(taken.folder) == []
        (taken.folder / "go").touch()
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.completes(queue, job)
    assert len(taken.runs) == 2


@pytest.mark.long
def test_a_killed_keeper_ends_its_driver_and_fails_the_attempt(taken: Taken) -> None:
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: taken.runs, timeout=60)
            progress: Any = queue.get_job(job).progress
            os.kill(progress["pid"], signal.SIGKILL)
            taken.eventually(lambda: queue.get_job(job).state == "failed", timeout=60)
        assert "the keeper of its driver was killed" in str(queue.get_job(job).failed_reason)
        assert (drivers_of(taken.folder), kept()) == ([], [])


KILLED = WORKER.replace(
    "Worker(",
    """
import os
from glidemq_orchestrate import Middleware

class Dies(Middleware):
    async def around(self, execution, proceed):
        await proceed()
        os.kill(os.getpid(), 9)

Worker(""",
).replace("**seconds", "middleware=[Dies()], **seconds")


@pytest.mark.long
def test_a_result_on_its_way_is_not_lost_with_its_worker(taken: Taken) -> None:
    (taken.folder / "go").touch()
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        with spawned([sys.executable, "-c", KILLED, taken.url]) as worker:
            assert worker.wait(60) == -signal.SIGKILL
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.completes(queue, job)
            assert queue.get_job(job).result == "result"
    assert len(taken.runs) == 1


@pytest.mark.long
def test_a_driver_whose_folder_was_removed_ends(taken: Taken) -> None:
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: taken.runs, timeout=60)
            kept()[0].remove()
            taken.eventually(lambda: queue.get_job(job).state == "failed", timeout=60)
        taken.eventually(lambda: drivers_of(taken.folder) == [], timeout=20)


class Stopped(Cancelled):
    """Of an attempt in a process that is stopped, until it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it goes on, too."""
        self.goes_on.wait()
        return super().wait(timeout)


@pytest.mark.long
def test_a_stale_attempt_ends_nothing_of_the_next_one(make: Callable[..., Run], folder: Path) -> None:
    first, second = make(RUNS, str(folder), "x"), make(RUNS, str(folder), "x")
    first.ctx.cancelled = stopped = Stopped()
    second.ctx.epoch = first.ctx.epoch + 1
    with ThreadPoolExecutor(2) as threads:
        stale = threads.submit(run_application, first.ctx)
        _until((folder / "runs").exists)
        current = threads.submit(run_application, second.ctx)
        _until(lambda: len((folder / "runs").read_text().splitlines()) == 2)
        stopped.goes_on.set()
        with pytest.raises(DriverFailed):
            stale.result(30)  # its driver was ended
        time.sleep(0.3)
        (folder / "go").touch()
        assert current.result(30) == "x"


@pytest.mark.long
def test_a_driver_of_another_machine_is_waited_for(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is whatever has a folder for drivers of its own."""
    monkeypatch.setenv("GLIDEMQ_SPARK_DRIVER_PATIENCE", "1")
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker()
        lost = time.monotonic()
        move(taken.folder / "other", monkeypatch)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: len(taken.runs) == 2, timeout=60)
            assert time.monotonic() - lost > 16, "its patience, its grace and some slack"
            (taken.folder / "go").touch()
            taken.completes(queue, job)
        assert queue.get_job(job).attempts_made <= 1


def _until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)
