"""What tests start ends with them: process groups, a mark in the environment, and a watcher.

Everything that is started while tests run inherits a mark that no other run of tests has. By it what is left
is found wherever it went: in a session of its own, or handed to init because its parent is dead.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil

MARK: Final = "GLIDEMQ_TESTS"
RUN: Final = uuid.uuid4().hex

# Helpers that last as long as the process that needs them and hold nothing.
HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "lifeline/guard.py")

# What psutil raises where a process ends while it is looked at.
GONE: Final = (psutil.Error, FileNotFoundError)

# What a fixture of a wider scope owns, also when a test has it started again.
lasting: Final[set[int]] = set()

# Referred to until the end, when they outlive this process.
_watchers: Final[list[subprocess.Popen[bytes]]] = []

WATCHER: Final = "import sys; from tests.processes import watch; watch(int(sys.argv[1]), sys.argv[2])"
LOOK_SECONDS: Final = 0.5
ALL_EVERY: Final = 6


@dataclass(frozen=True)
class Left:
    """A process that outlived the test which started it."""

    process: psutil.Process
    command: str
    test: str

    def __str__(self) -> str:
        """What it is, and which test started it."""
        return f"process {self.process.pid} ({self.command}), started in {self.test or 'an unknown test'}"


def mark() -> None:
    """Mark what this process starts from now on, and have it killed however this process dies."""
    os.environ[MARK] = f"{os.environ.get(MARK, '')}/{RUN}"
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", WATCHER, str(os.getpid()), RUN]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    _watchers.append(subprocess.Popen(command, env=environment, start_new_session=True, **quiet))


def spawn(command: Sequence[Any], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in a group of its own; the options are those of ``Popen``."""
    return subprocess.Popen(list(map(str, command)), start_new_session=True, **options)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process of ``spawn`` and all that is left of its group; a repeat does nothing."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    else:  # its id may be another process's by now
        for left in marked(RUN):
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(left.process.pid) == process.pid:
                    left.process.kill()
    process.wait(60)
    for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
        with contextlib.suppress(OSError):  # unread output is dropped with the process
            pipe.close()


@contextlib.contextmanager
def spawned(command: Sequence[Any], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process in a group of its own that ends with the block, with all that it started."""
    process = spawn(command, **options)
    try:
        yield process
    finally:
        end(process)


def run(command: Sequence[Any], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep its output; what is left of its group then is killed.

    Raises:
        subprocess.TimeoutExpired: It took longer than ``timeout`` seconds, and was killed with its group.
    """
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with spawned(command, text=True, **pipes, **options) as process:
        stdout, stderr = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def marked(run: str, among: set[int] | None = None) -> list[Left]:
    """The live processes with the mark of a run, and those below this process; ``among`` these ids only."""
    pids = set(psutil.pids()) if among is None else among
    if not pids:
        return []
    own = {child.pid for child in psutil.Process().children(recursive=True)}
    found = []
    for pid in pids:
        with contextlib.suppress(*GONE):
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE or pid == os.getpid():
                continue
            environment = process.environ()
            if run in environment.get(MARK, "") or pid in own:
                left = Left(process, " ".join(process.cmdline()), environment.get("PYTEST_CURRENT_TEST", ""))
                found += [] if any(name in left.command for name in HELPERS) else [left]
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return runs(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def is_gone(pid: int) -> bool:
    """Whether a process runs no more."""
    return not is_alive(pid)


def runs(process: psutil.Process) -> bool:
    """Whether it is still this process that runs; a zombie does not, nor does one that ends meanwhile."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def watch(pid: int, run: str) -> None:
    """Wait for the end of any process; then kill what it has started.

    That is whatever was ever seen below it, since servers write over their environment, and whatever carries
    the mark.
    """
    seen: set[psutil.Process] = set()
    for turn in itertools.count():
        if not is_alive(pid):
            break
        if turn % ALL_EVERY == 0:  # looking at all processes takes 10 ms
            with contextlib.suppress(psutil.Error):
                seen.update(psutil.Process(pid).children(recursive=True))
            seen = set(filter(runs, seen))
        time.sleep(LOOK_SECONDS)
    below = [process for process in seen if process.pid != os.getpid()]
    while below := [*filter(runs, below), *(one.process for one in marked(run))]:
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(below, timeout=LOOK_SECONDS)
