"""Runs of Dagster whose steps are run by a worker process, for the tests of the executor."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster_glidemq.step_job import RunJob

from glidemq_orchestrate import EmbeddedServer, Queue
from glidemq_orchestrate.testing.plugin import own_database
from tests.processes import spawned

MODULE = "tests.providers.dagster.steps_app"


def run_job(run_id: str, location: str = "") -> RunJob:
    return RunJob(run_id=run_id, location=location, storage="", grace_seconds=1.0, resume=False)


@dataclass
class Steps:
    """An instance, a server, and what the ops have noted."""

    instance: dg.DagsterInstance
    url: str
    path: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, name: str, **options: Any) -> tuple[bool, dg.DagsterRun, list[Any]]:
        """Run a job in this process: whether it succeeded, its run, and the events of its log."""
        self.forget()
        job = ReconstructableRepository.for_module(MODULE, "defs").get_reconstructable_job(name)
        with dg.execute_job(job, self.instance, **options) as result:
            return result.success, result.dagster_run, self.events(result.run_id)

    def begun(self, repository: ReconstructableRepository, name: str) -> str:
        """The id of a run that has begun, whose steps nobody has queued."""
        job = repository.get_reconstructable_job(name)
        run = self.instance.create_run_for_job(
            job.get_definition(),
            job_code_origin=job.get_python_origin(),
            status=dg.DagsterRunStatus.STARTED,
        )
        return run.run_id

    def forget(self) -> None:
        """Remove what ops have noted; before a thread that waits for a note is started."""
        for file in self.path.glob("*"):
            if file.is_file() and not file.name.endswith(".log"):
                file.unlink()

    def events(self, run_id: str) -> list[Any]:
        return [entry.dagster_event for entry in self.instance.all_logs(run_id) if entry.dagster_event]

    def noted(self, what: str) -> list[int]:
        file = self.path / what
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def queue(self, name: str = "dagster-steps") -> Queue:
        return Queue(name, self.url)

    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker process; ready when the block begins."""
        command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "dagster_glidemq.worker"]
        options = options or ("--queue", "dagster-steps", "--concurrency", "3", "--lease", "2")
        log = self.path / f"worker-{len(self.workers)}.log"
        with log.open("wb") as out, spawned([*command, *options], stdout=out, stderr=out) as process:
            self.workers.append(process)
            wait_for(lambda: b"serves" in log.read_bytes(), 180, log.read_text)
            yield process
            if process.poll() is None:
                process.terminate()
                assert process.wait(60) == 0, log.read_text()


@contextmanager
def place_of(server: EmbeddedServer, path: Path, **overrides: Any) -> Iterator[Steps]:
    """A database, an instance, and an environment for processes."""
    with ExitStack() as stack:
        url = stack.enter_context(contextmanager(own_database)(server.url))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in {
            "GLIDEMQ_URL": url,
            "TEST_PLACE": str(path),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "GLIDEMQ_DAGSTER_PRELOAD": MODULE,
        }.items():
            patch.setenv(name, value)
        settings = {"telemetry": {"enabled": False}, **overrides}
        yield Steps(stack.enter_context(dg.instance_for_test(overrides=settings)), url, path)


def wait_for(predicate: Callable[[], Any], seconds: float, told: Callable[[], Any] = lambda: "") -> Any:
    end = time.monotonic() + seconds
    while not (found := predicate()):
        assert time.monotonic() < end, told()
        time.sleep(0.02)
    return found


def kinds(events: list[Any], step: str) -> list[str]:
    """The events of a step that begin or end it."""
    wanted = ("STEP_START", "STEP_RESTARTED", "STEP_UP_FOR_RETRY", "STEP_SUCCESS", "STEP_FAILURE")
    return [e.event_type_value for e in events if e.step_key == step and e.event_type_value in wanted]


def failure(events: list[Any], step: str) -> str:
    """Why a step failed."""
    (event,) = [e for e in events if e.step_key == step and e.event_type_value == "STEP_FAILURE"]
    return str(event.step_failure_data.error.message)
