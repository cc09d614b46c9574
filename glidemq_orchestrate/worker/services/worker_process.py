"""One of several worker processes, and its connection to the parent that started it.

The process tells its parent when it is ready, when it has reached a limit, and what it counts for Prometheus.
The parent tells it to retire. If the parent has ended, however it ended, the process drains as after SIGTERM.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, TransportError
from glidemq_orchestrate.foundation.machine import resident_memory
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.worker.services.worker import Worker

HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""The signals that the parent handles, and that a forked process must not handle as its parent would."""
READY: Final = "ready"
UNREACHABLE: Final = "unreachable"
RETIRE: Final = "retire"
COUNTS: Final = "["
"""What a process has counted for Prometheus is a JSON array."""
REPORT_SECONDS: Final = 1.0
READY_SECONDS: Final = 0.02
CHECK_SECONDS: Final = 0.2
ORPHAN_SECONDS: Final = 30.0
"""A process whose parent has ended is gone this long after its running jobs had to end, even if it hangs."""

Target = Callable[[Callable[[Worker], None]], None]
"""What a process does: it makes its worker, and calls the function that runs it."""


@dataclass(frozen=True)
class Limits:
    """When a process is replaced.

    Attributes:
        jobs: Once it has fetched so many jobs. An element of an array counts as one.
        memory: Once it uses more than so many bytes (RSS), and has fetched a job at least.
    """

    jobs: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        """Check them."""
        for name in ("jobs", "memory"):
            if (value := getattr(self, name)) is not None:
                whole(f"max_{name}", value, 1, error=ConfigurationError)

    def reached(self, jobs: int) -> str:
        """Which limit a process has reached that has fetched so many jobs; empty if none."""
        if self.jobs is not None and jobs >= self.jobs:
            return f"it has taken {jobs:,} jobs"
        if self.memory is not None and jobs and (used := resident_memory()) > self.memory:
            return f"it uses {used / 2**20:,.0f} MiB"
        return ""


class ParentLink:
    """The connection of a worker process to its parent.

    Args:
        connection: The end of the process.
        limits: When the process asks for its replacement.
        is_metered: Whether it tells what it counts.
    """

    def __init__(self, connection: Connection, limits: Limits, *, is_metered: bool) -> None:
        self._connection, self._limits, self._is_metered = connection, limits, is_metered
        self._lock, self._counts = threading.Lock(), ""

    def run(self, worker: Worker) -> None:
        """Run the worker until it is stopped. Raises as ``Worker.run``."""
        if self._is_metered:
            worker.measure()
        threading.Thread(target=self._attend, args=(worker,), name="glidemq-parent", daemon=True).start()
        try:
            worker.run()
        except TransportError as exc:
            if exc.retryable:
                self._say(UNREACHABLE)
            raise
        finally:
            self._report(worker)

    def _attend(self, worker: Worker) -> None:
        """Say what the parent needs to know, and do what it asks for, until it has ended."""
        while not worker.ready.wait(READY_SECONDS) and not self._connection.poll():
            pass
        if worker.ready.is_set():
            self._say(READY)
        has_reached = not (self._limits.jobs or self._limits.memory)
        while True:
            if not has_reached and (why := self._limits.reached(worker.jobs_taken)):
                has_reached = self._say(why)
            self._report(worker)
            idle = REPORT_SECONDS if self._is_metered else None
            if not self._connection.poll(idle if has_reached else CHECK_SECONDS):
                continue
            try:
                self._connection.recv_bytes()
            except (EOFError, OSError):
                break
            worker.retire()
        worker.stop()
        time.sleep(worker.shutdown_seconds + ORPHAN_SECONDS)
        os._exit(1)

    def _report(self, worker: Worker) -> None:
        """Tell what the worker has counted, if that is wanted and has changed."""
        if self._is_metered and (counts := worker.measure().text()) != self._counts:
            self._counts = counts
            self._say(counts)

    def _say(self, message: str) -> bool:
        with self._lock, suppress(OSError):  # the parent has ended, as the next look at the connection shows
            self._connection.send_bytes(message.encode())
        return True


def run_process(
    target: Target,
    connection: Connection,
    limits: Limits,
    of_parent: Sequence[Connection | socket.socket | int] | None,
    is_metered: bool,  # noqa: FBT001  passed on by multiprocessing
) -> None:
    """The process: run the worker to its end.

    Args:
        target: What the process does.
        connection: To the parent.
        limits: When the process is replaced.
        of_parent: What a forked process has inherited, and only its parent may have open; None: not forked.
        is_metered: Whether it tells the parent what it counts.
    """
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent has it too. A worker handles it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    for one in of_parent or ():
        if isinstance(one, int):
            os.close(one)
        else:
            one.close()
    try:
        target(ParentLink(connection, limits, is_metered=is_metered).run)
    finally:
        if of_parent is not None:
            sys.stdout.flush()
            atexit._run_exitfuncs()  # noqa: SLF001  the interpreter does not end by itself in a forked child
