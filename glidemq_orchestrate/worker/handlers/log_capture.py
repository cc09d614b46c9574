"""Copies what a function logs with ``logging``, in its own thread, to the log of its job.

A logging handler would be removed as soon as another function configures logging, by ``dictConfig`` or
``basicConfig(force=True)``: so ``Logger.callHandlers`` is replaced.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from glidemq_orchestrate.worker.handlers.context import Context

MAX_LINES: Final = 1_000
MAX_CHARACTERS: Final = 4_000
_OWN: Final = "glidemq_orchestrate"


class _ToJob(logging.Handler):
    """Stores the records of one thread with a job, the first thousand of an attempt."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(logging.INFO)
        self._ctx, self._thread, self._process, self._lines = ctx, threading.get_ident(), os.getpid(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        is_ours = record.thread == self._thread and record.process == self._process  # not of a forked copy
        return is_ours and record.name.partition(".")[0] != _OWN

    def emit(self, record: logging.LogRecord) -> None:
        self._lines += 1
        if self._lines > MAX_LINES:
            return
        try:
            self._ctx.log(f"{record.levelname} {record.getMessage()}"[:MAX_CHARACTERS])
            if self._lines == MAX_LINES:
                self._ctx.log("the rest of what it logs is in the log of the worker only")
        except Exception:  # noqa: BLE001  as every handler of logging
            self.handleError(record)


_jobs: Final[dict[int, _ToJob]] = {}
"""By the thread in which the function of a job runs."""


@contextmanager
def captured(ctx: Context) -> Iterator[None]:
    """Also store with the job what this thread logs in the block, at INFO and above."""
    _install()
    thread = threading.get_ident()
    before = _jobs.get(thread)
    _jobs[thread] = _ToJob(ctx)
    try:
        yield
    finally:
        del _jobs[thread]
        if before is not None:
            _jobs[thread] = before


@functools.cache
def _install() -> None:
    loggers: Any = logging.Logger
    loggers.callHandlers = _with_capture(loggers.callHandlers)


def _with_capture(call: Callable[[Any, logging.LogRecord], None]) -> Callable[[Any, logging.LogRecord], None]:
    @functools.wraps(call)
    def called(self: Any, record: logging.LogRecord) -> None:
        call(self, record)
        job = _jobs.get(threading.get_ident())
        if job is not None and record.levelno >= job.level:
            job.handle(record)

    return called
