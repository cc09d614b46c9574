"""What PySpark keeps once for a process and each step needs for itself, as steps share one context.

While a step runs, ``SparkSession.getActiveSession()`` and ``builder.getOrCreate()`` return its own session,
in its thread and in those that it starts; these have its tag, its pool and its description too, so that a
cancel reaches what they do. ``stop()`` in a step does nothing, as others use the context. PySpark has no
public way to any of this, so methods of it and of threads are replaced when the worker has a session.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_step: Final[contextvars.ContextVar[SparkSession | None]] = contextvars.ContextVar("step", default=None)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session that of the step which runs in this block, in this thread and those that it starts."""
    token = _step.set(spark)
    try:
        yield
    finally:
        _step.reset(token)


@functools.cache
def install() -> None:
    """Replace the methods of PySpark and of threads; repeatable."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    sessions: Any = SparkSession
    contexts: Any = SparkContext
    threads: Any = threading.Thread
    sessions.stop, contexts.stop = _unless_in_step(sessions.stop), _unless_in_step(contexts.stop)
    sessions.getActiveSession = classmethod(_of_step(sessions.getActiveSession.__func__))
    sessions.Builder.getOrCreate = _or_that_of_step(sessions.Builder.getOrCreate)
    threads.start = _inheriting(threads.start)


def _unless_in_step(stop: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(stop)
    def stopped(self: Any) -> None:
        if _step.get() is None:
            stop(self)
        else:
            logger.warning("stop() was called in a step and did nothing: other steps use the session too")

    return stopped


def _of_step(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def got(cls: Any) -> Any:
        return _step.get() or get(cls)

    return got


def _or_that_of_step(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def got(self: Any) -> Any:
        spark = _step.get()
        if spark is None:
            return get(self)
        for name, value in self._options.items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
        return spark

    return got


def _inheriting(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    from pyspark import __version__, inheritable_thread_target

    takes_session = int(__version__.partition(".")[0]) >= 4

    @functools.wraps(start)
    def started(self: threading.Thread) -> None:
        if (spark := _step.get()) is not None:
            with suppress(Exception):  # without a JVM there is nothing to inherit
                inherits: Any = (
                    inheritable_thread_target(spark) if takes_session else inheritable_thread_target
                )
                run = functools.partial(contextvars.copy_context().run, inherits(self.run))
                self.run = run  # type: ignore[method-assign]
        start(self)

    return started
