"""The step that this thread belongs to, its calls of the JVM, and its threads.

Spark's own cancel reaches the jobs that run, but a thread that lives on could begin the next one: it would
write beside the next attempt of its job. All calls of the JVM go through one method of Py4J, so they are
refused there once the step has ended.

The threads that a step starts, and what it submits to thread pools, get its session, tag, scheduler pool and
description, so that a cancel reaches their Spark jobs.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

Method = Callable[..., Any]


class StepEnded(Exception):
    """A thread has called Spark after the step that started it had ended."""


class Calls:
    """The calls of one step. Its own thread, which ends it, may always call."""

    def __init__(self) -> None:
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self._running = 0
        self._is_over = False

    def end(self) -> None:
        """Refuse new calls of other threads from now on."""
        with self._lock:
            self._is_over = True

    @property
    def are_running(self) -> bool:
        """Whether another thread is in a call."""
        return self._running > 0

    def run(self, call: Callable[[], Any]) -> Any:
        """Run a call.

        Raises:
            StepEnded: The step has ended.
        """
        if threading.get_ident() == self._owner:
            return call()
        with self._lock:
            if self._is_over:
                raise StepEnded(
                    "the step that started this thread has ended, and so has its session. Fix: wait for the "
                    "threads in the step, and create a thread pool in the step that uses it"
                )
            self._running += 1
        try:
            return call()
        finally:
            with self._lock:
                self._running -= 1


@dataclass(slots=True)
class CurrentStep:
    """A step that runs.

    Attributes:
        spark: Its session.
        calls: Its calls of the JVM.
        tag: The tag of its Spark jobs; empty if they do not run on a context of this process.
        undo: Functions that end what would outlast it: streams, and RDDs that it has cached.
        checkpoints: Its checkpoint directory, as a Java object; None if it has set none.
    """

    spark: SparkSession
    calls: Calls
    tag: str = ""
    undo: dict[tuple[str, int], Callable[[], object]] = field(default_factory=dict)
    checkpoints: Any = None


current: Final[contextvars.ContextVar[CurrentStep | None]] = contextvars.ContextVar("step", default=None)


def activate(step: CurrentStep) -> Callable[[], None]:
    """Make the session of a step the active one of this thread in Java; returns a function that undoes it.

    Java reads types by the settings of the active session, as in ``schema("at timestamp")``; without one it
    takes those of the context.
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


def unless_in_step(stop: Callable[[Any], None]) -> Callable[[Any], None]:
    """A ``stop`` that does nothing in a step."""

    @functools.wraps(stop)
    def stopped(self: Any) -> None:
        if current.get() is None:
            stop(self)
        else:
            logger.warning("stop() was ignored in a step: other steps use the session too")

    return stopped


def in_step(method: Method, instead: Callable[..., Any]) -> Method:
    """A method that a step on a context of this process replaces by another.

    Args:
        method: PySpark's method.
        instead: Called with the step, the method, and the arguments of the method, ``self`` included.
    """

    @functools.wraps(method)
    def called(self: Any, *given: Any, **named: Any) -> Any:
        step = current.get()
        if step is None or not step.tag:
            return method(self, *given, **named)
        return instead(step, method, self, *given, **named)

    return called


Bind = Callable[[CurrentStep, Callable[..., Any]], Callable[..., Any]]
"""Makes a function run as part of a step, in any thread."""


def bind_threads(bind: Bind) -> None:
    """Replace the methods of Python that start threads and submit to pools; to be called once."""
    threads: Any = threading.Thread
    threads.start = _starting(bind, threads.start)
    pools: Any = ThreadPoolExecutor
    pools.submit = _submitting(bind, pools.submit)


def guard_connections() -> None:
    """Replace the methods of Py4J that call the JVM; to be called once."""
    from py4j.clientserver import ClientServerConnection  # noqa: PLC0415  of an extra
    from py4j.java_gateway import GatewayClient  # noqa: PLC0415

    GatewayClient.send_command = _counted(GatewayClient.send_command)
    connections: Any = ClientServerConnection
    connections.connect_to_java_server = _without_timeout(connections.connect_to_java_server)


def in_context(_step: CurrentStep, run: Callable[..., Any]) -> Callable[..., Any]:
    """Bind a function to a step by the context variables of the caller, which name the step."""
    return functools.partial(contextvars.copy_context().run, run)


def with_properties(step: CurrentStep, run: Callable[..., Any]) -> Callable[..., Any]:
    """Bind a function to a step, with the properties of the caller's thread in Java too."""
    from pyspark import __version__, inheritable_thread_target

    @functools.wraps(run)
    def begun(*given: Any, **named: Any) -> Any:
        activate(step)
        return run(*given, **named)

    inheriting: Callable[..., Any] = begun
    with suppress(Exception):  # without a JVM, or after the end of the step, there is nothing to inherit
        inherits: Any = inheritable_thread_target
        inheriting = inherits(begun) if __version__.startswith("3.") else inherits(step.spark)(begun)
    return in_context(step, inheriting)


def _starting(bind: Bind, start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Threads that a step starts are part of it, except those that Java uses for all steps."""

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
    """What a step submits to a pool is part of it, even if the threads of the pool were there before."""

    @functools.wraps(submit)
    def submitted(self: Any, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        step = current.get()
        return submit(self, function if step is None else bind(step, function), *given, **named)

    return submitted


def _counted(send: Callable[..., Any]) -> Callable[..., Any]:
    """The threads of a step can begin calls of the JVM only while it runs."""

    @functools.wraps(send)
    def sent(self: Any, *given: Any, **named: Any) -> Any:
        step = current.get()
        if step is None:
            return send(self, *given, **named)
        return step.calls.run(lambda: send(self, *given, **named))

    return sent


def _without_timeout(connect: Callable[[Any], None]) -> Callable[[Any], None]:
    """A connection waits for the end of a call, even if a step has set a default time-out for new sockets."""

    @functools.wraps(connect)
    def connected(self: Any) -> None:
        connect(self)
        if not self.java_parameters.read_timeout:
            self.socket.settimeout(None)

    return connected
