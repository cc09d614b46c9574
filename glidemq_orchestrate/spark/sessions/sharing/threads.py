"""Makes the threads that a step starts, and what it submits to thread pools, part of the step.

They get its session, tag, scheduler pool and description, so that a cancel reaches their Spark jobs. Once the
step has ended they can no longer call Spark.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from glidemq_orchestrate.spark.sessions.sharing.current import Current, be_active, current

Bind = Callable[[Current, Callable[..., Any]], Callable[..., Any]]
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


def in_context(_step: Current, run: Callable[..., Any]) -> Callable[..., Any]:
    """Bind a function to a step by the context variables of the caller, which name the step."""
    return functools.partial(contextvars.copy_context().run, run)


def with_properties(step: Current, run: Callable[..., Any]) -> Callable[..., Any]:
    """Bind a function to a step, with the properties of the caller's thread in Java too."""
    from pyspark import __version__, inheritable_thread_target

    @functools.wraps(run)
    def begun(*given: Any, **named: Any) -> Any:
        be_active(step)
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
