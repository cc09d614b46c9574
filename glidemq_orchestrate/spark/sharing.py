"""What PySpark keeps once for a process and each step needs for itself, as steps share one context.

While a step runs, ``SparkSession.getActiveSession()`` and ``builder.getOrCreate()`` return its own session,
in its thread and in those that it starts, also in what it submits to a pool of threads that was there before;
these have its tag, its pool and its description too, so that a cancel reaches what they do, and call Spark no
more when it has ended. ``stop()`` in a step does nothing, as others use the context; see also the module
``context``. PySpark has no public way to any of this, so methods of it, of Py4J and of threads are replaced
when there is a session.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.spark.calls import Calls
from glidemq_orchestrate.spark.context import let_steps_share_it, unless_in_step
from glidemq_orchestrate.spark.current import Current, current
from glidemq_orchestrate.spark.release import is_spark_3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def active(spark: SparkSession, calls: Calls | None = None, tag: str = "") -> Iterator[None]:
    """Make a session that of the step which runs in this block, in this thread and those that it starts.

    At the end its threads may call Spark no more, RDDs that it has cached are released, and its streams are
    stopped.
    """
    step = Current(spark, calls or Calls(), tag)
    token = current.set(step)
    end_activity = _be_active(step)
    try:
        yield
    finally:
        current.reset(token)
        step.calls.end()
        end_activity()
        for undo in reversed(list(step.undo.values())):
            with suppress(Exception):  # the step has done it, or the JVM has ended
                undo()


@functools.cache
def install() -> None:
    """Replace the methods of PySpark and of threads; repeatable."""
    from py4j.clientserver import ClientServerConnection  # noqa: PLC0415  of an extra
    from py4j.java_gateway import GatewayClient  # noqa: PLC0415
    from pyspark.sql import SparkSession

    threads: Any = threading.Thread
    _let_steps_have_their_own(SparkSession)
    threads.start = _with(_inherited, threads.start)
    pools: Any = ThreadPoolExecutor
    pools.submit = _submitting(_inherited, pools.submit)
    GatewayClient.send_command = _counted(GatewayClient.send_command)
    connections: Any = ClientServerConnection
    connections.connect_to_java_server = _patient(connections.connect_to_java_server)
    let_steps_share_it()


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
    sessions.stop = unless_in_step(sessions.stop)
    sessions.getActiveSession = classmethod(_of_step(sessions.getActiveSession.__func__))
    sessions.Builder.getOrCreate = _or_that_of_step(sessions.Builder.getOrCreate)


Bind = Callable[[Current, Callable[..., Any]], Callable[..., Any]]
"""What lets a function run as a part of a step, in whatever thread."""


def _with(bind: Bind, start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Threads that a step starts are a part of it, but those by which Java calls functions of all steps."""

    @functools.wraps(start)
    def started(self: threading.Thread) -> None:
        step = current.get()
        if step is not None and not _is_of_py4j(self):
            self.run = bind(step, self.run)  # type: ignore[method-assign]
        start(self)

    return started


def _is_of_py4j(thread: threading.Thread) -> bool:
    functions = (thread.run, vars(thread).get("_target"))
    return any(str(getattr(one, "__module__", "")).startswith("py4j.") for one in functions)


def _submitting(bind: Bind, submit: Callable[..., Any]) -> Callable[..., Any]:
    """What a step submits to a pool is a part of it, whoever has started the threads of the pool."""

    @functools.wraps(submit)
    def submitted(self: Any, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        step = current.get()
        return submit(self, function if step is None else bind(step, function), *given, **named)

    return submitted


def _in_context(step: Current, run: Callable[..., Any]) -> Callable[..., Any]:
    del step  # which is in the context
    return functools.partial(contextvars.copy_context().run, run)


def _be_active(step: Current) -> Callable[[], None]:
    """Let Java take the session of a step for that of this thread; returns what puts the one before it back.

    By its settings Java reads types, as in ``schema("at timestamp")``; without one by those of the context.
    """
    if not step.tag:
        return lambda: None
    with suppress(Exception):  # the JVM has ended
        session: Any = step.spark
        sessions = getattr(session._jvm, session._jsparkSession.getClass().getName())  # noqa: SLF001
        before = sessions.getActiveSession()
        sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001

        def put_back() -> None:
            with suppress(Exception):
                if before.isDefined():
                    sessions.setActiveSession(before.get())
                else:
                    sessions.clearActiveSession()

        return put_back
    return lambda: None


def _inherited(step: Current, run: Callable[..., Any]) -> Callable[..., Any]:
    """With the properties of the thread of Java too."""
    from pyspark import inheritable_thread_target

    @functools.wraps(run)
    def begun(*given: Any, **named: Any) -> Any:
        _be_active(step)
        return run(*given, **named)

    inheriting: Callable[..., Any] = begun
    with suppress(Exception):  # without a JVM, or after the end of the step, there is nothing to inherit
        inherits: Any = inheritable_thread_target
        inheriting = inherits(begun) if is_spark_3() else inherits(step.spark)(begun)
    return _in_context(step, inheriting)


def _counted(send: Callable[..., Any]) -> Callable[..., Any]:
    """Calls of the JVM by threads of a step begin while it runs."""

    @functools.wraps(send)
    def sent(self: Any, *given: Any, **named: Any) -> Any:
        step = current.get()
        if step is None:
            return send(self, *given, **named)
        return step.calls.run(lambda: send(self, *given, **named))

    return sent


def _patient(connect: Callable[[Any], None]) -> Callable[[Any], None]:
    """A connection waits for the end of a call, whatever a step has made the time-out of new sockets."""

    @functools.wraps(connect)
    def connected(self: Any) -> None:
        connect(self)
        if not self.java_parameters.read_timeout:
            self.socket.settimeout(None)

    return connected


def _of_step(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def got(cls: Any) -> Any:
        step = current.get()
        return get(cls) if step is None else step.spark

    return got


def _or_that_of_step(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def got(self: Any) -> Any:
        step = current.get()
        if step is None:
            return get(self)
        spark = step.spark
        for name, value in self._options.items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
        return spark

    return got
