"""What tests of killed runs and steps of Dagster share."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dagster as dg
import psutil
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.monitoring.run_monitoring import (
    execute_run_monitoring_iteration,
)

from glidemq_orchestrate import JobState, Queue
from tests.processes import runs
from tests.providers.dagster.stepping import MODULE, Steps

LAUNCHER = {
    "module": "dagster_glidemq.launcher",
    "class": "GlideMQRunLauncher",
    "config": {"url": {"env": "GLIDEMQ_URL"}, "lease": 1.0, "grace": 10.0},
}


MONITORING = {"enabled": True, "max_resume_run_attempts": 2, "start_timeout_seconds": 60}


RUNS = ("--queue", "dagster-runs", "--concurrency", "3", "--lease", "2")


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
