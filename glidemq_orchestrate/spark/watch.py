"""Groups the Spark jobs of one step: a pool and a tag of their own, progress, cancellation.

A worker runs several steps in parallel, in threads of one session. Spark's job properties belong to the
thread, so each step sets its own, and afterwards the thread has those of before: it may return to a pool.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.calls import Calls
from glidemq_orchestrate.spark.context import stop_streams
from glidemq_orchestrate.spark.engine import Asked
from glidemq_orchestrate.spark.facts import facts_of
from glidemq_orchestrate.worker.handlers.context import Context

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

LOOK_SECONDS: Final = 0.2
REPORT_SECONDS: Final = 1.0
END_SECONDS: Final = 10.0
TELL_SECONDS: Final = 10.0
MAX_JOBS: Final = 100
"""Of a step that has failed, so many jobs are asked for tasks that still run."""
WHY: Final = (
    "other applications hold all cores of the cluster, or it has no worker with the memory and the cores "
    "that spark.executor.memory and spark.executor.cores ask for"
)
"""Why there are no executors."""


class PoolNames:
    """Names of FAIR pools, each lent to one step at a time.

    Spark keeps every pool it has ever seen, so names are reused: there are never more pools than steps
    that ran at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: set[int] = set()

    @contextmanager
    def lend(self) -> Iterator[str]:
        """Lend the free name with the smallest number until the block ends."""
        with self._lock:
            number = next(n for n in range(len(self._lent) + 1) if n not in self._lent)
            self._lent.add(number)
        try:
            yield f"glidemq-{number}"
        finally:
            with self._lock:
                self._lent.discard(number)


_pool_names: Final = PoolNames()


