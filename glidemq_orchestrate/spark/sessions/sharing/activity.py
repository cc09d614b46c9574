"""Activates the session of a step, in its thread and in the threads that it starts.

While a step runs, ``SparkSession.getActiveSession()`` and ``builder.getOrCreate()`` return its own session,
and ``stop()`` does nothing, because other steps use the context. PySpark has no public way to do any of this,
so its methods, and those of Py4J and of threads, are replaced before the first step.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.spark.sessions.sharing.context import share_context
from glidemq_orchestrate.spark.sessions.sharing.current import (
    Calls,
    CurrentStep,
    activate,
    bind_threads,
    current,
    guard_connections,
    in_context,
    unless_in_step,
    with_properties,
)
from glidemq_orchestrate.spark.sessions.sharing.files import share_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def active(spark: SparkSession, calls: Calls | None = None, tag: str = "") -> Iterator[None]:
    """Run a block as a step with a session, which is active in this thread and in those that it starts.

    At the end its threads can no longer call Spark, RDDs that it has cached are released, and its streams are
    stopped.
    """
    step = CurrentStep(spark, calls or Calls(), tag)
    token = current.set(step)
    deactivate = activate(step)
    try:
        yield
    finally:
        current.reset(token)
        step.calls.end()
        deactivate()
        for undo in reversed(list(step.undo.values())):
            with suppress(Exception):  # the step has done it, or the JVM has ended
                undo()


@functools.cache
def install() -> None:
    """Replace the methods of PySpark, Py4J and threads. Repeatable."""
    from pyspark.sql import SparkSession

    _isolate_steps(SparkSession)
    bind_threads(with_properties)
    guard_connections()
    share_context()
    share_files()


@functools.cache
def install_for_connect() -> None:
    """The same for sessions of Spark Connect, where each step has its own context. Repeatable."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # PySpark's functions read it
    for sessions in (SparkSession, ConnectSession):
        _isolate_steps(sessions)
    bind_threads(in_context)


def _isolate_steps(sessions: Any) -> None:
    """Replace the methods of a session class that would give a step another session, or end others."""
    sessions.stop = unless_in_step(sessions.stop)
    sessions.getActiveSession = classmethod(_of_step(sessions.getActiveSession.__func__))
    sessions.Builder.getOrCreate = _configured(sessions.Builder.getOrCreate)


def _of_step(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def got(cls: Any) -> Any:
        step = current.get()
        return get(cls) if step is None else step.spark

    return got


def _configured(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def got(self: Any) -> Any:
        step = current.get()
        if step is None:
            return get(self)
        for name, value in self._options.items():
            if step.spark.conf.isModifiable(name):
                step.spark.conf.set(name, value)
        return step.spark

    return got
