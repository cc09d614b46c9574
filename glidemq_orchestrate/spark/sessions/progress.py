"""The progress of a step: the stages and tasks of its Spark jobs, and how long they have lacked executors."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker

logger = logging.getLogger("glidemq_orchestrate.spark")

POLL_SECONDS: Final = 0.2
REPORT_SECONDS: Final = 1.0


class StageProgress:
    """Counts the stages and tasks of the Spark jobs in one group.

    The totals grow while a step submits more jobs; the done counts never shrink. Stages that Spark skipped,
    because their output existed, count as done without tasks once their job has succeeded. Spark keeps the
    last thousand jobs of a session; those that it has dropped count as they were last seen.
    """

    def __init__(self, context: SparkContext, group: str) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._ended: dict[int, tuple[int, int, int]] = {}
        self._seen: dict[int, tuple[int, int, int, int]] = {}

    def read(self) -> dict[str, int]:
        """Return the current ``stages_done``, ``stages``, ``tasks_done`` and ``tasks``."""
        for number in self._tracker.getJobIdsForGroup(self._group):
            self._seen[number] = self._job(number)
        counts = list(self._seen.values())
        return {
            "stages_done": sum(count[0] for count in counts),
            "stages": sum(count[1] for count in counts),
            "tasks_done": sum(count[2] for count in counts),
            "tasks": sum(count[3] for count in counts),
        }

    @property
    def jobs(self) -> list[int]:
        """All jobs that were ever seen."""
        return sorted(self._seen)

    def _job(self, number: int) -> tuple[int, int, int, int]:
        if number in self._ended:
            stages_done, stages, tasks = self._ended[number]
            return stages_done, stages, tasks, tasks
        job = self._tracker.getJobInfo(number)
        if job is None:
            return self._seen.get(number, (0, 0, 0, 0))
        infos = [self._tracker.getStageInfo(stage) for stage in job.stageIds]
        started = [info for info in infos if info is not None]
        tasks_done = sum(info.numCompletedTasks for info in started)
        if job.status == "SUCCEEDED":
            self._ended[number] = (len(infos), len(infos), tasks_done)
            return len(infos), len(infos), tasks_done, tasks_done
        done = sum(info.numCompletedTasks >= info.numTasks for info in started)
        return done, len(infos), tasks_done, sum(info.numTasks for info in started)


class Starvation:
    """How long the jobs of a step have waited while no executor ran anything of the session.

    Tasks of other steps of the session count as running: then the step waits for its turn, not for executors.

    Args:
        tracker: Spark's status tracker.
        group: The group of the jobs.
        patience: Seconds after which ``has_given_up`` is true.
        clock: For tests.
    """

    def __init__(
        self,
        tracker: StatusTracker,
        group: str,
        patience: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker, self.group, self._patience, self._clock = tracker, group, patience, clock
        self._since: float | None = None
        self.has_given_up = False

    def read(self) -> float:
        """Return the seconds; 0 if something runs, or the step has no job."""
        infos = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        runs = any(info is not None and info.numActiveTasks > 0 for info in infos)
        jobs = self._tracker.getJobIdsForGroup(self.group)
        if runs or set(self._tracker.getActiveJobsIds()).isdisjoint(jobs):
            self._since = None
            return 0.0
        self._since = self._clock() if self._since is None else self._since
        seconds = self._clock() - self._since
        self.has_given_up = seconds >= self._patience
        return seconds
