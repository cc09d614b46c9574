"""The engine for every master that Spark's own driver talks to: ``local``, ``spark://``, YARN, Kubernetes.

A process runs several steps in parallel, in threads of one JVM. Spark's job properties belong to the thread,
so each step sets its own: a scheduler pool and a tag. Afterwards the thread has its earlier properties again,
because it may return to a pool.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.failures import NO_EXECUTORS, SessionGone, StepFailed, cause_and_fix, remedy_of
from glidemq_orchestrate.spark.sessions.progress import (
    POLL_SECONDS,
    REPORT_SECONDS,
    StageProgress,
    Starvation,
    await_counts,
    facts_of,
    summed,
)
from glidemq_orchestrate.spark.sessions.sharing.activity import active, install
from glidemq_orchestrate.spark.sessions.sharing.context import sessions_on, stop_streams
from glidemq_orchestrate.spark.sessions.sharing.current import Calls
from glidemq_orchestrate.spark.sessions.warm import WarmSession, is_alive
from glidemq_orchestrate.spark.setup.request import StepRequest, configure, identify
from glidemq_orchestrate.spark.setup.spark_settings import PATIENCE_VARIABLE
from glidemq_orchestrate.worker.handlers.context import Context

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

END_SECONDS: Final = 10.0
REPORT_STARVATION_SECONDS: Final = 10.0
MAX_JOBS: Final = 100
"""How many of the last jobs of a failed step are checked for tasks that still run."""


class ClassicEngine:
    """Steps on the warm session of this process, and its JVM. Any thread may call it.

    If the session has ended, the next step builds a new one.
    """

    def __init__(self, warm: WarmSession) -> None:
        self._warm = warm

    def start(self) -> None:
        """Build the session, unless it exists; on a local master also run a first job, which takes seconds.

        Raises:
            JavaMissing, ConfigurationError: It cannot be built.
        """
        spark = self.session()
        if str(spark.sparkContext.master).startswith("local"):
            logger.info("Spark runs a first job, which loads what steps need; this takes seconds")
            spark.range(1).count()

    def is_alive(self) -> bool:
        """Whether the session replies."""
        return self._warm.is_alive

    def session(self) -> SparkSession:
        """The session, for work that belongs to no step."""
        spark = self._warm.get()
        install()
        return spark

    @contextmanager
    def step(self, ctx: Context, request: StepRequest) -> Iterator[SparkSession]:
        """Run a block as a step: with its own session, progress in ``ctx``, and an end by ``ctx.cancelled``.

        Afterwards nothing of it runs or remains in the session.

        Raises:
            InvalidCall: A step may not change one of the settings.
            SessionGone: Instead of the error of the block, if the session has ended.
            StepFailed: The same, if no executor ran anything for ``request.patience``.
        """
        shared, watch = self.session(), None
        try:
            with _session_on(shared) as spark:
                if request.conf:
                    configure(request.title, spark, request.conf, dict(spark.sparkContext.getConf().getAll()))
                identify(spark, request.identity)
                calls = Calls()
                with _watch_step(spark, ctx, request, calls) as watch, active(spark, calls, watch.group):
                    yield spark
        except Exception as exc:
            if watch is not None and watch.has_given_up:
                raise StepFailed(
                    f"no executor ran anything of {request.title} for {request.patience:g} s "
                    f"({PATIENCE_VARIABLE}): {NO_EXECUTORS}"
                ) from exc
            if not is_alive(shared):
                text = str(exc)
                raise SessionGone(
                    "the Spark session was lost", cause_and_fix(text) if remedy_of(text) else ""
                ) from exc
            raise

    def stop(self) -> None:
        """End the session, and everything that was started for it."""
        self._warm.stop()


@contextmanager
def _session_on(shared: SparkSession) -> Iterator[SparkSession]:
    """A session for a step on the context of another one; what it has cached is released at the end."""
    sessions = sessions_on(shared)
    spark = sessions.new()
    try:
        yield spark
    finally:
        sessions.clear(spark)


@contextmanager
def _watch_step(
    spark: SparkSession, ctx: Context, request: StepRequest, calls: Calls
) -> Iterator[Starvation]:
    """Run a block as one step: its Spark jobs get a pool, a tag, a description and an identity.

    While the block runs, ``ctx.progress`` gets the counts of ``StageProgress``, about once a second if they
    have changed, with the address of Spark's UI as ``ui`` if there is one. At the end it also gets what the
    jobs took (``facts_of``) and ``duration_ms``. Jobs in a group that the block sets itself are not counted.

    Once ``ctx.cancelled`` is set, the running Spark jobs of the block and all later ones are cancelled, and
    its streams are stopped. The same happens when no executor has run anything for ``request.patience``
    seconds: then ``has_given_up`` of the yielded object is true; before that, ``ctx.progress`` gets
    ``waiting_for_executors_s``.

    Afterwards the thread has its earlier properties and tags, and nothing runs in the background: calls of
    threads that the block has started have ended, and so have the tasks of jobs that failed or were
    cancelled.
    """
    tag = f"glidemq-{uuid.uuid4().hex}"  # not the job id: an earlier attempt may still run in this process
    done = threading.Event()
    context = spark.sparkContext
    starvation = Starvation(context.statusTracker(), tag, request.patience)
    watcher = threading.Thread(
        target=_watch, args=(spark, ctx, done, starvation), name=f"watch-{tag}", daemon=True
    )
    java: Any = context._jsc.sc()  # noqa: SLF001  what PySpark's own methods call
    before, has_failed = java.getLocalProperties().clone(), True
    with _pool_names.lend() as pool:
        try:
            # Interrupting a task that waits for its Python worker would end those of all tasks: Spark (4.3)
            # assumes that the process that forks them has ended, and starts another one.
            context.setJobGroup(tag, request.description(ctx), interruptOnCancel=False)
            for name, value in request.identity.items():
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
            ):  # a dead JVM has no properties, and the error of the block is more useful
                _end(context, tag, calls, may_have_left=has_failed)
                java.setLocalProperties(before)


def _watch(spark: SparkSession, ctx: Context, done: threading.Event, starvation: Starvation) -> None:
    context, tag = spark.sparkContext, starvation.group
    began, since = time.monotonic(), time.time()
    with suppress(Exception):  # the JVM has ended: the step itself fails and reports it
        progress = StageProgress(context, tag)
        shown = summed(())
        page = {"ui": context.uiWebUrl} if context.uiWebUrl else {}
        due = time.monotonic() + REPORT_SECONDS
        ended = False
        while not ended:
            ended = done.wait(POLL_SECONDS)
            if ctx.cancelled.is_set() or starvation.has_given_up:
                # Repeated each time: a job that the step submits after this cancel must end too.
                context.cancelJobsWithTag(tag)
                stop_streams(spark)
            elif ended or time.monotonic() >= due:
                due = time.monotonic() + REPORT_SECONDS
                if ended:
                    await_counts(context)
                counts = progress.read()
                if (waiting := starvation.read()) >= REPORT_STARVATION_SECONDS:
                    if "waiting_for_executors_s" not in shown:
                        ctx.log(
                            f"no executor runs anything of this session for {waiting:.0f} s: {NO_EXECUTORS}"
                        )
                    counts["waiting_for_executors_s"] = int(waiting)
                facts = facts_of(spark, tag, since, progress.jobs) if ended else {}
                if facts:
                    facts["duration_ms"] = int((time.monotonic() - began) * 1000)
                if facts or counts != shown:
                    shown = counts
                    ctx.progress({**counts, **page, **facts})


def _end(context: SparkContext, tag: str, calls: Calls, *, may_have_left: bool) -> None:
    """End what a step still does, and wait: it must not overlap with what comes next.

    Args:
        context: The context of the step.
        tag: The tag of its jobs.
        calls: The calls of its threads.
        may_have_left: Whether tasks may still run after their jobs have failed.
    """
    calls.end()
    tracker, until = context.statusTracker(), time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        is_idle = not calls.are_running  # before the check for jobs that these have begun
        context.cancelJobsWithTag(tag)
        if not set(tracker.getActiveJobsIds()).isdisjoint(tracker.getJobIdsForGroup(tag)):
            may_have_left = True
        elif is_idle and not (may_have_left and _has_tasks(tracker, tag)):
            return
        time.sleep(POLL_SECONDS / 4)
    logger.warning("Spark still runs tasks of a step that ended %g s ago", END_SECONDS)


def _has_tasks(tracker: StatusTracker, tag: str) -> bool:
    """Whether a task of the last jobs that did not succeed runs: Spark ends a job before its tasks."""
    last = sorted(tracker.getJobIdsForGroup(tag))[-MAX_JOBS:]
    jobs = [job for number in last if (job := tracker.getJobInfo(number)) and job.status != "SUCCEEDED"]
    stages = {stage for job in jobs for stage in job.stageIds}
    return any(info.numActiveTasks > 0 for stage in stages if (info := tracker.getStageInfo(stage)))


class PoolNames:
    """Names of FAIR pools, each lent to one step at a time.

    Spark keeps every pool that it has ever seen, so names are reused: there are never more pools than steps
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
