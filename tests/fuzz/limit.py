"""A time limit for one case. Only for the main thread."""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SECONDS: Final = 60.0
HARD: Final = 5
STDERR: Final = 2  # also where a test has put something else in its place


class TooLong(BaseException):
    """The case did not end in time; not an ``Exception``, so that nothing under test catches it."""


@contextmanager
def limited(seconds: float = SECONDS, *, hard: bool = False) -> Iterator[None]:
    """Interrupt the block after so long.

    Args:
        seconds: Generous: a machine may be busy.
        hard: End the process, with the tracebacks of all threads, if that does not help: a regular
            expression cannot be interrupted.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TooLong

    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, interrupt)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    if hard:
        faulthandler.dump_traceback_later(seconds * HARD, exit=True, file=STDERR)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if hard:
            faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, handler)
        if left:  # that of pytest-timeout
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001))
