"""What PySpark keeps once for a process and each step needs for itself, as steps share one context.

While a step runs, ``SparkSession.getActiveSession()`` and ``builder.getOrCreate()`` return its own session,
in its thread and in those that it starts, also in what it submits to a pool of threads that was there before;
these have its tag, its pool and its description too, so that a cancel reaches what they do, and call Spark no
more when it has ended. ``stop()`` in a step does nothing, as others use the context; what a step caches, its
global views and its streams end with it. PySpark has no public way to any of this, so methods of it, of Py4J
and of threads are replaced when there is a session.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.calls import Calls
from glidemq_orchestrate.spark.release import is_spark_3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_NAME: Final = r"(?P<name>`[^`]+`|[\w.]+)"
_CACHES: Final = re.compile(rf"\s*cache\s+(?:lazy\s+)?table\s+{_NAME}", re.IGNORECASE)
_SHOWS: Final = re.compile(
    rf"\s*create\s+(?:or\s+replace\s+)?global\s+temp(?:orary)?\s+view\s+(?:if\s+not\s+exists\s+)?{_NAME}",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that runs: its session, its calls of the JVM, and what undoes what others would see of it."""

    spark: SparkSession
    calls: Calls
    undo: dict[tuple[str, str | int], Callable[[], object]] = field(default_factory=dict)


_views: Final[dict[str, _Step]] = {}
"""Whose the global views are: another step may have replaced one."""
_step: Final[contextvars.ContextVar[_Step | None]] = contextvars.ContextVar("step", default=None)


@contextmanager
def active(spark: SparkSession, calls: Calls | None = None) -> Iterator[None]:
    """Make a session that of the step which runs in this block, in this thread and those that it starts.

    At the end its threads may call Spark no more, what the step has cached is released, its global views are
    dropped, and its streams are stopped.
    """
    step = _Step(spark, calls or Calls())
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)
        step.calls.end()
        for (kind, name), undo in reversed(list(step.undo.items())):
            if kind == "view" and _views.pop(str(name), step) is not step:
                continue  # another step has replaced it
            with suppress(Exception):  # the step has done it, or the JVM has ended
                undo()


@functools.cache
def install() -> None:
    """Replace the methods of PySpark and of threads; repeatable."""
    from py4j.java_gateway import GatewayClient  # noqa: PLC0415  of an extra
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    contexts: Any = SparkContext
    threads: Any = threading.Thread
    contexts.stop = _unless_in_step(contexts.stop)
    _let_steps_have_their_own(SparkSession)
    threads.start = _with(_inherited, threads.start)
    pools: Any = ThreadPoolExecutor
    pools.submit = _submitting(_inherited, pools.submit)
    GatewayClient.send_command = _counted(GatewayClient.send_command)
    _undo_caches_and_views()


@functools.cache
def install_for_connect() -> None:
    """The same for sessions of Spark Connect, of which each step has its own; repeatable."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as OfConnect

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # by which PySpark's functions know
    threads: Any = threading.Thread
    for sessions in (SparkSession, OfConnect):
        _let_steps_have_their_own(sessions)
    threads.start = _with(_in_context, threads.start)
    pools: Any = ThreadPoolExecutor
    pools.submit = _submitting(_in_context, pools.submit)


def _let_steps_have_their_own(sessions: Any) -> None:
    """Replace the methods of a class of sessions by which a step would get another, or end that of others."""
    sessions.stop = _unless_in_step(sessions.stop)
    sessions.getActiveSession = classmethod(_of_step(sessions.getActiveSession.__func__))
    sessions.Builder.getOrCreate = _or_that_of_step(sessions.Builder.getOrCreate)


Bind = Callable[[_Step, Callable[..., Any]], Callable[..., Any]]
"""What lets a function run as a part of a step, in whatever thread."""


def _with(bind: Bind, start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Threads that a step starts are a part of it."""

    @functools.wraps(start)
    def started(self: threading.Thread) -> None:
        if (step := _step.get()) is not None:
            self.run = bind(step, self.run)  # type: ignore[method-assign]
        start(self)

    return started


