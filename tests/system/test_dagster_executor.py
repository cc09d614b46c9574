"""What kills do to runs and steps of Dagster: of workers, of run workers, of the server, of the code."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._core.definitions.metadata.metadata_value import CodeLocationReconstructionMetadataValue
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.repository_definition import RepositoryLoadData
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.monitoring.run_monitoring import (
    RESUME_RUN_LOG_MESSAGE,
    execute_run_monitoring_iteration,
)
from dagster_glidemq.step_job import STEP_JOB, run_job_id, step_job_id

from glidemq_orchestrate import EmbeddedServer, JobState, Queue
from tests.processes import is_gone, runs
from tests.providers.dagster.stepping import MODULE, Steps, failure, kinds, place_of, wait_for

pytestmark = [pytest.mark.system, pytest.mark.long]

LAUNCHER = {
    "module": "dagster_glidemq.launcher",
    "class": "GlideMQRunLauncher",
    "config": {"url": {"env": "GLIDEMQ_URL"}, "lease": 1.0, "grace": 10.0},
}
MONITORING = {"enabled": True, "max_resume_run_attempts": 2, "start_timeout_seconds": 60}
RUNS = ("--queue", "dagster-runs", "--concurrency", "3", "--lease", "2")


@pytest.fixture
def steps(server: EmbeddedServer, tmp_path: Path) -> Iterator[Steps]:
    with place_of(server, tmp_path) as place:
        yield place


@pytest.fixture
def launched(server: EmbeddedServer, tmp_path: Path) -> Iterator[Steps]:
    """Runs are launched as jobs, and monitored."""
    with place_of(server, tmp_path, run_launcher=LAUNCHER, run_monitoring=MONITORING) as place:
        yield place


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Do it in a thread meanwhile; what it raises is raised at the end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as exc:  # noqa: BLE001  raised below
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    if raised:
        raise raised[0]


def launch(steps: Steps, name: str, **tags: str) -> str:
    """Launch a run as the daemon and the webserver do."""
    job = ReconstructableRepository.for_module(MODULE, "defs").get_reconstructable_job(name)
    run = steps.instance.create_run_for_job(
        job.get_definition(), job_code_origin=job.get_python_origin(), tags=tags
    )
    steps.instance.launch_run(run.run_id, None)  # type: ignore[arg-type]  # our launcher needs no workspace
    return run.run_id


def status(steps: Steps, run_id: str) -> dg.DagsterRunStatus:
    run = steps.instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def told(steps: Steps, run_id: str) -> Callable[[], str]:
    def tell() -> str:
        logs = [file.read_text()[-4000:] for file in steps.path.glob("worker-*.log")]
        return "\n".join([entry.message for entry in steps.instance.all_logs(run_id)][-20:] + logs)

    return tell


def is_quiet(queue: Queue) -> bool:
    return not queue.get_jobs(JobState.ACTIVE)


def monitor(steps: Steps) -> None:
    """One round of Dagster's run monitoring."""
    with WorkspaceProcessContext(steps.instance, EmptyWorkspaceTarget()) as context:
        errors = list(execute_run_monitoring_iteration(context, logging.getLogger(__name__)))
    assert not any(errors), errors


def test_the_steps_of_a_killed_worker_die_with_it_and_do_not_succeed(steps: Steps) -> None:
    def kill() -> None:
        (pid,) = wait_for(lambda: steps.noted("held"), 60)
        steps.workers[0].kill()
        steps.workers[0].wait()
        wait_for(lambda: is_gone(pid), 5)
        (steps.path / "release").touch()

    with steps.worker(), beside(kill):
        succeeded, _, events = steps.run("holding", raise_on_error=False)
    assert not succeeded
    assert "the worker that ran it was lost" in failure(events, "held")
    assert kinds(events, "held") == ["STEP_START", "STEP_FAILURE"]
    assert not steps.noted("released")


def test_a_lost_step_runs_again_only_by_its_retry_policy(steps: Steps) -> None:
    def kill() -> None:
        wait_for(lambda: steps.noted("held_with_retry"), 60)
        first.kill()
        first.wait()
        os.kill(steps.workers[1].pid, signal.SIGCONT)

    with steps.worker() as first, steps.worker():
        # The second worker takes the lost job too, and refuses it.
        os.kill(steps.workers[1].pid, signal.SIGSTOP)
        with beside(kill):
            succeeded, run, events = steps.run("holding_with_retry", raise_on_error=False)
        assert succeeded, told(steps, run.run_id)()
        expected = ["STEP_START", "STEP_UP_FOR_RETRY", "STEP_RESTARTED", "STEP_SUCCESS"]
        assert kinds(events, "held_with_retry") == expected
        assert len(steps.noted("held_with_retry")) == 2


