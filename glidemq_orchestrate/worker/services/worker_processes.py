"""Several worker processes on one machine, and the parent that starts, watches, replaces and drains them.

The parent runs no jobs and has no connection to the server; each process is a worker of its own. Processes
are forked, so that they share the memory of the code that was loaded before, where that is safe; otherwise
they are spawned and load the code again: without ``/proc``, beside other threads, or if loading the code has
opened connections or files.

A process at a limit (``max_jobs``, ``max_memory``) fetches no more, ends when its running jobs have ended,
and is replaced then: one process at a time.
"""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, Literal

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.forking import start_method
from glidemq_orchestrate.foundation.machine import available_memory, cores, resident_memory
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.worker.metrics import Counts, MetricsPort
from glidemq_orchestrate.worker.services.worker import Worker
from glidemq_orchestrate.worker.services.worker_process import (
    COUNTS,
    HANDLED,
    READY,
    RETIRE,
    UNREACHABLE,
    Limits,
    Target,
    run_process,
)

logger = logging.getLogger("glidemq_orchestrate.worker")

MAX_STARTS: Final = 5
PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0
HEALTHY_SECONDS: Final = 60.0
CHANGED: Final = 0  # what the watcher of files writes where signals write their numbers


@dataclass(eq=False)
class _Member:
    """A process, or the place of one that is not running.

    Attributes:
        number: From 1.
        is_ready: Its worker serves its queues.
        is_ending: It was asked to end.
        is_unreachable: It could not reach the server.
        reached: The limit that it has reached; empty if none.
        failures: How often in a row it has ended without being asked.
        due: When it is to be started, if it does not run.
        counts: What it has counted for Prometheus, as it last said.
    """

    number: int
    target: Target
    process: BaseProcess | None = None
    connection: Connection | None = None
    started: float = 0.0
    is_ready: bool = False
    is_ending: bool = False
    is_unreachable: bool = False
    reached: str = ""
    failures: int = 0
    due: float = 0.0
    counts: str = ""

    def __str__(self) -> str:
        """The process in messages."""
        return f"worker process {self.number} (pid {self.process.pid if self.process else None})"


