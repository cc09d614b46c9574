"""User callbacks for the events of a flow: submitted, progress, end.

They are named by import path, because the triggerer calls them too and does not have the DAG. For the end of
the task, use Airflow's own callbacks such as ``on_failure_callback``: their ``context["exception"]`` is a
``GlideMQFlowFailed`` with ``flow_id`` and ``failed``.

Each call runs in a separate daemon thread, those of coroutine functions too, so no callback can block a
triggerer. The threads of ``asyncio.to_thread`` are few, and all triggers share them: a few hanging callbacks
would block them.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_glidemq.task_attempt import TaskKey
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.functions import is_named, named_function
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.texts import shown

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate.flows import FlowStatus

CallbackKind = Literal["submitted", "progress", "end"]
CALLBACK_TIMEOUT: Final = timedelta(seconds=30)


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


def call_callbacks(paths: Sequence[str], kind: CallbackKind, event: FlowEvent, log: Logger) -> None:
    """Call the callbacks in an Airflow worker, which renews no lease during a call; never fails."""
    for path in paths:
        called = _begin(path, kind, event)
        wait([called], CALLBACK_TIMEOUT.total_seconds())
        _report(called, path, kind, log)


async def acall_callbacks(paths: Sequence[str], kind: CallbackKind, event: FlowEvent, log: Logger) -> None:
    """Call the callbacks in a triggerer; never fails."""
    for path in paths:
        called = _begin(path, kind, event)
        awaited = asyncio.wrap_future(called)
        try:
            await asyncio.wait({awaited}, timeout=CALLBACK_TIMEOUT.total_seconds())
        finally:
            awaited.cancel()
        _report(called, path, kind, log)


class _NotCallable(Exception):
    """The callback cannot be imported here."""


def _begin(path: str, kind: CallbackKind, event: FlowEvent) -> Future[BaseException | None]:
    """Call a callback in a separate thread, which continues harmlessly if it is no longer awaited.

    Returns:
        A future for the error of the call, or None.
    """
    called: Future[BaseException | None] = Future()
    called.set_running_or_notify_cancel()  # it cannot be cancelled

    def run() -> None:
        raised: BaseException | None = None
        try:
            _call(path, kind, event)
        except BaseException as exc:  # noqa: BLE001  of the user's code; also SystemExit
            raised = exc
        _running.discard(threading.current_thread())
        called.set_result(raised)

    if len(_running) >= MAX_THREADS:
        text = f"{MAX_THREADS} callbacks have not returned yet, so this one is not called"
        called.set_result(RuntimeError(text))
        return called
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="glidemq-callback", daemon=True)
    _running.add(thread)
    thread.start()
    return called


MAX_THREADS: Final = 32
_running: Final[set[threading.Thread]] = set()


def _call(path: str, kind: CallbackKind, event: FlowEvent) -> None:
    try:
        with importing():
            function = named_function(f"{path}.on_{kind}", "callback").function
    except (Exception, SystemExit) as exc:  # importing runs the user's code
        raise _NotCallable(f"{type(exc).__name__}: {exc}") from exc
    found = function(event)
    if inspect.iscoroutine(found):
        asyncio.run(found)


def _report(called: Future[BaseException | None], path: str, kind: CallbackKind, log: Logger) -> None:
    """Log the error of a call, or that it has not returned in time."""
    timeout = f"not returned after {CALLBACK_TIMEOUT.total_seconds():g} seconds; it is no longer awaited"
    raised = called.result() if called.done() else TimeoutError(timeout)
    if isinstance(raised, _NotCallable):
        log.warning("Callback %s cannot be called here: %s", path, raised)
    elif raised is not None:
        log.warning("Callback %s.on_%s failed: %s: %s", path, kind, type(raised).__name__, raised)
