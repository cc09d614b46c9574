"""Calls of handlers: on the loop, in a thread, or in a separate process."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable
from typing import Any

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.execution.contexts import portable
from glidemq_orchestrate.worker.execution.processes import Processes
from glidemq_orchestrate.worker.execution.threads import CallResult, Threads, call_async
from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.registered import Registered


class Exited(Exception):
    """A handler raised an exception that no coroutine can raise."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__()


class Caller:
    """Calls handlers.

    Args:
        threads: Where plain functions run.
        processes: Where handlers with ``process=True`` run; None when there are none.
    """

    def __init__(self, threads: Threads, processes: Processes | None) -> None:
        self.threads, self._processes = threads, processes

    def call(self, registered: Registered, execution: Execution) -> Awaitable[Any]:
        """The call of a handler, to be awaited; it raises what the handler raises.

        Raises:
            ThreadsUnavailable: The interpreter is shutting down.
            Exited: The handler raised an exception that no coroutine can raise.
        """
        given: Any = execution.contexts if registered.batch_size else execution.contexts[0]
        if registered.is_async:
            awaited: Awaitable[Any] = registered.function(given)
            return awaited
        if registered.in_process and self._processes is not None:
            token, job = process_token(execution.attempts[0]), portable(execution.contexts[0])
            return _value(call_async(self._processes.run, registered.function, token, job))
        if registered.grace:
            stop, grace = execution.contexts[0].cancelled.set, registered.grace
            return _value(self.threads.run(_in_thread, execution, registered, given, stop=stop, grace=grace))
        return _value(self.threads.run(_in_thread, execution, registered, given))


def process_token(attempt: Attempt) -> str:
    """The token that relates messages of a handler in a process to its attempt."""
    return f"{attempt.token}:{attempt.job_id}"


def _in_thread(execution: Execution, registered: Registered, given: Any) -> Any:
    execution.thread, began = threading.get_native_id(), time.thread_time()
    try:
        return registered.function(given)
    finally:
        execution.used = time.thread_time() - began


async def _value(call: Awaitable[CallResult]) -> Any:
    """Return the value, or raise the error in a form that a coroutine can raise."""
    ended = await call
    if ended.error is None:
        return ended.value
    if isinstance(ended.error, StopIteration):
        raise Exited(ended.error) from ended.error
    raise ended.error
