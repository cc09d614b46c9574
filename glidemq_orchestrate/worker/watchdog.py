"""Names the handler that blocks a worker, by occupying its loop or the whole interpreter.

A thread checks every half second whether the loop has run in between. If not, the stack of the loop's thread
shows which handler occupies it. If the checking thread itself could not run, a handler held the interpreter:
the handler whose thread used the processor all that time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.log import about, job_name
from glidemq_orchestrate.worker.handlers.tracebacks import is_users
from glidemq_orchestrate.worker.tasks import JobTask, OwnTask

logger = logging.getLogger("glidemq_orchestrate.worker")

CHECK_SECONDS: Final = 0.5
BLOCKED_SECONDS: Final = 1.0
AGAIN: Final = 4
"""A handler that still blocks is named again when it has blocked this many times as long."""
MIN_SHARE: Final = 0.1
MAIN_SHARE: Final = 0.8
"""A culprit has used at least this share of the time, and of the time that all handlers used."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_FIX: Final = "Fix: use process=True (plain functions), or await what takes long"


class RunningHandler(NamedTuple):
    """A handler: its first job, its task, and its thread (by ``threading.get_native_id``).

    ``used``: the seconds of processor time that it has used in that thread; None while it runs.
    """

    attempt: Attempt
    task: asyncio.Task[None] | None
    thread: int | None
    used: float | None = None


class Watchdog:
    """Watches a loop from a separate thread, from ``start`` to ``stop``.

    Args:
        loop: The loop of the worker, in the thread that calls this.
        running: Returns the running handlers, then the last ended ones; called in any thread.
        note: Called with an attempt and a line for the log of its job; called in any thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: Callable[[], Sequence[RunningHandler]],
        note: Callable[[Attempt, str], None],
    ) -> None:
        self._loop, self._running, self._note = loop, running, note
        self._loop_thread, self._loop_native = threading.get_ident(), threading.get_native_id()
        self._stop = threading.Event()
        self._ticked = time.monotonic()
        self._is_tick_due = False
        self._used: dict[int, float] = {}
        self._named: tuple[Attempt | None, str, float] | None = None
        self._thread = threading.Thread(target=self._serve, name="glidemq-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it, unless it is this one."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CHECK_SECONDS)

    def _tick(self) -> None:
        self._ticked, self._is_tick_due = time.monotonic(), False

    def _serve(self) -> None:
        while True:
            began = time.monotonic()
            if self._stop.wait(CHECK_SECONDS):
                return
            try:
                self._check(time.monotonic() - began - CHECK_SECONDS)
            except Exception:
                logger.exception("the watchdog of the worker's loop failed", extra={"action": "survived"})

    def _check(self, late: float) -> None:
        """Check the loop; ``late``: the seconds for which this thread could not run."""
        used = self._processor_times()
        if late >= BLOCKED_SECONDS and (culprit := self._user_of_processor(used, late)) is not None:
            self._name(culprit, late, "held the interpreter", "")
        self._used.update(used)
        blocked = time.monotonic() - self._ticked
        if self._is_tick_due and blocked >= BLOCKED_SECONDS and late < BLOCKED_SECONDS:
            self._name_on_loop(blocked)
        elif not self._is_tick_due:
            self._named, self._is_tick_due = None, True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._tick)

    def _name_on_loop(self, blocked: float) -> None:
        """Name the handler that occupies the loop; none if the loop waits and only the machine is slow."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  the documented way
        place, task = _place(frame), asyncio.current_task(self._loop)
        if not place or (isinstance(task, OwnTask) and not isinstance(task, JobTask)):
            return
        here = self._attempt_of(task)
        known = self._named
        if known is not None and known[:2] == (here, place) and blocked < AGAIN * known[2]:
            return
        self._named = (here, place, blocked)
        self._name(here, blocked, "blocks the worker's loop", place)

    def _name(self, attempt: Attempt | None, seconds: float, what: str, place: str) -> None:
        at = f" at {place}" if place else ""
        line = f"{what}: {seconds:.1f} s so far{at}. No other job of the worker can continue. {_FIX}"
        if attempt is None:
            logger.warning("code of a handler %s", line, extra={"action": "worker_blocked"})
            return
        names = attempt.name, job_name(attempt)
        logger.warning("handler %s of %s %s", *names, line, extra=about("worker_blocked", attempt))
        self._note(attempt, f"the handler {line}")

    def _user_of_processor(self, used: dict[int, float], seconds: float) -> Attempt | None:
        """The handler whose thread used the processor while all others waited."""
        spent = {thread: total - self._used.get(thread, 0.0) for thread, total in used.items()}
        best = max(spent, key=lambda thread: spent[thread], default=None)
        if best is None or spent[best] < max(MIN_SHARE * seconds, MAIN_SHARE * sum(spent.values())):
            return None
        if best != self._loop_native:
            there = [one for one in self._running() if one.thread == best]
            return max(there, key=_use).attempt if there else None
        return self._attempt_of(asyncio.current_task(self._loop))

    def _attempt_of(self, task: asyncio.Task[Any] | None) -> Attempt | None:
        return next((one.attempt for one in self._running() if one.task is task), None) if task else None

    def _processor_times(self) -> dict[int, float]:
        """The seconds of processor time of the threads that run handlers, and of the loop's."""
        threads = {self._loop_native, *(one.thread for one in self._running() if one.thread is not None)}
        found: dict[int, float] = {}
        for thread in threads:
            with suppress(OSError, ValueError):  # it has ended, or there is no /proc
                text = Path(f"/proc/self/task/{thread}/stat").read_text(errors="replace")
                fields = text.rpartition(")")[2].split()
                found[thread] = (int(fields[11]) + int(fields[12])) / _TICKS
        return found


def _use(one: RunningHandler) -> float:
    return math.inf if one.used is None else one.used


def _place(frame: FrameType | None) -> str:
    """The innermost line of user code in a stack; empty if there is none."""
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""
