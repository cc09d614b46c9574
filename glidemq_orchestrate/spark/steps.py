"""The handler of ``spark.python`` jobs: runs ``module:function`` with the worker's warm SparkSession.

The payload of such a job is::

    {"callable": "package.module:function", "arguments": {"month": 1}, "location": "/data/flights",
     "conf": {"spark.sql.shuffle.partitions": 8}}

``function(spark, ctx, **arguments)`` runs in a thread; ``location``, the directory or URI where it reads and
writes, is ``ctx.data["location"]``; ``conf`` holds settings of Spark SQL for this step alone; ``lineage``
names what it reads and writes (see the module ``lineage``). What it returns is the job's result: small JSON,
with the paths of large data. What it logs by ``logging``, from INFO on, is in the log of the job too; the
level of the worker's log counts.

The module must be in a package that the worker was started with, by ``glidemq worker --allow-import package``
or ``Worker(allow_import=["package"])``; any other fails the job for good, without being imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.importing import importing
from glidemq_orchestrate.spark.failures import LINES, explained
from glidemq_orchestrate.spark.lineage import Lineage
from glidemq_orchestrate.spark.losses import FREE, Losses
from glidemq_orchestrate.spark.published.acceptance import accepted
from glidemq_orchestrate.spark.published.catching_up import catch_up
from glidemq_orchestrate.spark.session import (
    CONF_VARIABLE,
    PATIENCE_VARIABLE,
    is_alive,
    patience,
    warm_session,
)
from glidemq_orchestrate.spark.sharing import active
from glidemq_orchestrate.worker.captured import MOST_CHARACTERS, captured
from glidemq_orchestrate.worker.context import Context
from glidemq_orchestrate.worker.handler import Handlers, Serving
from glidemq_orchestrate.worker.imported import InvalidCall, NamedCall
from glidemq_orchestrate.worker.signals import RetryLater

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB_NAME: Final = "spark.python"
AFTER_LOSS: Final = timedelta(seconds=1)
GRACE: Final = timedelta(seconds=30)
"""How long a step that has timed out may take to end, before its next attempt may begin beside it."""

handlers = Handlers()
losses: Final = Losses()


class StepCancelled(Exception):
    """The step was stopped because its job was cancelled, timed out or went to another worker."""


class StepFailed(Exception):
    """Spark failed: the innermost cause, and what to do. ``__cause__`` is the error of PySpark."""


class SessionLost(Exception):
    """The session was lost again and again while the step ran: it costs an attempt."""


@handlers.handler(JOB_NAME, grace=GRACE)
def run_python_step(ctx: Context) -> Json:
    """Run the step that the payload names, on the warm session, and return its result.

    The step gets a session of its own on the shared context: steps that run at the same time do
    not share temporary views or settings.

    Raises:
        InvalidCall: The payload names no function that may be called so, or the result is not JSON.
        StepCancelled: The job was cancelled while the step ran.
        StepFailed: Spark raised an error. An error of the step's own is raised as it is.
        RetryLater: The session was lost, maybe by another step: it costs no attempt.
        SessionLost: It was lost again while the step ran alone, or for the third time in a row.
    """
    with importing():
        from glidemq_orchestrate.spark.watch import WHY, watched  # noqa: PLC0415  not needed at start-up

    call = NamedCall.of(ctx, "step", fields=["location", "conf", "lineage"])
    conf = _extras(call.title, ctx.data)
    call.check(leading=2)
    job = f"{ctx.queue}:{ctx.job_id}"
    description = f"{ctx.node or call.title} ({ctx.job_id}, attempt {ctx.attempt})"
    with losses.place(job, ctx.cancelled.is_set) as is_alone:
        shared, watch, limit = warm_session.get(), None, patience()
        try:
            spark = shared.newSession()
            _configure(call.title, spark, conf)
            with (
                watched(spark.sparkContext, ctx, description, limit) as watch,
                active(spark),
                captured(ctx),
            ):
                result = call.function(spark, ctx, **call.arguments)
        except Exception as exc:
            if watch is not None and watch.has_given_up:
                raise StepFailed(
                    f"no executor ran anything of {call.title} for {limit:g} s ({PATIENCE_VARIABLE}): {WHY}"
                ) from exc
            if ctx.cancelled.is_set():
                raise StepCancelled(f"{call.title} was cancelled") from exc
            if not is_alive(shared):
                raise _lost(call.title, losses.note(job), is_alone=is_alone) from exc
            losses.forget(job)
            if failure := _failure(ctx, exc):
                raise failure from exc
            raise
        losses.forget(job)
    return call.checked(result, "Write data to the location and return its path")


def _lost(title: str, count: int, *, is_alone: bool) -> Exception:
    """What a step raises whose session was lost while it ran; alone it runs only after a loss."""
    if is_alone or count > FREE:
        how = ", now alone" if is_alone else ""
        return SessionLost(
            f"the Spark session was lost {count} times in a row while {title} ran{how}: its driver ran out "
            "of memory (spark.driver.memory in GLIDEMQ_SPARK_CONF), or the step ends the JVM"
        )
    return RetryLater(
        AFTER_LOSS, f"the Spark session was lost while {title} ran, maybe by another step", counts=False
    )


def _failure(ctx: Context, exc: Exception) -> StepFailed | None:
    """The error of Spark in a sentence, with the whole of it in the log of the job; None for any other."""
    from py4j.protocol import Py4JError  # noqa: PLC0415  of an extra
    from pyspark.errors import PySparkException

    if not isinstance(exc, PySparkException | Py4JError) and type(exc).__name__ != "PicklingError":
        return None
    text = str(exc)
    for line in text.splitlines()[:LINES]:
        ctx.log(line[:MOST_CHARACTERS])
    return StepFailed(explained(text))


def _extras(title: str, data: Json) -> Mapping[str, Json]:
    """The settings for a step; its location is its own affair."""
    if not isinstance(data, dict) or not isinstance(data.get("location", ""), str):
        raise InvalidCall(f"{title}: location must be a string, a directory or URI")
    try:
        Lineage.of(data)
    except ValueError as exc:
        raise InvalidCall(f"{title}: {exc}") from exc
    conf = data.get("conf")
    conf = {} if conf is None else conf
    if not isinstance(conf, dict) or not all(isinstance(one, str | int | float) for one in conf.values()):
        raise InvalidCall(f"{title}: conf must be an object of settings with plain values")
    return conf


def _configure(title: str, spark: SparkSession, conf: Mapping[str, Json]) -> None:
    for name, value in conf.items():
        if not spark.conf.isModifiable(name):
            raise InvalidCall(
                f"{title}: {name} is not a setting of Spark SQL that a step may change; settings of the "
                f"context are the worker's: {CONF_VARIABLE}"
            )
        spark.conf.set(name, str(value).lower() if isinstance(value, bool) else str(value))


@handlers.on_start
def start_session() -> None:
    """Build the session before the first job, so that no step waits for the JVM."""
    warm_session.get()


@handlers.on_start
def watch_results(serving: Serving) -> None:
    """Make versions that an accepted result names and that its worker could not make."""
    catch_up.start(serving, warm_session.get)


@handlers.on_stop
def stop_session() -> None:
    """End the session and its JVM."""
    catch_up.stop()
    warm_session.stop()


handlers.on_job(accepted.on_job)