class StageProgress:
    """Counts the stages and tasks of the Spark jobs in one group.

    The totals grow while a step submits more jobs; the done counts never shrink. Stages that Spark skipped,
    because their output existed, count as done without tasks once their job has succeeded. Jobs that Spark
    forgets, as it keeps a thousand of all steps of a session, count as they were last seen.
    """

    def __init__(self, context: SparkContext, group: str) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._ended: dict[int, tuple[int, int, int]] = {}
        self._seen: dict[int, tuple[int, int, int, int]] = {}

    def read(self) -> dict[str, int]:
        """Return ``stages_done``, ``stages``, ``tasks_done`` and ``tasks`` as they are now."""
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
        """Those that were ever seen."""
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
    """For how long the jobs of a step have waited while no executor ran anything of this session.

    Tasks of other steps of the session count as running: then the step waits for its turn, not for executors.

    Args:
        tracker: Spark's.
        group: The group of the jobs.
        patience: After so many seconds ``has_given_up`` is true.
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

    def look(self) -> float:
        """Seconds; 0 when something runs, or the step has no job."""
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


@contextmanager
def watched(spark: SparkSession, ctx: Context, asked: Asked, calls: Calls) -> Iterator[Starvation]:
    """Run a block as one step: its Spark jobs get a pool, a tag and a description, and tell whose they are.

    While the block runs, ``ctx.progress`` gets the counts of ``StageProgress`` about once a second when they
    have changed, with the page of Spark's UI as ``ui`` where there is one, and at the end also what the jobs
    took (``facts_of``) and ``duration_ms``; jobs in a group that the block sets itself are not counted. When
    ``ctx.cancelled`` is set, the running Spark jobs of the block are cancelled, and so is every later one,
    and its streams are stopped. So they are when no executor has run anything for ``asked.patience`` seconds;
    then ``has_given_up`` of what is yielded is true, and before, ``ctx.progress`` gets
    ``waiting_for_executors_s``.
    Afterwards the thread has no property or tag that it, or the block, has set, and nothing runs in the
    background: ``calls`` of threads that the block has started have ended, and the tasks of jobs that failed
    or were cancelled too.
    """
    tag = f"glidemq-{uuid.uuid4().hex}"  # not the job id: an earlier attempt may still run in this process
    done = threading.Event()
    context = spark.sparkContext
    starvation = Starvation(context.statusTracker(), tag, asked.patience)
    watcher = threading.Thread(
        target=_watch, args=(spark, ctx, done, starvation), name=f"watch-{tag}", daemon=True
    )
    java: Any = context._jsc.sc()  # noqa: SLF001  what PySpark's own methods call
    before, has_failed = java.getLocalProperties().clone(), True
    with _pool_names.lend() as pool:
        try:
            # Interrupting the thread of a task that waits for its Python worker would end those of all tasks:
            # Spark (4.3) takes it for the end of the process that starts them, and starts another one.
            context.setJobGroup(tag, asked.description(ctx), interruptOnCancel=False)
            for name, value in asked.identity.items():
                context.setLocalProperty(name, value)
            context.setLocalProperty("spark.scheduler.pool", pool)
            context.addJobTag(tag)
            watcher.start()
            yield starvation
            has_failed = False
        finally:
            done.set()
            if watcher.ident is not None:
                watcher.join()
            with suppress(
                Exception
            ):  # a dead JVM has no properties to remove, and the error of the block is more useful
                _end(context, tag, calls, may_have_left=has_failed)
                java.setLocalProperties(before)


def _end(context: SparkContext, tag: str, calls: Calls, *, may_have_left: bool) -> None:
    """End what a step still does, and wait for it: what comes next must not meet it.

    Args:
        context: Of the step.
        tag: Of its jobs.
        calls: Of its threads.
        may_have_left: Whether tasks may go on although their jobs have ended, as these failed.
    """
    calls.end()
    tracker, until = context.statusTracker(), time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        is_idle = not calls.are_running  # before the jobs that these have begun are looked for
        context.cancelJobsWithTag(tag)
        if not set(tracker.getActiveJobsIds()).isdisjoint(tracker.getJobIdsForGroup(tag)):
            may_have_left = True
        elif is_idle and not (may_have_left and _has_tasks(tracker, tag)):
            return
        time.sleep(LOOK_SECONDS / 4)
    logger.warning("Spark still runs something of a step that has ended, after %g s", END_SECONDS)


def _has_tasks(tracker: StatusTracker, tag: str) -> bool:
    """Whether a task of the last jobs that have not succeeded runs: Spark ends a job before its tasks."""
    last = sorted(tracker.getJobIdsForGroup(tag))[-MAX_JOBS:]
    jobs = [job for number in last if (job := tracker.getJobInfo(number)) and job.status != "SUCCEEDED"]
    stages = {stage for job in jobs for stage in job.stageIds}
    return any(info.numActiveTasks > 0 for stage in stages if (info := tracker.getStageInfo(stage)))


def _watch(spark: SparkSession, ctx: Context, done: threading.Event, starvation: Starvation) -> None:
    context, tag = spark.sparkContext, starvation.group
    began, since = time.monotonic(), time.time()
    with suppress(Exception):  # the JVM has ended: the step itself fails and reports it
        progress = StageProgress(context, tag)
        shown = {"stages_done": 0, "stages": 0, "tasks_done": 0, "tasks": 0}
        page = {"ui": context.uiWebUrl} if context.uiWebUrl else {}
        due = time.monotonic() + REPORT_SECONDS
        ended = False
        while not ended:
            ended = done.wait(LOOK_SECONDS)
            if ctx.cancelled.is_set() or starvation.has_given_up:
                # Repeated each time: a job that the step submits after this cancel must end too.
                context.cancelJobsWithTag(tag)
                stop_streams(spark)
            elif ended or time.monotonic() >= due:
                due = time.monotonic() + REPORT_SECONDS
                counts = progress.read()
                if (waiting := starvation.look()) >= TELL_SECONDS:
                    if "waiting_for_executors_s" not in shown:
                        ctx.log(f"no executor runs anything of this session for {waiting:.0f} s: {WHY}")
                    counts["waiting_for_executors_s"] = int(waiting)
                facts = facts_of(spark, tag, since, progress.jobs) if ended else {}
                if facts:
                    facts["duration_ms"] = int((time.monotonic() - began) * 1000)
                if facts or counts != shown:
                    shown = counts
                    ctx.progress({**counts, **page, **facts})
