"""The calls of Spark by threads that a step has started: none begins after the end of the step.

Spark's own cancel reaches the jobs that run, and a thread that lives on could begin the next one: it would
write beside the next attempt of its job. All calls of the JVM go through one method of Py4J, so that is where
they are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class StepOver(Exception):
    """A thread wants something of Spark, and the step that has started it has ended."""


class Calls:
    """The calls of one step. Its own thread, which ends it, may always call."""

    def __init__(self) -> None:
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self._running = 0
        self._is_over = False

    def end(self) -> None:
        """Let no other thread begin a call from here on."""
        with self._lock:
            self._is_over = True

    @property
    def are_running(self) -> bool:
        """Whether another thread is in a call."""
        return self._running > 0

    def run(self, call: Callable[[], Any]) -> Any:
        """Run a call.

        Raises:
            StepOver: The step has ended.
        """
        if threading.get_ident() == self._owner:
            return call()
        with self._lock:
            if self._is_over:
                raise StepOver(
                    "the step that has started this thread has ended, and with it its session: let a step "
                    "wait for its threads, and make a pool of threads in the step that uses it"
                )
            self._running += 1
        try:
            return call()
        finally:
            with self._lock:
                self._running -= 1