def _submitting(bind: Bind, submit: Callable[..., Any]) -> Callable[..., Any]:
    """What a step submits to a pool is a part of it, whoever has started the threads of the pool."""

    @functools.wraps(submit)
    def submitted(self: Any, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        step = _step.get()
        return submit(self, function if step is None else bind(step, function), *given, **named)

    return submitted


def _in_context(step: _Step, run: Callable[..., Any]) -> Callable[..., Any]:
    del step  # which is in the context
    return functools.partial(contextvars.copy_context().run, run)


def _inherited(step: _Step, run: Callable[..., Any]) -> Callable[..., Any]:
    """With the properties of the thread of Java too."""
    from pyspark import inheritable_thread_target

    with suppress(Exception):  # without a JVM, or after the end of the step, there is nothing to inherit
        inherits: Any = inheritable_thread_target
        run = inherits(run) if is_spark_3() else inherits(step.spark)(run)
    return _in_context(step, run)


def _counted(send: Callable[..., Any]) -> Callable[..., Any]:
    """Calls of the JVM by threads of a step begin while it runs."""

    @functools.wraps(send)
    def sent(self: Any, *given: Any, **named: Any) -> Any:
        step = _step.get()
        if step is None:
            return send(self, *given, **named)
        return step.calls.run(lambda: send(self, *given, **named))

    return sent


def _undo_caches_and_views() -> None:
    from pyspark import RDD
    from pyspark.sql import SparkSession
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    sets: Any = RDD
    streams: Any = DataStreamWriter
    catalogs: Any = Catalog
    sessions: Any = SparkSession
    frames = _frame_class()
    sets.persist, sets.unpersist = (
        _noting(sets.persist, _note_cached),
        _noting(sets.unpersist, _forget_cached),
    )
    frames.unpersist = _noting(frames.unpersist, _forget_cached)
    for name in ("cache", "persist"):
        setattr(frames, name, _noting(getattr(frames, name), _note_cached))
    for name in ("createGlobalTempView", "createOrReplaceGlobalTempView"):
        setattr(frames, name, _noting(getattr(frames, name), _note_view))
    catalogs.cacheTable = _noting(catalogs.cacheTable, _note_table)
    for name in ("start", "toTable"):
        setattr(streams, name, _noting(getattr(streams, name), _note_stream))
    sessions.sql = _noting(sessions.sql, _note_statement)


def _noting(method: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """A method that, in a step, also notes how it is undone."""

    @functools.wraps(method)
    def noted(self: Any, *given: Any, **named: Any) -> Any:
        result = method(self, *given, **named)
        if (step := _step.get()) is not None:
            with suppress(Exception):  # called as nobody has thought of: then it is not undone
                note(step, self, *given, **named)
        return result

    return noted


def _note_cached(step: _Step, data: Any, *_: Any, **__: Any) -> None:
    step.undo["cached", id(data)] = data.unpersist  # which keeps it, and so its id


def _forget_cached(step: _Step, data: Any, *_: Any, **__: Any) -> None:
    step.undo.pop(("cached", id(data)), None)


def _note_table(step: _Step, catalog: Any, tableName: str, *_: Any, **__: Any) -> None:  # noqa: N803  PySpark's
    step.undo["table", tableName] = functools.partial(catalog.uncacheTable, tableName)


def _note_view(step: _Step, frame: Any, name: str) -> None:
    _views[name] = step
    step.undo["view", name] = functools.partial(frame.sparkSession.catalog.dropGlobalTempView, name)


def _note_stream(step: _Step, *_: Any, **__: Any) -> None:
    step.undo["streams", 0] = functools.partial(stop_streams, step.spark)


def stop_streams(spark: SparkSession) -> None:
    """Stop the streams of a session."""
    for query in spark.streams.active:
        with suppress(Exception):  # it has just ended
            query.stop()


def _note_statement(step: _Step, spark: Any, sqlQuery: str, *_: Any, **__: Any) -> None:  # noqa: N803
    if found := _CACHES.match(sqlQuery):
        _note_table(step, spark.catalog, found["name"])
    elif found := _SHOWS.match(sqlQuery):
        name = found["name"].strip("`")
        _views[name] = step
        step.undo["view", name] = functools.partial(spark.catalog.dropGlobalTempView, name)


def _frame_class() -> Any:
    """The class of the tables of a session with a JVM: PySpark 4 has one for each kind of session."""
    with suppress(ImportError):
        from pyspark.sql.classic.dataframe import DataFrame

        return DataFrame
    from pyspark.sql import DataFrame as OfPySpark3

    return OfPySpark3


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
        step = _step.get()
        return get(cls) if step is None else step.spark

    return got


def _or_that_of_step(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def got(self: Any) -> Any:
        step = _step.get()
        if step is None:
            return get(self)
        spark = step.spark
        for name, value in self._options.items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
        return spark

    return got