def test_a_run_goes_on_after_the_server_was_away(tmp_path: Path) -> None:
    with ExitStack() as servers:
        first = servers.enter_context(EmbeddedServer(data_dir=tmp_path / "data"))
        port = int(first.url.rpartition(":")[2])

        def restart() -> None:
            wait_for(lambda: place.noted("extract"), 60)
            first.stop()
            servers.enter_context(EmbeddedServer(data_dir=tmp_path / "data", port=port))

        with place_of(first, tmp_path) as place, place.worker():
            with beside(restart):
                succeeded, run, _ = place.run("everything", raise_on_error=False)
            assert succeeded, told(place, run.run_id)()
            assert len(place.noted("extract")) == 1


def test_a_changed_file_is_imported_anew(steps: Steps, tmp_path: Path) -> None:
    file = tmp_path / "edited.py"
    code = Path(__file__).parents[1] / "providers" / "dagster" / "steps_app.py"
    file.write_text(code.read_text().replace("given * 10", "given * 10000"))
    repository = ReconstructableRepository.for_file(str(file), "defs", str(tmp_path))

    def collected() -> Any:
        with dg.execute_job(repository.get_reconstructable_job("everything"), steps.instance) as result:
            assert result.success
            return result.output_for_node("collect")

    with steps.worker():
        assert collected() == 20002
        (steps.path / "flaky").unlink()
        file.write_text(code.read_text().replace("given * 10", "given * 30"))
        assert collected() == 62
        (run,) = steps.instance.get_runs(limit=1)
        begun = steps.begun(repository, "everything")
        file.write_text("def broken(:")
        with steps.queue() as queue:
            data: Any = queue.get_job(step_job_id(run.run_id, "collect", 0)).data
            job_id = queue.add(STEP_JOB, {**data, "run_id": begun})
            wait_for(lambda: queue.get_job(job_id).state is JobState.FAILED, 60)
            assert "cannot load the code of the run: SyntaxError" in str(queue.get_job(job_id).failed_reason)
        assert any("SyntaxError" in event.message for event in steps.events(begun) if event.message)


CODE = """
import json, os
from pathlib import Path
import dagster as dg
from dagster_glidemq import glidemq_executor
HERE = Path(__file__).parent
REGION = json.loads((HERE / "conf.json").read_text())["region"]
COLOUR = os.environ.get("COLOUR")
# more
@dg.op
def say() -> str:
    with (HERE / "imports.log").open("a") as file:
        file.write(f"{os.getppid()}\\n")
    return f"{REGION} {COLOUR}"
@dg.job(executor_def=glidemq_executor)
def saying() -> None:
    say()
defs = dg.Definitions(jobs=[saying])
"""


@dataclass
class Location:
    """A code location whose files a test changes."""

    steps: Steps
    path: Path

    def say(self, found: RepositoryLoadData | None = None) -> tuple[Any, list[str]]:
        """What the op says in a new run, and what the log says of the import.

        Args:
            found: What the code server has found out for the run.
        """
        repository = ReconstructableRepository.for_file(
            str(self.path / "warm_location.py"), "defs", str(self.path)
        )
        job = repository.get_reconstructable_job("saying").with_repository_load_data(found)
        with dg.execute_job(job, self.steps.instance) as result:
            assert result.success, told(self.steps, result.run_id)()
            assert result.dagster_run.has_repository_load_data is (found is not None)
            logs = [entry.message for entry in self.steps.instance.all_logs(result.run_id)]
            return result.output_for_node("say"), [line for line in logs if "Importing the code" in line]


@pytest.fixture
def location(steps: Steps, tmp_path: Path) -> Location:
    path = tmp_path / "location"
    path.mkdir()
    (path / "warm_location.py").write_text(CODE)
    (path / "conf.json").write_text('{"region": "eu"}')
    return Location(steps, path)


def test_a_later_run_has_the_settings_of_its_time(steps: Steps, location: Location) -> None:
    with steps.worker():
        assert location.say() == ("eu None", [])
        (location.path / "conf.json").write_text('{"region": "us"}')
        assert location.say() == ("us None", [])
        (location.path / ".env").write_text("COLOUR=red")
        assert location.say() == ("us red", [])


def test_runs_that_a_code_server_launches_share_an_import(steps: Steps, location: Location) -> None:
    metadata = {"table": CodeLocationReconstructionMetadataValue("orders")}
    found = RepositoryLoadData(reconstruction_metadata=metadata)
    with steps.worker():
        location.say(found)
        location.say(found)
    first, second = (location.path / "imports.log").read_text().splitlines()
    assert first == second


