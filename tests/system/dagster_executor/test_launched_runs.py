"""Runs of Dagster that are jobs: how they end, also where their process or worker is lost."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from dagster._daemon.monitoring.run_monitoring import (
    RESUME_RUN_LOG_MESSAGE,
)
from dagster_glidemq.step_job import run_job_id

from glidemq_orchestrate import EmbeddedServer, JobState
from tests.processes import is_gone, runs
from tests.providers.dagster.stepping import Steps, kinds, place_of, wait_for
from tests.system.dagster_executor.launching import (
    LAUNCHER,
    MONITORING,
    RUNS,
    is_quiet,
    launch,
    monitor,
    paused,
    status,
    told,
)

pytestmark = [pytest.mark.system, pytest.mark.long]


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
