"""What a process writes whose attempt was given up counts for nothing, and runs end with their processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterEventType
from dagster._core.execution.plan.objects import StepFailureData, StepRetryData, StepSuccessData
from dagster._core.execution.plan.outputs import StepOutputData, StepOutputHandle
from dagster._core.execution.plan.state import KnownExecutionState
from dagster._core.execution.retries import RetryMode
from dagster._utils.error import SerializableErrorInfo  # type: ignore[attr-defined]
from dagster_glidemq.attempts import Attempts, StepAttempt
from dagster_glidemq.step_job import StepJob, packed
from dagster_glidemq.warm.execution import WarmExecution
from dagster_glidemq.warm.processes import EndedRuns, WarmProcesses
from dagster_glidemq.warm.sources import Sources

from glidemq_orchestrate.worker.handlers.context import Cancelled
from tests.providers.dagster.stepping import run_job, wait_for

RUN = "11111111-1111-1111-1111-111111111111"
JOB = f"run.{RUN}.0"
LAUNCHER = {
    "module": "dagster_glidemq",
    "class": "GlideMQRunLauncher",
    "config": {"url": "valkey://127.0.0.1:1"},
}
EXECUTOR, FIRST, SECOND = 1, 20, 30

DATA: dict[str, Any] = {
    "STEP_OUTPUT": StepOutputData(StepOutputHandle("a")),
    "STEP_SUCCESS": StepSuccessData(duration_ms=1.0),  # type: ignore[no-untyped-call]  # of Dagster
    "STEP_FAILURE": StepFailureData(error=None, user_failure_data=None),  # type: ignore[no-untyped-call]
    "STEP_UP_FOR_RETRY": StepRetryData(error=SerializableErrorInfo("lost", [], None)),  # type: ignore[no-untyped-call]
}

REPORTS: list[tuple[str, str]] = [
    ("STEP_START 20, STEP_OUTPUT 20, STEP_SUCCESS 20", "111"),
    ("STEP_START 20, STEP_UP_FOR_RETRY 20, STEP_RESTARTED 30, STEP_SUCCESS 30", "1111"),
    ("STEP_START 20, STEP_UP_FOR_RETRY 1, STEP_FAILURE 20, STEP_RESTARTED 30, STEP_SUCCESS 30", "11011"),
    ("STEP_START 20, STEP_UP_FOR_RETRY 1, STEP_RESTARTED 30, STEP_SUCCESS 20, STEP_FAILURE 30", "11101"),
    ("STEP_START 20, STEP_FAILURE 1, STEP_OUTPUT 20, STEP_SUCCESS 20", "1100"),
    ("STEP_START 20, STEP_SUCCESS 20, STEP_FAILURE 1", "110"),
    ("STEP_UP_FOR_RETRY 1, STEP_RESTARTED 30, STEP_SUCCESS 30", "111"),
    ("STEP_START 20, STEP_UP_FOR_RETRY 1, STEP_RESTARTED 20, STEP_SUCCESS 20", "1111"),
]


def event(kind: str, pid: int, step: str = "a") -> DagsterEvent:
    return DagsterEvent(
        DagsterEventType[kind].value, "job", step_key=step, pid=pid, event_specific_data=DATA.get(kind)
    )


def test_only_what_the_attempt_of_its_time_writes_counts(subtests: pytest.Subtests) -> None:
    for log, counting in REPORTS:
        with subtests.test(log=log):
            attempts = Attempts()
            events = [event(kind, int(pid)) for kind, pid in map(str.split, log.split(","))]
            assert "".join(str(int(attempts.counts(one))) for one in events) == counting
            assert attempts.counts(event("STEP_START", FIRST, "b"))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dg.DagsterInstance]]:
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    opened: list[Any] = []

    def instance(status: str = "STARTED", *, resumes: int = 0, job: str = JOB) -> dg.DagsterInstance:
        monitoring = {"enabled": bool(resumes), "max_resume_run_attempts": resumes}
        settings = {"run_launcher": LAUNCHER, "run_monitoring": monitoring}
        opened.append(dg.instance_for_test(temp_dir=str(tmp_path), overrides=settings))
        made: dg.DagsterInstance = opened[-1].__enter__()
        tags = {"dagster-glidemq/job_id": job}
        made.run_storage.add_run(dg.DagsterRun("job", RUN, status=dg.DagsterRunStatus[status], tags=tags))
        return made

    yield instance
    for one in opened:
        one.__exit__(None, None, None)


def write(instance: dg.DagsterInstance, *events: DagsterEvent) -> None:
    for one in events:
        entry: Any = dg.EventLogEntry(  # type: ignore[no-untyped-call]  # of Dagster
            error_info=None, level=10, user_message="", run_id=RUN, timestamp=1.0, dagster_event=one
        )
        instance.handle_new_event(entry)


def job_of_step(attempt: int) -> StepJob:
    state = KnownExecutionState(previous_retry_attempts={"a": attempt})
    return StepJob(
        run_id=RUN,
        step_key="a",
        location="there",
        retry_mode=RetryMode.ENABLED.value,
        known_state=packed(state),
        storage="",
        grace_seconds=1.0,
    )


@pytest.mark.long
def test_a_process_writes_no_end_of_an_attempt_that_was_given_up(make: Callable[..., Any]) -> None:
    instance = make()
    first = StepAttempt(instance, job_of_step(0))
    first.fence()
    write(instance, event("STEP_START", FIRST), event("STEP_OUTPUT", FIRST))
    with dg.DagsterInstance.from_ref(instance.get_ref()) as executor:
        write(executor, event("STEP_UP_FOR_RETRY", EXECUTOR))
        assert StepAttempt(executor, job_of_step(1)).may_begin()
        write(instance, event("STEP_SUCCESS", FIRST), event("STEP_FAILURE", FIRST))
        assert StepAttempt(executor, job_of_step(1)).may_begin()
        write(executor, event("STEP_RESTARTED", SECOND))
        assert not StepAttempt(executor, job_of_step(1)).may_begin()
        kinds = [one.dagster_event.event_type_value for one in executor.all_logs(RUN) if one.dagster_event]
    assert kinds == ["STEP_START", "STEP_OUTPUT", "STEP_UP_FOR_RETRY", "STEP_RESTARTED"]


@pytest.mark.parametrize(
    ("status", "options", "expected"),
    [
        ("STARTED", {}, "FAILURE"),
        ("STARTING", {}, "FAILURE"),
        ("CANCELING", {}, "CANCELED"),
        ("CANCELING", {"resumes": 1}, "CANCELED"),
        ("STARTED", {"resumes": 1}, "STARTED"),
        ("STARTED", {"job": f"run.{RUN}.1"}, "STARTED"),
        ("SUCCESS", {}, "SUCCESS"),
    ],
)
def test_a_run_ends_with_its_process_unless_it_is_resumed(
    make: Callable[..., dg.DagsterInstance], status: str, options: dict[str, Any], expected: str
) -> None:
    instance = make(status, **options)
    EndedRuns().settle(RUN, JOB, "its process was ended by SIGKILL")
    run = instance.get_run_by_id(RUN)
    assert run is not None
    assert run.status.value == expected
    if expected == "FAILURE":
        assert "ended by SIGKILL" in str(instance.all_logs(RUN)[-1].message)


@pytest.mark.long
def test_a_run_that_was_terminated_as_it_started_is_not_running_again(make: Callable[..., Any]) -> None:
    instance, execution = make("STARTING"), WarmExecution(Sources())
    started = DagsterEvent(DagsterEventType.RUN_START.value, "job")
    execution._heard(RUN, started)
    for end in ("STARTED", "CANCELING"):
        instance.report_run_canceling(instance.get_run_by_id(RUN))
        write(instance, started)
        if end == "CANCELING":
            execution._heard(RUN, started)
        assert instance.get_run_by_id(RUN).status.value == end


@pytest.mark.long
@pytest.mark.parametrize(("status", "end"), [("CANCELING", "CANCELED"), ("STARTED", "FAILURE")])
def test_a_run_that_is_to_be_terminated_does_not_fail(
    make: Callable[..., Any], status: str, end: str
) -> None:
    instance, execution = make(status), WarmExecution(Sources())
    execution.cancel_instead()
    execution._instance.report_run_failed(instance.get_run_by_id(RUN), "the worker was restarted")
    assert instance.get_run_by_id(RUN).status.value == end


@pytest.mark.long
@pytest.mark.parametrize(("job", "is_lost"), [(f"run.{RUN}.1", False), (JOB, True)])
def test_a_run_that_another_process_has_is_killed_and_writes_nothing(
    make: Callable[..., dg.DagsterInstance],
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    is_lost: bool,  # noqa: FBT001
) -> None:
    make(job=job)
    asked: list[int] = []

    class Process:
        def run(self, _kind: str, _job: Any, how_to_end: Callable[[], int], _grace: float) -> None:
            asked.append(wait_for(how_to_end, 10))

    processes, cancelled = WarmProcesses(), Cancelled()
    monkeypatch.setattr(processes, "_take", lambda *_: ("there", Process()))
    if is_lost:
        cancelled.set(is_lost=True)
    processes.run_run(run_job(RUN, "there"), JOB, cancelled)
    assert asked == [signal.SIGKILL]