WIDE = """
import json, os
from pathlib import Path
import dagster as dg
from dagster_glidemq import glidemq_executor
HERE = Path(__file__).parent
SEEN = (HERE / "seen.txt").read_text()
@dg.op(out=dg.DynamicOut(int))
def spread():
    for number in range(12):
        yield dg.DynamicOutput(number, mapping_key=str(number))
@dg.op
def double(number: int) -> int:
    return number * 2
@dg.op
def total(numbers: list[int]) -> int:
    return sum(numbers)
@dg.job(executor_def=glidemq_executor)
def saying() -> None:
    total(spread().map(double).collect())
defs = dg.Definitions(jobs=[saying])
"""


def test_what_an_import_reads_may_change_all_the_time(steps: Steps, location: Location) -> None:
    def change() -> None:
        while not done.wait(0.01):
            with seen.open("a") as file:
                file.write("x")

    code, seen, done = location.path / "warm_location.py", location.path / "seen.txt", threading.Event()
    code.write_text(WIDE)
    seen.touch()
    repository = ReconstructableRepository.for_file(str(code), "defs", str(location.path))
    many = steps.worker("--queue", "dagster-steps", "--concurrency", "12", "--lease", "2")
    job = repository.get_reconstructable_job("saying")
    with many, beside(change):
        try:
            with dg.execute_job(job, steps.instance) as result:
                assert result.success, told(steps, result.run_id)()
        finally:
            done.set()


# The test imports the location too.
OPEN = """
import sqlite3, sys
from concurrent.futures import ThreadPoolExecutor
if "pytest" not in sys.modules:
    POOL = ThreadPoolExecutor(1, "reader")
    POOL.submit(int).result()
    DATABASE = sqlite3.connect(HERE / "app.db")
    DATABASE.execute("CREATE TABLE IF NOT EXISTS t (n)")
"""


def test_steps_use_threads_and_databases_that_their_import_has_opened(
    steps: Steps, location: Location
) -> None:
    code = location.path / "warm_location.py"
    code.write_text(CODE.replace("# more", OPEN).replace("return f", "POOL.submit(int).result(); return f"))
    with steps.worker():
        said, logged = location.say()
        assert said == "eu None"
        (line,) = logged
        assert "the threads reader_0" in line
        assert str(location.path / "app.db") in line
        assert "Fix: " in line
        code.write_text(CODE)
        assert location.say() == ("eu None", [])


def test_the_warm_process_may_be_killed(steps: Steps) -> None:
    def kill() -> None:
        (pid,) = wait_for(lambda: steps.noted("held"), 60)
        warm = psutil.Process(pid).parent()
        assert warm is not None
        warm.kill()
        wait_for(lambda: is_gone(pid), 10)

    with steps.worker():
        with beside(kill):
            succeeded, _, events = steps.run("holding", raise_on_error=False)
        assert not succeeded
        assert "warm process of the worker has ended" in failure(events, "held")
        assert kinds(events, "held") == ["STEP_START", "STEP_FAILURE"]
        succeeded, _, _ = steps.run("everything")
        assert succeeded


def test_a_run_is_launched_and_its_steps_are_queued_beside_it(launched: Steps) -> None:
    with launched.worker(*RUNS), launched.worker():
        run_id = launch(launched, "everything")
        wait_for(lambda: status(launched, run_id).value == "SUCCESS", 90, told(launched, run_id))
        monitor(launched)
        with launched.queue("dagster-runs") as queue:
            wait_for(lambda: queue.get_job(run_job_id(run_id, 0)).state is JobState.COMPLETED, 10)


def test_a_run_that_fails_fails_its_job(launched: Steps) -> None:
    with launched.worker(*RUNS), launched.worker():
        run_id = launch(launched, "dying")
        wait_for(lambda: status(launched, run_id).value == "FAILURE", 90, told(launched, run_id))
        with launched.queue("dagster-runs") as queue:
            wait_for(lambda: queue.get_job(run_job_id(run_id, 0)).state is JobState.FAILED, 10)


def test_terminating_a_run_reaches_its_steps_although_it_might_be_resumed(launched: Steps) -> None:
    with launched.worker(*RUNS), launched.worker():
        run_id = launch(launched, "holding")
        (pid,) = wait_for(lambda: launched.noted("held"), 90, told(launched, run_id))
        assert launched.instance.run_launcher.terminate(run_id)
        wait_for(
            lambda: launched.noted("interrupted-DagsterExecutionInterruptedError"), 10, told(launched, run_id)
        )
        wait_for(lambda: status(launched, run_id).value == "CANCELED", 30, told(launched, run_id))
        wait_for(lambda: is_gone(pid), 10)
        wait_for(lambda: not launched.instance.run_launcher.terminate(run_id), 20)  # its process has ended
        for name in ("dagster-runs", "dagster-steps"):
            with launched.queue(name) as queue:
                wait_for(partial(is_quiet, queue), 20)