class WorkerProcesses:
    """Runs one process for each target until it is stopped by a signal.

    Args:
        targets: What the processes do. Spawned ones need targets that can be pickled.
        limits: When a process is replaced.
        method: How processes are started.
        watched: Restart all processes after a change of a Python file in these folders. A process that cannot
            start then waits for the next change.
        metrics: The host and port where the sum of what they count is read; None for nowhere.

    Raises:
        ConfigurationError: A process is over its memory limit without any job.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        limits: Limits,
        method: Literal["fork", "spawn"],
        watched: Sequence[Path] = (),
        metrics: tuple[str, int] | None = None,
    ) -> None:
        if limits.memory is not None and (used := resident_memory()) >= limits.memory:
            raise ConfigurationError(
                f"max_memory is {limits.memory / 2**20:,.0f} MiB, but a process uses {used / 2**20:,.0f} MiB "
                "without any job. Fix: allow more"
            )
        self._members = [_Member(number, target) for number, target in enumerate(targets, 1)]
        self._limits, self._method, self._watched = limits, method, watched
        self._context = multiprocessing.get_context(method)
        self._events, self._events_in = -1, -1
        self._is_stopping, self._has_served = False, False
        self._failed_starts, self._code = 0, 0
        self._metrics, self._past = metrics, Counts()
        self._port: MetricsPort | None = None

    def run(self) -> int:
        """Run the processes until SIGTERM or SIGINT, or until one fails to start again and again.

        Returns:
            0 after a signal; otherwise the exit code of the process that cannot start.
        """
        count = "1 worker process" if len(self._members) == 1 else f"{len(self._members)} worker processes"
        if self._metrics is not None:
            self._port = MetricsPort(*self._metrics, self._measured)
            logger.info("metrics at %s", self._port.url, extra={"action": "metrics"})
        logger.info("%s (%sed)", count, self._method, extra={"action": "processes_started"})
        if self._method == "fork":
            gc.collect()
            gc.freeze()  # so that the collector of a child does not copy what it shares with this process
        with self._signals():
            try:
                if self._watched:
                    threading.Thread(target=self._watch, name="glidemq-reload", daemon=True).start()
                while not (self._is_stopping and not self._running()):
                    self._start_due()
                    self._retire_next()
                    self._wait()
            finally:
                self._stop()
                for member in self._members:
                    self._disconnect(member)  # whatever still runs drains
                if self._port is not None:
                    self._port.close()
        logger.info("all worker processes have ended", extra={"action": "processes_stopped"})
        return self._code

    def _running(self) -> list[_Member]:
        return [member for member in self._members if member.process is not None]

    def _measured(self) -> tuple[Counts, dict[int, int]]:
        """What all processes have counted, those that have ended too; and their pids, by number."""
        counts, pids = Counts(), {0: os.getpid()}
        counts.add(self._past.text(), ended=True)
        for member in self._running():
            if member.counts:
                counts.add(member.counts)
            if member.process is not None and member.process.pid is not None:
                pids[member.number] = member.process.pid
        return counts, pids

    # --- starting ---

    def _waiting(self) -> list[_Member]:
        """The processes to start. The first one starts alone: if it fails, its failure stands for all."""
        if self._is_stopping or (self._running() and not self._has_served):
            return []
        members = self._members if self._has_served else self._members[:1]
        return [member for member in members if member.process is None]

    def _start_due(self) -> None:
        for member in self._waiting():
            if member.due <= time.monotonic():
                self._start(member)

    def _start(self, member: _Member) -> None:
        member.connection, theirs = Pipe()
        inherited: list[Connection | socket.socket | int] | None = None
        if self._method == "fork":
            inherited = [self._events, self._events_in]
            inherited += [one.connection for one in self._members if one.connection is not None]
            inherited += [] if self._port is None else self._port.sockets
        member.process = self._context.Process(  # type: ignore[attr-defined]  # each context has it
            target=run_process,
            args=(member.target, theirs, self._limits, inherited, self._port is not None),
            name=f"glidemq-worker-{member.number}",
        )
        member.is_ready = member.is_ending = member.is_unreachable = False
        member.reached, member.started = "", time.monotonic()
        # Until the child has handlers of its own, a signal to it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            member.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            theirs.close()

    # --- waiting for events ---

    def _wait(self) -> None:
        """Wait until something happens or is due, and act on it."""
        due = min([member.due for member in self._waiting()], default=math.inf)
        pause = None if due == math.inf else max(due - time.monotonic(), 0.0)
        heard = {member.connection: member for member in self._members if member.connection is not None}
        asked: list[socket.socket] = [] if self._port is None else self._port.sockets
        for ready in wait([self._events, *heard, *asked], pause):
            if isinstance(ready, int):
                for number in os.read(ready, 1_000):
                    self._react(number)
            elif isinstance(ready, Connection):
                self._hear(heard[ready])
            elif self._port is not None:
                self._port.attend(ready)
        for member in self._running():
            if member.process is not None and member.process.exitcode is not None:
                self._ended(member, member.process.exitcode)

    def _hear(self, member: _Member) -> None:
        """Read what a process says."""
        try:
            while member.connection is not None and member.connection.poll():
                said = member.connection.recv_bytes().decode()
                if said == READY:
                    member.is_ready, self._has_served, self._failed_starts = True, True, 0
                elif said == UNREACHABLE:
                    member.is_unreachable = True
                elif said.startswith(COUNTS):
                    member.counts = said
                else:
                    member.reached = said
        except (EOFError, OSError):
            self._disconnect(member)

    def _disconnect(self, member: _Member) -> None:
        if member.connection is not None:
            member.connection.close()
            member.connection = None

    def _react(self, number: int) -> None:
        if number == CHANGED:
            logger.info("a file has changed: restarting", extra={"action": "reload"})
            self._restart()
        elif number == signal.SIGHUP:
            for member in self._running():
                if member.is_ready:
                    self._signal(member, signal.SIGHUP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._stop()

    def _signal(self, member: _Member, number: int) -> None:
        if member.process is not None and member.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(member.process.pid, number)

    def _stop(self) -> None:
        self._is_stopping = True
        for member in self._running():
            self._signal(member, signal.SIGTERM)

    def _restart(self) -> None:
        """End all processes; as each has ended, it is started again."""
        self._has_served = False
        for member in self._members:
            member.due, member.failures, member.is_ending = 0.0, 0, True
            self._signal(member, signal.SIGTERM)

    def _retire_next(self) -> None:
        """Let one process that has reached a limit end, if no other is ending or starting."""
        if self._is_stopping or not all(one.is_ready and not one.is_ending for one in self._members):
            return
        for member in self._members:
            if member.reached and member.connection is not None:
                member.is_ending = True
                text = "%s is replaced when its jobs have ended: %s"
                logger.info(text, member, member.reached, extra={"action": "process_retired"})
                with suppress(OSError):  # it has just ended
                    member.connection.send_bytes(RETIRE.encode())
                return

    # --- when a process has ended ---

    def _ended(self, member: _Member, code: int) -> None:
        self._hear(member)
        self._disconnect(member)
        if member.counts:
            self._past.add(member.counts, ended=True)
            member.counts = ""
        was_ready, member.is_ready = member.is_ready, False
        who, how = str(member), _how(code)
        member.process = None
        if self._is_stopping or (member.is_ending and code in (0, -signal.SIGTERM)):
            return
        if time.monotonic() - member.started > HEALTHY_SECONDS:
            member.failures = 0
        pause = min(PAUSE_SECONDS * 2**member.failures, MAX_PAUSE_SECONDS)
        member.failures, member.due = member.failures + 1, time.monotonic() + pause
        if was_ready:
            text = "%s %s; another one starts in %.1f s"
            text += ", and its jobs run again when their leases end" if code else ", as nothing here ended it"
            level = logging.ERROR if code else logging.WARNING
            logger.log(level, text, who, how, pause, extra={"action": "process_lost"})
        elif self._watched:
            member.due = math.inf
            text = "%s %s before it was ready; it starts again after the next change"
            logger.error(text, who, how, extra={"action": "process_failed"})
        else:
            self._failed_to_start(member, who, how, code)

    def _failed_to_start(self, member: _Member, who: str, how: str, code: int) -> None:
        """Try again later; or give up, if the first process says why, or none starts any more.

        Once a process has served, the server may be unreachable for as long as it likes.
        """
        self._failed_starts += not (self._has_served and member.is_unreachable)
        if self._failed_starts >= MAX_STARTS or (code > 0 and not self._has_served):
            text = "%s %s before it was ready, so all end"
            logger.error(text, who, how, extra={"action": "process_failed"})
            self._code = code if code > 0 else 128 - code
            self._stop()
        else:
            pause = member.due - time.monotonic()
            text = "%s %s before it was ready; another one starts in %.1f s"
            logger.error(text, who, how, pause, extra={"action": "process_failed"})

    # --- signals and files ---

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into bytes that ``_wait`` reads, in the order in which they arrive."""
        self._events, self._events_in = os.pipe()
        os.set_blocking(self._events_in, False)

        def note(number: int, _frame: object) -> None:
            with suppress(BlockingIOError):  # thousands are waiting already
                os.write(self._events_in, bytes([number]))

        before = {number: signal.signal(number, note) for number in HANDLED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._events)
            os.close(self._events_in)

    def _watch(self) -> None:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415  of an extra

        for _ in watch(*self._watched, watch_filter=PythonFilter(), raise_interrupt=False):
            os.write(self._events_in, bytes([CHANGED]))


