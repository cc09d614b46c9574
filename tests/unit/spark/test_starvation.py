"""When a step counts as waiting for executors, by what Spark's status tracker says."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from glidemq_orchestrate.spark.sessions.progress import StageProgress, Starvation


@dataclass
class Tracker:
    """What Spark says: the tasks that run in each stage, and the jobs."""

    stages: dict[int, int] = field(default_factory=dict)
    active: list[int] = field(default_factory=lambda: [7])

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(self.stages)

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802
        return SimpleNamespace(numActiveTasks=self.stages[stage])

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802
        return self.active

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return [7] if group == "step" else []


def test_only_what_waits_while_nothing_runs_at_all_waits_for_executors() -> None:
    tracker, now = Tracker({1: 0}), [100.0]
    starvation = Starvation(tracker, "step", 60, lambda: now[0])  # type: ignore[arg-type]
    assert starvation.read() == 0
    now[0] += 59
    assert (starvation.read(), starvation.has_given_up) == (59, False)
    tracker.stages[2] = 1  # a task of another step
    assert starvation.read() == 0
    del tracker.stages[2]
    now[0] += 5
    assert starvation.read() == 0
    now[0] += 60
    assert (starvation.read(), starvation.has_given_up) == (60, True)


def test_a_step_without_a_job_waits_for_nothing() -> None:
    tracker, now = Tracker({1: 0}, active=[3]), [0.0]
    starvation = Starvation(tracker, "step", 60, lambda: now[0])  # type: ignore[arg-type]
    for _ in range(3):
        now[0] += 100
        assert (starvation.read(), starvation.has_given_up) == (0, False)


def test_progress_stays_when_spark_has_forgotten_the_jobs() -> None:
    class Tracker:
        known = (1, 2)

        def getJobIdsForGroup(self, _: str) -> list[int]:  # noqa: N802  Spark's
            return list(self.known)

        def getJobInfo(self, number: int) -> Any:  # noqa: N802
            return SimpleNamespace(stageIds=[number], status="SUCCEEDED" if number == 1 else "RUNNING")

        def getStageInfo(self, number: int) -> Any:  # noqa: N802
            return SimpleNamespace(numCompletedTasks=number, numTasks=4)

    tracker: Any = Tracker()
    context: Any = SimpleNamespace(statusTracker=lambda: tracker)
    progress = StageProgress(context, "step")
    before = progress.read()
    assert before == {"stages_done": 1, "stages": 2, "tasks_done": 3, "tasks": 5}
    tracker.known = ()
    assert progress.read() == before
    assert progress.jobs == [1, 2]
