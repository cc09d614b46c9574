"""The run launcher without a worker: what it queues, tells, and takes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.launcher import LaunchRunContext, ResumeRunContext, WorkerStatus
from dagster_glidemq.launcher import GlideMQRunLauncher
from dagster_glidemq.step_job import RUN_JOB, run_job_id
from dagster_glidemq.warm.execution import WarmExecution
from dagster_glidemq.warm.messages import NotPrepared
from dagster_glidemq.warm.sources import Sources

from glidemq_orchestrate import EmbeddedServer, JobState
from glidemq_orchestrate.errors import ConfigurationError, TransportError
from tests.providers.dagster.stepping import MODULE, Steps, place_of

LAUNCHER = {
    "module": "dagster_glidemq.launcher",
    "class": "GlideMQRunLauncher",
    "config": {"url": {"env": "GLIDEMQ_URL"}, "patience": "0ms"},
}


@pytest.fixture
def steps(server: EmbeddedServer, tmp_path: Path) -> Iterator[Steps]:
    with place_of(server, tmp_path, run_launcher=LAUNCHER) as place:
        yield place


@pytest.fixture
def launcher(steps: Steps) -> GlideMQRunLauncher:
    assert isinstance(steps.instance.run_launcher, GlideMQRunLauncher)
    return steps.instance.run_launcher


@pytest.fixture
def run(steps: Steps) -> dg.DagsterRun:
    job = ReconstructableRepository.for_module(MODULE, "defs").get_reconstructable_job("holding")
    return steps.instance.create_run_for_job(
        job.get_definition(),
        job_code_origin=job.get_python_origin(),
        tags={"dagster-glidemq/run_queue": "runs", "dagster/priority": "1"},
        status=dg.DagsterRunStatus.STARTING,
    )


def again(steps: Steps, run: dg.DagsterRun) -> dg.DagsterRun:
    found = steps.instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def test_a_queued_run_is_healthy_and_says_who_serves_its_queue(
    steps: Steps, launcher: GlideMQRunLauncher, run: dg.DagsterRun
) -> None:
    for _ in range(2):  # the repeat adds nothing
        launcher.launch_run(LaunchRunContext(run, None))
    with steps.queue("runs") as queue:
        (job,) = queue.get_jobs(JobState.WAITING) or queue.get_jobs(JobState.PRIORITIZED)
    assert (job.id, job.name, job.priority) == (run_job_id(run.run_id, 0), RUN_JOB, 1024)
    tagged = again(steps, run)
    assert tagged.tags["dagster-glidemq/job_id"] == job.id
    health = launcher.check_run_worker_health(tagged)
    assert (health.status, health.run_worker_id) == (WorkerStatus.RUNNING, job.id)
    told = launcher.get_run_worker_debug_info(tagged)
    assert told is not None
    assert "no live worker serves the queue" in told
    assert "--queue runs" in told
    launcher.dispose()


def test_a_run_that_is_terminated_before_it_began_is_canceled(
    steps: Steps, launcher: GlideMQRunLauncher, run: dg.DagsterRun
) -> None:
    launcher.launch_run(LaunchRunContext(run, None))
    assert launcher.terminate(run.run_id)
    assert again(steps, run).status is dg.DagsterRunStatus.CANCELED
    with steps.queue("runs") as queue:
        assert queue.get_job(run_job_id(run.run_id, 0)).failed_reason == "revoked"
    assert not launcher.terminate(run.run_id)
    assert not launcher.terminate("unknown")
    launcher.dispose()


def test_a_run_that_ended_while_it_was_queued_is_let_go(
    steps: Steps, launcher: GlideMQRunLauncher, run: dg.DagsterRun
) -> None:
    launcher.launch_run(LaunchRunContext(run, None))
    steps.instance.report_run_failed(again(steps, run), "Run timed out")  # as the run monitoring does
    assert launcher.terminate(run.run_id)
    assert again(steps, run).status is dg.DagsterRunStatus.FAILURE
    with steps.queue("runs") as queue:
        assert queue.get_job(run_job_id(run.run_id, 0)).failed_reason == "revoked"
    assert not launcher.terminate(run.run_id)
    launcher.dispose()


@pytest.mark.long
@pytest.mark.parametrize("ending", ["failed", "deleted"])
def test_the_code_of_a_run_that_has_ended_is_not_imported(
    steps: Steps, launcher: GlideMQRunLauncher, run: dg.DagsterRun, ending: str
) -> None:
    launcher.launch_run(LaunchRunContext(run, None))
    with steps.queue("runs") as queue:
        data = queue.get_job(run_job_id(run.run_id, 0)).data
    if ending == "failed":
        steps.instance.report_run_failed(again(steps, run), "Run timed out")
    else:
        steps.instance.delete_run(run.run_id)
    execution = WarmExecution(Sources())
    reason = f"{run.run_id} has ended: it is FAILURE" if ending == "failed" else f"{run.run_id} was deleted"
    with pytest.raises(NotPrepared, match=reason):
        execution.prepare("run", data)
    launcher.dispose()


def test_a_run_is_resumed_by_another_job_and_the_old_one_never_runs(
    steps: Steps, launcher: GlideMQRunLauncher, run: dg.DagsterRun
) -> None:
    launcher.launch_run(LaunchRunContext(run, None))
    launcher.resume_run(ResumeRunContext(again(steps, run), None, 1))
    tagged = again(steps, run)
    assert tagged.tags["dagster-glidemq/job_id"] == run_job_id(run.run_id, 1)
    with steps.queue("runs") as queue:
        assert queue.get_job(run_job_id(run.run_id, 0)).failed_reason == "revoked"
        assert not queue.get_job(run_job_id(run.run_id, 1)).state.is_terminal
        queue.remove(run_job_id(run.run_id, 1))
    health = launcher.check_run_worker_health(tagged)
    assert health.status is WorkerStatus.FAILED
    assert "not in the queue" in str(health.msg)
    launcher.dispose()


def test_a_server_that_does_not_answer_tells_nothing_of_a_run(
    steps: Steps, launcher: GlideMQRunLauncher, run: dg.DagsterRun
) -> None:
    launcher.launch_run(LaunchRunContext(run, None))
    launcher.dispose()
    deaf = GlideMQRunLauncher.from_config_value(
        None,
        {"url": "valkey://127.0.0.1:1", "patience": "0ms"},
    )
    with pytest.raises(TransportError):
        deaf.check_run_worker_health(again(steps, run))
    assert "does not respond" in str(deaf.get_run_worker_debug_info(again(steps, run)))


@pytest.mark.long
def test_runs_and_steps_need_queues_of_their_own(launcher: GlideMQRunLauncher) -> None:
    with pytest.raises(ConfigurationError, match="both q"):
        GlideMQRunLauncher(launcher.connection, run_queue="q", step_queue="q")
    assert launcher.check_run_worker_health(dg.DagsterRun("job")).status is WorkerStatus.NOT_FOUND