def run_processes(  # noqa: PLR0913  all but the first have defaults
    make: Callable[[], Worker],
    processes: int | None = None,
    *,
    max_jobs: int | None = None,
    max_memory: int | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> int:
    """Run workers in several processes until SIGTERM or SIGINT; blocks, in the main thread.

    A process that dies is replaced. Without other threads, on Linux, processes are forked: they share what is
    open in this process, so open connections and files in ``make``. Otherwise they are spawned, and ``make``
    must be a function of a module or a ``functools.partial`` of one; call this below ``if __name__ ==
    "__main__":`` then.

    Args:
        make: Makes the worker of a process; its ``concurrency`` is that of one process.
        processes: Their number. Default: one for each core that this process may use, by its affinity and the
            CPU quota of its cgroup.
        max_jobs: Replace a process after about so many jobs. It fetches no more, and ends when its running
            jobs have ended; one process at a time.
        max_memory: Replace a process, in the same way, when it uses more than so many bytes (RSS).
        metrics_port: Serve the sum of what the workers count to Prometheus; as for ``Worker``, which must not
            have it then.
        metrics_host: The address of that port.

    Returns:
        0 after a signal; otherwise the exit code of a process that cannot start.

    Raises:
        ConfigurationError: A value is not usable, or there is not enough memory for the processes. Nothing
            was started.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("run_processes handles signals. Fix: call it in the main thread")
    limits, count = Limits(max_jobs, max_memory), process_count(processes)
    targets = [partial(_run_made, make)] * count
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    return WorkerProcesses(targets, limits=limits, method=start_method(), metrics=metrics).run()


def _run_made(make: Callable[[], Worker], run: Callable[[Worker], None]) -> None:
    run(make())


def process_count(processes: int | None, most: int | None = None) -> int:
    """The number of worker processes to start, called when their code is loaded.

    Args:
        processes: What a user has asked for; None: one for each core, as far as the memory suffices.
        most: The largest number that makes sense.

    Raises:
        ConfigurationError: It is not usable, or there is not enough memory.
    """
    each, free = resident_memory(), available_memory()
    fitting = sys.maxsize if free is None else max(free // each, 1)
    if processes is None:
        return min(cores(), fitting, most or sys.maxsize)
    whole("processes", processes, 1, error=ConfigurationError)
    if processes > fitting:
        raise ConfigurationError(
            f"{processes} processes need {processes * each / 2**20:,.0f} MiB ({each / 2**20:,.0f} MiB each, "
            f"without jobs), and {(free or 0) / 2**20:,.0f} MiB are available. Fix: at most {fitting}"
        )
    return processes


def _how(code: int) -> str:
    """How a process has ended."""
    if code >= 0:
        return f"has ended with exit code {code}"
    names = {known.value: known.name for known in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"
