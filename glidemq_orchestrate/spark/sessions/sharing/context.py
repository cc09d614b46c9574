"""Separates what Spark has once for a context: jobs, checkpoints, cached RDDs, broadcasts, streams.

A step that cancels jobs cancels only its own. Its checkpoint directory is its own too: the context has it
only while something is being marked for a checkpoint.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.sessions.sharing.current import (
    Current,
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
    _step: Current,
    method: Method,
    context: Any,
    groupId: str,  # noqa: N803
    description: str,
    interruptOnCancel: bool = False,  # noqa: FBT001, FBT002, N803
) -> None:
    """No task is interrupted; see ``classic._watched``."""
    del interruptOnCancel
    method(context, groupId, description, interruptOnCancel=False)


def _cancel_all(step: Current, _method: Method, context: Any) -> None:
    context._jsc.cancelJobsWithTag(step.tag)  # noqa: SLF001  what PySpark's does


def _cancel_own(which: str) -> Callable[..., None]:
    def cancel(step: Current, _method: Method, context: Any, name: str) -> None:
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


def _set_checkpoints(step: Current, method: Method, context: Any, dirName: str) -> None:  # noqa: N803  PySpark's
    with _directory(context, None) as java:
        method(context, dirName)
        step.checkpoints = java.checkpointDir()


def _get_checkpoints(step: Current, method: Method, context: Any) -> Any:
    return method(context) if step.checkpoints is None else step.checkpoints.get()


def _checkpoint_set(step: Current, method: Method, data: Any) -> None:
    if step.checkpoints is None:
        method(data)
        return
    with _directory(data.context, step.checkpoints):
        method(data)


def _checkpoint_frame(step: Current, method: Method, frame: Any, eager: bool = True) -> Any:  # noqa: FBT001, FBT002
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


def _note_cached(step: Current, data: Any) -> None:
    step.undo["cached", id(data)] = data.unpersist  # a reference to the data, so its id is not reused


def _forget_cached(step: Current, data: Any) -> None:
    step.undo.pop(("cached", id(data)), None)


def _note_stream(step: Current, _writer: Any) -> None:
    step.undo["streams", 0] = functools.partial(stop_streams, step.spark)


def _broadcast(step: Current, method: Method, context: Any, value: Any) -> Any:
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
    _step: Current, method: Method, writer: Any, func: Callable[..., Any], *given: Any, **named: Any
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
