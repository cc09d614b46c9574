"""Runs one step on an engine, in the process of its session.

The payload of a ``spark.python`` job is::

    {"callable": "package.module:function", "arguments": {"month": 1}, "location": "/data/flights",
     "conf": {"spark.sql.shuffle.partitions": 8}}

``function(spark, ctx, **arguments)`` is called. ``location``, the directory or URI where it reads and writes,
is ``ctx.data["location"]``. ``conf`` holds settings of Spark SQL for this step alone, and settings of the
session that it needs; ``session`` can request a separate session (see ``setup.request``). ``lineage`` names
what it reads and writes (see the module ``lineage``). It returns the job's result: small JSON, with the paths
of large data. Its records of ``logging`` from INFO on go to the log of the job too, if the level of the
worker's log admits them.

The module must be in a package that the worker was started with, by ``glidemq worker --allow-import package``
or ``Worker(allow_import=["package"])``. Any other fails the job permanently, without being imported.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.failures import LINES, StepCancelled, StepFailed, cause_and_fix
from glidemq_orchestrate.spark.lineage import Lineage
from glidemq_orchestrate.spark.published.reading import after_dependencies
from glidemq_orchestrate.spark.setup.request import StepRequest, identity_of, settings_in
from glidemq_orchestrate.spark.setup.spark_settings import patience
from glidemq_orchestrate.spark.steps.sql import SQL_JOB, statement_of
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.log import MAX_CHARACTERS, captured
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall, NamedCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB_NAME: Final = "spark.python"
FIELDS: Final = ("location", "conf", "lineage", "session", "user")


def run_step(
    session: Callable[[Context, StepRequest], AbstractContextManager[SparkSession]], ctx: Context
) -> Json:
    """Run the step that the payload names, and return its result.

    The step gets its own session on the shared context: steps that run at the same time do not share
    temporary views or settings.

    Args:
        session: The ``step`` of an engine; see ``ClassicEngine``.
        ctx: The job.

    Raises:
        InvalidCall: The payload names no function that may be called with it, or the result is not JSON.
        StepCancelled: The job was cancelled while the step ran.
        StepFailed: Spark raised an error. An error of the step itself is raised unchanged.
        SessionGone: The session was lost while the step ran.
    """
    call = statement_of(ctx, FIELDS) if ctx.name == SQL_JOB else NamedCall.of(ctx, "step", fields=FIELDS)
    extras, identity = _extras(call.title, ctx.data), identity_of(call.title, ctx)
    request = StepRequest(call.title, extras, patience().total_seconds(), identity)
    call.check(leading=2)
    try:
        with session(ctx, request) as spark, captured(ctx), after_dependencies(ctx.inputs, spark):
            result = call.function(spark, ctx, **call.arguments)
    except StepFailed:  # the engine has ended it
        raise
    except Exception as exc:
        if ctx.cancelled.is_set():
            raise StepCancelled(f"{call.title} was cancelled") from exc
        if failure := _failure(ctx, exc):
            raise failure from exc
        raise
    if inspect.iscoroutine(result):
        result.close()
        raise InvalidCall(f"{call.title} is async: a Spark step must be a plain function")
    return call.checked(result, "Write data to the location and return its path")


def _failure(ctx: Context, exc: Exception) -> StepFailed | None:
    """An error of Spark, or of its disk, in a sentence; None for any other. The full text goes to the log."""
    from py4j.protocol import Py4JError  # noqa: PLC0415  of an extra
    from pyspark.errors import PySparkException

    if isinstance(exc, OSError) and exc.errno in {errno.ENOTDIR, errno.ENOSPC}:
        return StepFailed(cause_and_fix(f"{type(exc).__name__}: {exc}"))
    if not isinstance(exc, PySparkException | Py4JError) and type(exc).__name__ != "PicklingError":
        return None
    text = str(exc)
    for line in text.splitlines()[:LINES]:
        ctx.log(line[:MAX_CHARACTERS])
    return StepFailed(cause_and_fix(text))


def _extras(title: str, data: Json) -> Mapping[str, Json]:
    """The settings for a step, whose other fields are checked."""
    if not isinstance(data, dict) or not isinstance(data.get("location", ""), str):
        raise InvalidCall(f"{title}: location must be a string, a directory or URI")
    try:
        Lineage.of(data)
    except ValueError as exc:
        raise InvalidCall(f"{title}: {exc}") from exc
    return settings_in(data.get("conf"), f"{title}: ")