def test_a_run_goes_on_in_another_worker_and_its_step_runs_once(launched: Steps) -> None:
    with launched.worker():
        with launched.worker(*RUNS) as first:
            run_id = launch(launched, "holding")
            wait_for(lambda: launched.noted("held"), 90, told(launched, run_id))
            below = psutil.Process(first.pid).children(recursive=True)
            first.kill()
            first.wait()
            wait_for(lambda: not any(map(runs, below)), 10)
        with launched.worker(*RUNS):

            def is_resumed() -> bool:
                monitor(launched)
                run = launched.instance.get_run_by_id(run_id)
                return run is not None and run.tags["dagster-glidemq/job_id"] == run_job_id(run_id, 1)

            wait_for(is_resumed, 60, told(launched, run_id))
            time.sleep(3)
            monitor(launched)
            (launched.path / "release").touch()
            wait_for(lambda: status(launched, run_id).value == "SUCCESS", 60, told(launched, run_id))
    assert len(launched.noted("held")) == 1
    assert kinds(launched.events(run_id), "held") == ["STEP_START", "STEP_SUCCESS"]


@contextmanager
def paused(worker: subprocess.Popen[bytes]) -> Iterator[None]:
    """A worker whose machine is paused: all that it has started stands still."""
    below = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    for one in below:
        one.suspend()
    try:
        yield
    finally:
        for one in filter(runs, below):
            one.resume()


def test_a_paused_step_writes_nothing_beside_its_next_attempt(steps: Steps) -> None:
    def pause() -> None:
        (pid,) = wait_for(lambda: steps.noted("held_with_retry"), 60)
        with paused(first), steps.worker():
            wait_for(lambda: len(steps.noted("held_with_retry")) == 2, 120)
        wait_for(lambda: is_gone(pid), 20)

    with steps.worker() as first, beside(pause):
        succeeded, run, events = steps.run("holding_with_retry", raise_on_error=False)
    assert succeeded, told(steps, run.run_id)()
    expected = ["STEP_START", "STEP_UP_FOR_RETRY", "STEP_RESTARTED", "STEP_SUCCESS"]
    assert kinds(events, "held_with_retry") == expected


def test_a_run_whose_machine_was_paused_does_not_end_the_one_that_goes_on(launched: Steps) -> None:
    with launched.worker(), launched.worker(*RUNS) as first:
        run_id = launch(launched, "holding")
        wait_for(lambda: launched.noted("held"), 90, told(launched, run_id))
        below = [one for one in psutil.Process(first.pid).children(recursive=True) if runs(one)]

        def is_resumed() -> bool:
            monitor(launched)
            return "Resuming execution" in "".join(one.message or "" for one in launched.events(run_id))

        with launched.worker(*RUNS):
            with paused(first):
                # Of as many resumes as there may be: the last is not to be resumed.
                for _ in range(MONITORING["max_resume_run_attempts"] - 1):
                    launched.instance.report_engine_event(
                        RESUME_RUN_LOG_MESSAGE, run_id=run_id, job_name="holding"
                    )
                wait_for(is_resumed, 120, told(launched, run_id))
            wait_for(lambda: not any(map(runs, below[-1:])), 20)
            (launched.path / "release").touch()
            wait_for(lambda: status(launched, run_id).value == "SUCCESS", 60, told(launched, run_id))
    assert kinds(launched.events(run_id), "held") == ["STEP_START", "STEP_SUCCESS"]


def test_a_run_whose_process_is_killed_fails_without_run_monitoring(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with place_of(server, tmp_path, run_launcher=LAUNCHER) as place, place.worker(*RUNS) as worker:
        run_id = launch(place, "holding")
        started = wait_for(
            lambda: [e for e in place.events(run_id) if e.event_type_value == "PIPELINE_START"], 90
        )
        psutil.Process(started[0].pid).kill()
        wait_for(lambda: status(place, run_id).value == "FAILURE", 20, told(place, run_id))
        assert worker.poll() is None
        assert "ended by SIGKILL" in told(place, run_id)()


def test_a_run_whose_worker_was_lost_can_be_terminated(launched: Steps) -> None:
    with launched.worker():
        with launched.worker(*RUNS) as first:
            run_id = launch(launched, "holding")
            (pid,) = wait_for(lambda: launched.noted("held"), 90, told(launched, run_id))
            first.kill()
            first.wait()
        health = launched.instance.run_launcher.check_run_worker_health

        def is_lost() -> bool:
            run = launched.instance.get_run_by_id(run_id)
            return run is not None and health(run).status.value == "FAILED"

        wait_for(is_lost, 30)
        assert launched.instance.run_launcher.terminate(run_id)
        assert status(launched, run_id).value == "CANCELED"
        wait_for(lambda: is_gone(pid), 10)
