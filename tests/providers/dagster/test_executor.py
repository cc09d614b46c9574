"""Steps as jobs, run by a worker process with a warm process: one of each for the whole file."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._check import CheckError
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster_glidemq.step_job import STEP_JOB, step_job_id

from glidemq_orchestrate import EmbeddedServer, JobOptions, JobState
from glidemq_orchestrate.jobs import Job
from tests.processes import is_alive, is_gone
from tests.providers.dagster.stepping import MODULE, Steps, failure, kinds, place_of, wait_for


@pytest.fixture(scope="module")
def steps(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steps]:
    with place_of(server, tmp_path_factory.mktemp("steps")) as place, place.worker():
        yield place


def job_of(steps: Steps, run: dg.DagsterRun, step: str, attempt: int = 0) -> Job:
    with steps.queue() as queue:
        return queue.get_job(step_job_id(run.run_id, step, attempt))


def helpers(steps: Steps) -> list[str]:
    """What the processes of the worker have started beside themselves."""
    below = psutil.Process(steps.workers[0].pid).children(recursive=True)
    return [name for one in below if (name := " ".join(one.cmdline())) and "dagster_glidemq" not in name]


@pytest.fixture(scope="module")
def ended(steps: Steps) -> tuple[dg.DagsterRun, list[Any], dict[str, list[int]]]:
    """A run of everything: the run, its events, and the processes that ran its steps."""
    succeeded, run, events = steps.run("everything", tags={"dagster/priority": "2"})
    assert succeeded, [event.message for event in events]
    return run, events, {step: steps.noted(step) for step in ("extract", "flaky")}


Ended = tuple[dg.DagsterRun, list[Any], dict[str, list[int]]]


def test_each_step_is_a_job_with_values_retries_and_dynamic_outputs(steps: Steps, ended: Ended) -> None:
    run, events, noted = ended
    assert kinds(events, "flaky") == ["STEP_START", "STEP_UP_FOR_RETRY", "STEP_RESTARTED", "STEP_SUCCESS"]
    assert kinds(events, "double[1]") == ["STEP_START", "STEP_SUCCESS"]
    first, again = (job_of(steps, run, "flaky", attempt) for attempt in (0, 1))
    assert (first.state, again.state) == (JobState.COMPLETED, JobState.COMPLETED)
    assert (first.name, first.max_attempts, first.priority) == (STEP_JOB, 1, 1020)
    assert job_of(steps, run, "extract").priority == 1023
    assert job_of(steps, run, "double[0]").ordering_key == "one"
    assert str(steps.instance.get_ref()) not in str(first.data)
    starting = next(event for event in events if event.event_type_value == "STEP_WORKER_STARTING")
    assert starting.engine_event_data.metadata["glidemq/job_id"].value == step_job_id(
        run.run_id, "extract", 0
    )
    pids = noted["extract"] + noted["flaky"]
    assert len(set(pids)) == 3
    assert not any(map(is_alive, pids))


def test_what_a_step_prints_is_in_its_compute_log(steps: Steps, ended: Ended) -> None:
    run, events, _ = ended
    captured = [e.logs_captured_data for e in events if e.event_type_value == "LOGS_CAPTURED"]
    (key,) = [one.file_key for one in captured if one.step_keys == ["extract"]]
    found = steps.instance.compute_log_manager.get_log_data([run.run_id, "compute_logs", key])
    assert found.stdout == b"extracting to the log\n"
    assert not [name for name in helpers(steps) if "tail" in name or "watch_orphans" in name]


def test_a_step_whose_process_is_killed_fails_with_that_reason(steps: Steps) -> None:
    succeeded, run, events = steps.run("dying", raise_on_error=False)
    assert not succeeded
    assert "its process was ended by SIGKILL" in failure(events, "killed")
    assert kinds(events, "killed") == ["STEP_START", "STEP_FAILURE"]
    assert len(steps.noted("killed")) == 1
    assert job_of(steps, run, "killed").state is JobState.FAILED


def test_a_step_that_no_worker_takes_fails_with_the_remedy(steps: Steps) -> None:
    succeeded, run, events = steps.run("unserved", raise_on_error=False)
    assert not succeeded
    assert "no live worker has served queue nobody for 1 seconds" in failure(events, "extract")
    assert "glidemq worker --app dagster_glidemq.worker --queue nobody" in failure(events, "extract")
    with steps.queue("nobody") as queue:
        assert queue.get_job(step_job_id(run.run_id, "extract", 0)).failed_reason == "revoked"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_revoked_step_is_interrupted_and_killed_after_the_grace(steps: Steps, stubborn: bool) -> None:  # noqa: FBT001
    seen: dict[str, Any] = {}

    def revoke() -> None:
        (pid,) = wait_for(lambda: steps.noted("held"), 30)
        with steps.queue() as queue:
            (active,) = wait_for(lambda: queue.get_jobs(JobState.ACTIVE), 5)
            seen["job"], began = active, time.monotonic()
            assert queue.revoke(active.id) == "flagged"
        wait_for(lambda: steps.noted("interrupted-DagsterExecutionInterruptedError"), 10)
        seen["interrupted"] = time.monotonic() - began
        wait_for(lambda: is_gone(pid), 10)

    steps.forget()
    revoking = threading.Thread(target=revoke)
    revoking.start()
    tags = {"stubborn": "yes"} if stubborn else {}
    succeeded, run, events = steps.run("holding", raise_on_error=False, tags=tags)
    revoking.join()
    assert not succeeded
    assert not steps.noted("released")
    assert seen["interrupted"] < 5
    assert "KILL" in failure(events, "held") if stubborn else "Interrupted" in failure(events, "held")
    assert not any(map(is_alive, steps.noted("detached")))
    assert seen["job"].worker.startswith("gmo-worker-")
    assert kinds(events, "held") == ["STEP_START", "STEP_FAILURE"]
    ended = wait_for(lambda: (job := job_of(steps, run, "held")).state.is_terminal and job, 10)
    assert ended.failed_reason == "revoked" or "interrupted" in ended.failed_reason


@pytest.mark.parametrize("ending", ["canceled", "deleted"])
def test_a_step_whose_run_was_ended_by_force_is_ended(steps: Steps, ending: str) -> None:
    seen: dict[str, Any] = {}

    def end() -> None:
        (pid,) = wait_for(lambda: steps.noted("held"), 60)
        with steps.queue() as queue:
            (active,) = wait_for(lambda: queue.get_jobs(JobState.ACTIVE), 10)
            (run,) = steps.instance.get_runs(limit=1)
            seen["run"] = run.run_id
            if ending == "canceled":
                steps.instance.report_run_canceled(run)
            else:
                steps.instance.delete_run(run.run_id)
            wait_for(lambda: is_gone(pid), 30)
            seen["job"] = wait_for(
                lambda: (job := queue.get_job(active.id)).state is JobState.FAILED and job, 10
            )

    steps.forget()
    ending_it = threading.Thread(target=end)
    ending_it.start()
    with suppress(CheckError):  # Dagster looks for the run at its end, too
        succeeded, _, _ = steps.run("holding", raise_on_error=False)
        assert not succeeded
    ending_it.join()
    how = "has ended: it is CANCELED" if ending == "canceled" else "was deleted"
    assert how in str(seen["job"].failed_reason)
    left = steps.instance.get_run_by_id(seen["run"])
    if ending == "deleted":
        assert left is None
    else:  # Dagster itself notes the failure of the step that was ended, where it comes to see it
        assert left
        assert left.status in {dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE}
    assert not steps.noted("released")


@pytest.mark.long
def test_a_step_is_not_run_again_after_it_has_begun(steps: Steps) -> None:
    def run_again() -> None:
        try:
            wait_for(lambda: steps.noted("held"), 60)
            with steps.queue() as queue:
                (job,) = wait_for(lambda: queue.get_jobs(JobState.ACTIVE), 60)
                again = queue.add(STEP_JOB, job.data)
                wait_for(lambda: queue.get_job(again).state is JobState.COMPLETED, 60)
        finally:
            (steps.path / "release").touch()

    steps.forget()
    running = threading.Thread(target=run_again)
    running.start()
    succeeded, _, events = steps.run("holding")
    running.join()
    assert succeeded
    assert len(steps.noted("held")) == 1
    assert kinds(events, "held") == ["STEP_START", "STEP_SUCCESS"]


MADE_UP: list[tuple[dict[str, Any] | None, str]] = [
    ({"run_id": "none"}, "run none was deleted"),
    ({"run_id": "none", "storage": "another"}, "has no run none"),
    ({"run_id": 7}, "the payload is invalid: run_id: "),
    ({"grace_seconds": -1}, "grace_seconds"),
    ({"known_state": "eJw="}, "exit code 1"),
    ({"known_state": "cos\nsystem\n"}, "exit code 1"),
    ({"retry_mode": "sometimes"}, "exit code 1"),
    (None, "the payload is invalid: it: Input should be a valid dictionary"),
]


def test_jobs_that_somebody_made_up_fail_and_harm_no_other(steps: Steps, ended: Ended) -> None:
    of_ended: Any = job_of(steps, ended[0], "extract").data
    repository = ReconstructableRepository.for_module(MODULE, "defs")
    data = {**of_ended, "run_id": steps.begun(repository, "everything")}
    with steps.queue() as queue:
        made_up = [
            queue.add(
                STEP_JOB, None if change is None else {**data, **change}, options=JobOptions(attempts=3)
            )
            for change, _ in MADE_UP
        ]
        wait_for(lambda: all(state and state.is_terminal for state in queue.states(made_up)), 60)
        for job_id, (_, reason) in zip(made_up, MADE_UP, strict=True):
            job = queue.get_job(job_id)
            assert job.state is JobState.FAILED
            assert reason in (job.failed_reason or "")
        again = queue.add(STEP_JOB, of_ended)
        wait_for(lambda: queue.get_job(again).state is JobState.FAILED, 30)
        assert "has ended: it is SUCCESS" in str(queue.get_job(again).failed_reason)
    assert kinds(steps.events(ended[0].run_id), "extract") == ["STEP_START", "STEP_SUCCESS"]
