"""Separates what Spark has once for a context: jobs, checkpoints, caches, broadcasts, streams, global views.

A step that cancels jobs cancels only its own. Its checkpoint directory is its own too: the context has it
only while something is being marked for a checkpoint.

Spark has one cache of tables for all sessions of a context. It identifies tables by their plans, so a step
would uncache what another has cached too, read rows that another has cached, and refresh or clear what others
use. Spark has no public way to create another cache: the state that the sessions of a context share is copied
by reflection, without its cache and its global views. Everything else is the same: the catalog, streams, the
pages of the UI.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.sessions.sharing.current import (
    CurrentStep,
    Method,
    current,
    in_step,
    unless_in_step,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_checkpoints: Final = threading.Lock()
"""Held while the context has the directory of a step."""


def share_context() -> None:
    """Replace methods of PySpark; to be called once."""
    from pyspark import RDD, SparkContext
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    contexts: Any = SparkContext
    sets: Any = RDD
    streams: Any = DataStreamWriter
    replacements: dict[tuple[Any, str], Callable[..., Any]] = {
        (contexts, "cancelAllJobs"): _cancel_all,
        (contexts, "cancelJobGroup"): _cancel_own("getJobIdsForGroup"),
        (contexts, "cancelJobsWithTag"): _cancel_own("getJobIdsForTag"),
        (contexts, "setJobGroup"): _set_group,
        (contexts, "setInterruptOnCancel"): lambda *_, **__: None,
        (contexts, "setCheckpointDir"): _set_checkpoints,
        (contexts, "getCheckpointDir"): _get_checkpoints,
        (contexts, "broadcast"): _broadcast,
        (sets, "checkpoint"): _checkpoint_set,
        (_frame_class(), "checkpoint"): _checkpoint_frame,
        (streams, "foreachBatch"): _for_each_batch,
    }
    for (owner, name), instead in replacements.items():
        setattr(owner, name, in_step(getattr(owner, name), instead))
    contexts.stop = unless_in_step(contexts.stop)
    contexts.clearJobTags = _keeping_tag(contexts.clearJobTags)
    sets.persist = _noting(sets.persist, _note_cached)
    sets.unpersist = _noting(sets.unpersist, _forget_cached)
    for name in ("start", "toTable"):
        setattr(streams, name, _noting(getattr(streams, name), _note_stream))


def stop_streams(spark: SparkSession) -> None:
    """Stop the streams of a session."""
    for query in spark.streams.active:
        with suppress(Exception):  # it has just ended
            query.stop()


def _keeping_tag(clear: Method) -> Method:
    """The tag of the step stays: a cancel finds its jobs by it."""

    @functools.wraps(clear)
    def cleared(self: Any) -> None:
        clear(self)
        if (step := current.get()) is not None and step.tag:
            self.addJobTag(step.tag)

    return cleared


def _set_group(
    _step: CurrentStep,
    method: Method,
    context: Any,
    groupId: str,  # noqa: N803
    description: str,
    interruptOnCancel: bool = False,  # noqa: FBT001, FBT002, N803
) -> None:
    """No task is interrupted; see ``classic._watch_step``."""
    del interruptOnCancel
    method(context, groupId, description, interruptOnCancel=False)


def _cancel_all(step: CurrentStep, _method: Method, context: Any) -> None:
    context._jsc.cancelJobsWithTag(step.tag)  # noqa: SLF001  what PySpark's does


def _cancel_own(which: str) -> Callable[..., None]:
    def cancel(step: CurrentStep, _method: Method, context: Any, name: str) -> None:
        java = context._jsc.sc()  # noqa: SLF001
        tracker = java.statusTracker()
        own = set(tracker.getJobIdsForTag(step.tag))
        for number in own.intersection(getattr(tracker, which)(name)):
            java.cancelJob(number)

    return cancel


@contextmanager
def _directory(context: Any, directory: Any) -> Iterator[Any]:
    """Give the context a checkpoint directory while the block runs."""
    java = context._jsc.sc()  # noqa: SLF001
    put = getattr(java, "checkpointDir_$eq")
    with _checkpoints:
        before = java.checkpointDir()
        try:
            if directory is not None:
                put(directory)
            yield java
        finally:
            put(before)


def _set_checkpoints(step: CurrentStep, method: Method, context: Any, dirName: str) -> None:  # noqa: N803  PySpark's
    with _directory(context, None) as java:
        method(context, dirName)
        step.checkpoints = java.checkpointDir()


def _get_checkpoints(step: CurrentStep, method: Method, context: Any) -> Any:
    return method(context) if step.checkpoints is None else step.checkpoints.get()


def _checkpoint_set(step: CurrentStep, method: Method, data: Any) -> None:
    if step.checkpoints is None:
        method(data)
        return
    with _directory(data.context, step.checkpoints):
        method(data)


def _checkpoint_frame(step: CurrentStep, method: Method, frame: Any, eager: bool = True) -> Any:  # noqa: FBT001, FBT002
    if step.checkpoints is None:
        return method(frame, eager)
    with _directory(frame.sparkSession.sparkContext, step.checkpoints):
        made = method(frame, False)  # written below: others need not wait
    if eager:
        made._jdf.queryExecution().logical().rdd().doCheckpoint()  # noqa: SLF001
    return made


def _noting(method: Method, note: Callable[..., None]) -> Method:
    """A method that, in a step, also notes how to undo it."""

    @functools.wraps(method)
    def noted(self: Any, *given: Any, **named: Any) -> Any:
        result = method(self, *given, **named)
        if (step := current.get()) is not None:
            note(step, self)
        return result

    return noted


def _note_cached(step: CurrentStep, data: Any) -> None:
    step.undo["cached", id(data)] = data.unpersist  # a reference to the data, so its id is not reused


def _forget_cached(step: CurrentStep, data: Any) -> None:
    step.undo.pop(("cached", id(data)), None)


def _note_stream(step: CurrentStep, _writer: Any) -> None:
    step.undo["streams", 0] = functools.partial(stop_streams, step.spark)


def _broadcast(step: CurrentStep, method: Method, context: Any, value: Any) -> Any:
    """A variable whose file ends with the step; PySpark would keep it as long as the context."""
    made = method(context, value)
    step.undo[f"broadcast {made._path}", 0] = functools.partial(_release, weakref.ref(made), made._path)  # noqa: SLF001
    return made


def _release(made: Callable[[], Any], path: str) -> None:
    if (variable := made()) is not None:
        with suppress(Exception):  # the step has done it
            variable.destroy()
    Path(path).unlink(missing_ok=True)


def _for_each_batch(
    _step: CurrentStep, method: Method, writer: Any, func: Callable[..., Any], *given: Any, **named: Any
) -> Any:
    """Java calls the function in a thread that belongs to no step, so it gets the context of this one."""
    about = contextvars.copy_context()

    @functools.wraps(func)
    def called(*batch: Any) -> Any:
        return about.copy().run(func, *batch)

    return method(writer, called, *given, **named)


def _frame_class() -> Any:
    """The class of the data frames of a session with a JVM: PySpark 4 has one for each kind of session."""
    with suppress(ImportError):
        from pyspark.sql.classic.dataframe import DataFrame

        return DataFrame
    from pyspark.sql import DataFrame as DataFrame3

    return DataFrame3


logger = logging.getLogger("glidemq_orchestrate.spark")

AGAIN_SECONDS: Final = 60.0
"""How long sessions share the cache after the catalog could not be reached."""
_PLACE: Final = "existingSharedState"
"""The field of a session with its shared state; read once, when the session is first used."""
_CACHE: Final = "cacheManager"
_VIEWS: Final = "globalTempViewManager"
_lock = threading.Lock()
_latest: Sessions | None = None
_OF_PARENTS: Final[list[object]] = []
"""Referenced in a forked child, because Py4J would report collected objects on the parent's connection."""


