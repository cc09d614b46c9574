"""Threads that a handler starts inherit its context variables, in the workers of a campaign, for marks."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def inherit() -> None:
    """Let new threads inherit. A repeat does nothing."""
    if not isinstance(threading.Thread.start, _Inheriting):
        threading.Thread.start = _Inheriting(threading.Thread.start)  # type: ignore[method-assign,assignment]
        ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]


class _Inheriting:
    """``Thread.start`` with the context variables of the caller."""

    def __init__(self, start: Callable[[threading.Thread], None]) -> None:
        self._start = start

    def __get__(self, thread: threading.Thread | None, owner: type | None = None) -> Any:
        return self if thread is None else functools.partial(self._begin, thread)

    def _begin(self, thread: threading.Thread) -> None:
        run, about = thread.run, contextvars.copy_context()
        thread.run = lambda: about.run(run)  # type: ignore[method-assign]
        self._start(thread)


def _submitting(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(submit)
    def submitting(
        pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        return submit(pool, contextvars.copy_context().run, function, *args, **kwargs)

    return submitting
