"""User callbacks for the events of a flow: submitted, progress, end.

They are named by import path, because the triggerer calls them too and does not have the DAG. For the end of
the task, use Airflow's own callbacks such as ``on_failure_callback``: their ``context["exception"]`` is a
``GlideMQFlowFailed`` with ``flow_id`` and ``failed``.

A triggerer calls each in a separate daemon thread. The threads of ``asyncio.to_thread`` are few, and all
triggers share them: a few hanging callbacks would block the triggerer.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from airflow_provider_glidemq.attempt import TaskKey
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.names import is_named, named_function, shown

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate import FlowStatus

Kind = Literal["submitted", "progress", "end"]
CALLBACK_TIMEOUT: Final = timedelta(seconds=30)
USER_ERRORS: Final = (Exception, SystemExit)
"""Errors of user code that are caught; an uncaught ``SystemExit`` would end the whole triggerer."""


@dataclass(frozen=True, slots=True)
class FlowEvent:
    """The argument of a callback.

    Attributes:
        dag_id, task_id, run_id, map_index, try_number: The task that waits for it.
        state: ``running``, ``completed``, ``failed`` or ``cancelled``.
        completed, total: The number of completed nodes, and of all nodes.
        reason: Why the flow was cancelled; otherwise empty.
        failed: The names of the nodes that did not complete, causes first; empty until the flow has ended.
    """

    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int
    flow_id: str
    generation: int
    state: str
    completed: int
    total: int
    reason: str = ""
    failed: Sequence[str] = ()


class GlideMQFlowCallback:
    """Base class of callbacks: override the methods that you need. Methods may also be ``async``.

    A method that raises, or takes more than 30 seconds, is logged and does not affect the task. Each try of a
    task calls the methods for the events that it sees: after a process has died, an event may be reported
    again.
    """

    @staticmethod
    def on_submitted(event: FlowEvent) -> Any:
        """The task has submitted the flow, or has joined it. Called in an Airflow worker."""

    @staticmethod
    def on_progress(event: FlowEvent) -> Any:
        """More nodes have completed. At most every ``logging_interval``; in the triggerer while it waits."""

    @staticmethod
    def on_end(event: FlowEvent) -> Any:
        """The flow has ended, and the task is about to. Called in an Airflow worker; not after a kill."""


def check_callbacks(paths: object) -> None:
    """Refuse values that name no callbacks, while the DAG is parsed; imports nothing.

    Raises:
        TypeError: The value is not a list of names.
        ConfigurationError: One of them is not ``package.module:Class``.
    """
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise TypeError(
            f"callbacks must be a list of names such as 'mypackage.callbacks:Mine', got {paths!r}: the "
            "triggerer imports them, so they cannot be objects"
        )
    for path in paths:
        if not is_named(path):
            raise ConfigurationError(f"callbacks: {shown(path)} is not package.module:Class")


def event_of(task: Any, status: FlowStatus, failed: Sequence[str] = ()) -> FlowEvent:
    """The event for callbacks; ``task`` is the task instance of a worker or of a trigger."""
    return FlowEvent(
        *TaskKey.of(task),
        task.try_number,
        status.id,
        status.generation,
        status.state.value,
        status.completed,
        status.total,
        status.reason,
        tuple(failed),
    )


def call_callbacks(paths: Sequence[str], kind: Kind, event: FlowEvent, log: Logger) -> None:
    """Call the callbacks in an Airflow worker; never fails."""
    for path in paths:
        try:
            _briefly(partial(_run, path, kind, event))
        except USER_ERRORS as exc:
            _warn(log, path, kind, exc)


def _run(path: str, kind: Kind, event: FlowEvent) -> None:
    found = _call(path, kind, event)
    if inspect.iscoroutine(found):
        asyncio.run(found)


def _briefly(call: Callable[[], None]) -> None:
    """Make a call in a separate thread, and wait for a limited time, as nothing renews the lease meanwhile.

    Raises:
        TimeoutError: The call has not returned in time; its thread continues.
        BaseException: What the call raises.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as exc:  # noqa: BLE001  raised where it is awaited
            raised.append(exc)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="glidemq-callback", daemon=True)
    thread.start()
    thread.join(CALLBACK_TIMEOUT.total_seconds())
    if raised:
        raise raised[0]
    if thread.is_alive():
        raise TimeoutError(
            f"not returned after {CALLBACK_TIMEOUT.total_seconds():g} seconds; it is no longer awaited"
        )


async def acall_callbacks(paths: Sequence[str], kind: Kind, event: FlowEvent, log: Logger) -> None:
    """Call the callbacks in a triggerer, synchronous callbacks in separate threads; never fails."""
    for path in paths:
        try:
            async with asyncio.timeout(CALLBACK_TIMEOUT.total_seconds()):
                found = await in_own_thread(partial(_call, path, kind, event))
                if inspect.iscoroutine(found):
                    await found
        except USER_ERRORS as exc:
            _warn(log, path, kind, exc)


class _NotCallable(Exception):
    """The callback cannot be imported here."""


def _call(path: str, kind: Kind, event: FlowEvent) -> Any:
    try:
        with importing():
            function = named_function(f"{path}.on_{kind}", "callback").function
    except USER_ERRORS as exc:  # importing runs the user's code
        raise _NotCallable(f"{type(exc).__name__}: {exc}") from exc
    return function(event)


def _warn(log: Logger, path: str, kind: Kind, exc: BaseException) -> None:
    if isinstance(exc, _NotCallable):
        log.warning("Callback %s cannot be called here: %s", path, exc)
    else:
        log.warning("Callback %s.on_%s failed: %s: %s", path, kind, type(exc).__name__, exc)


T = TypeVar("T")

MAX_THREADS: Final = 32
_running: Final[set[threading.Thread]] = set()


async def in_own_thread(function: Callable[[], T]) -> T:
    """Call a function in a separate thread. If the caller is cancelled, the function continues harmlessly.

    Raises:
        RuntimeError: Too many calls have not returned yet; the function was not called.
        BaseException: What the function raises.
    """
    if len(_running) >= MAX_THREADS:
        raise RuntimeError(f"{MAX_THREADS} callbacks have not returned yet, so this one is not called")
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    thread = threading.Thread(
        target=_call_in_thread, args=(function, loop, future), name="glidemq-callback", daemon=True
    )
    _running.add(thread)
    thread.start()
    return await future


def _call_in_thread(
    function: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]
) -> None:
    try:
        settle = partial(_settle, future, function())
    except BaseException as exc:  # noqa: BLE001  raised where it is awaited
        # A future takes no StopIteration, and one that holds SystemExit would end the loop.
        is_plain = isinstance(exc, Exception) and not isinstance(exc, StopIteration)
        error = exc if is_plain else RuntimeError(f"{type(exc).__name__}: {exc}")
        settle = partial(_settle, future, None, error)
    finally:
        _running.discard(threading.current_thread())
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(settle)


def _settle(future: asyncio.Future[Any], result: object, raised: BaseException | None = None) -> None:
    if future.done():  # no longer awaited
        return
    if raised is None:
        future.set_result(result)
    else:
        future.set_exception(raised)