def sessions_on(spark: SparkSession) -> Sessions:
    """The maker of sessions on the context of one; it is reused for the next step."""
    global _latest  # noqa: PLW0603
    with _lock:
        found = _latest
        if found is None or found.spark is not spark or found.is_stale:
            found = _latest = Sessions(spark)
        return found


class Sessions:
    """Makes sessions on the context of another one.

    They share its cache if the internals of this Spark release are unknown, and while its catalog cannot be
    reached. Both are logged.

    Args:
        spark: The session whose settings and global views they start with.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._again = float("inf")
        self._shared: _Shared | None = None
        from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # noqa: PLC0415  of an extra

        try:
            self._shared = _Shared(spark)
            trial: Any = self.new()
            if trial._jsparkSession.sharedState().cacheManager().equals(self._shared.cache):  # noqa: SLF001
                raise TypeError("a session has the cache of another")  # noqa: TRY301
        except Py4JNetworkError:
            raise
        except (Py4JError, AttributeError, TypeError) as exc:
            self._shared = None
            if isinstance(exc, Py4JJavaError):  # perhaps the metastore of Hive is down
                self._again = time.monotonic() + AGAIN_SECONDS
            logger.warning(
                'steps share what they cache; a step that must not share should set "session": "own": %s',
                (str(exc).splitlines() or [""])[0],
                extra={"action": "spark_cache_shared"},
            )

    @property
    def is_stale(self) -> bool:
        """Whether to try again with a new one."""
        return time.monotonic() > self._again

    def new(self) -> SparkSession:
        """Make a session; ``clear`` it at its end."""
        made = self.spark.newSession()
        if self._shared is not None:
            sessions: Any = made
            self._shared.give(sessions._jsparkSession)  # noqa: SLF001
        return made

    def clear(self, spark: SparkSession) -> None:
        """Release the cache and the views of a session: threads of Spark's pools may reference it.

        Repeatable. Nothing is raised, even without a JVM.
        """
        sessions: Any = spark
        with suppress(Exception):  # half a dozen unrelated classes of py4j
            sessions._jsparkSession.sessionState().catalog().clearTempTables()  # noqa: SLF001
            if self._shared is not None:
                sessions._jsparkSession.sharedState().cacheManager().clearCache()  # noqa: SLF001


class _Shared:
    """The shared state of a context's sessions, and copies of it with their own cache and global views."""

    def __init__(self, spark: SparkSession) -> None:
        sessions: Any = spark
        self._jvm, state = sessions._jvm, sessions._jsparkSession.sharedState()  # noqa: SLF001
        self.cache, self._views = state.cacheManager(), state.globalTempViewManager()
        state.externalCatalog()  # so that no copy creates another one
        state.streamingQueryStatusListener()
        database = spark.sparkContext.getConf().get("spark.sql.globalTempDatabase", "global_temp")
        self._database = str(database).lower()
        self._made: dict[str, Callable[[], Any]] = {
            _CACHE: self._jvm.org.apache.spark.sql.execution.CacheManager,
            _VIEWS: self._copied_views,
        }
        self._kind = state.getClass()
        self._fields = list(self._read(state))
        unsafe = self._jvm.java.lang.Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        unsafe.setAccessible(True)
        self._unsafe = unsafe.get(None)
        self._place = sessions._jsparkSession.getClass().getDeclaredField(_PLACE)  # noqa: SLF001
        self._place.setAccessible(True)

    def give(self, session: Any) -> None:
        """Give an unused Java session a copy."""
        copy = self._unsafe.allocateInstance(self._kind)
        for write, value in self._fields:
            write(copy, value() if callable(value) else value)
        self._place.set(session, self._jvm.scala.Option.apply(copy))

    def _copied_views(self) -> Any:
        views = self._jvm.org.apache.spark.sql.catalyst.catalog.GlobalTempViewManager(self._database)
        names = self._views.listViewNames("*")
        for number in range(names.size()):
            if (view := self._views.get(names.apply(number))).isDefined():
                views.create(names.apply(number), view.get(), True)
        return views

    def _read(self, state: Any) -> Iterator[tuple[Callable[[Any, Any], object], Any]]:
        """For each field, how to write it, and its value or a function that makes one."""
        is_static = self._jvm.java.lang.reflect.Modifier.isStatic
        found = set[str]()
        for field in self._kind.getDeclaredFields():
            if is_static(field.getModifiers()):
                continue
            field.setAccessible(True)
            name, kind = field.getName(), field.getType()
            found.add(name)
            if name in self._made:
                yield field.set, self._made[name]
            elif kind.isPrimitive():
                of = kind.getName().capitalize()
                yield getattr(field, f"set{of}"), getattr(field, f"get{of}")(state)
            elif (value := field.get(state)) is not None:
                yield field.set, value
        if missing := self._made.keys() - found:
            raise TypeError(f"the shared state has no {', '.join(sorted(missing))}")


def _leave_to_parent() -> None:
    global _latest, _lock
    _OF_PARENTS.append(_latest)
    _latest, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_leave_to_parent)
