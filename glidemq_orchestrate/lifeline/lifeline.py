"""What a process starts ends with it, also when it is killed: by a guard, a small process that outlives it.

A parent-death signal would not do: it belongs to the thread that started the child, exists on Linux only, and
reaches no grandchildren. The guard is started when the first process is watched, and ends by itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).with_name("guard.py")


class Lifeline:
    """The processes that must not outlive this one. Any thread may call it; a fork begins with an empty one.

    Attributes:
        mark: A variable for the environment of what is started. By it all that this starts in turn is found,
            however it detaches itself (on Linux).
    """

    def __init__(self) -> None:
        self._guard: _Guard | None = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._watched: dict[int, float] = {}
        self._name = f"GLIDEMQ_OWNER_{os.getpid()}_{secrets.token_hex(8)}"

    def before_fork(self) -> None:
        """Let no guard be half started: a child would keep an end of its pipe that it does not know of."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork(self) -> None:
        """Begin anew in a child: what the parent watches is the parent's affair."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.let_go()
        self._begin()

    @property
    def mark(self) -> Mapping[str, str]:
        """See the class. Starts the guard."""
        with self._lock:
            self._started()
            return {self._name: "1"}

    def watch(self, pid: int, *, grace: float = 0.0) -> None:
        """End a process, its group and all that descends from it when this process has gone.

        Args:
            pid: A process that was started by this one.
            grace: Seconds that it has to end by SIGTERM; then, or else at once, it is killed.
        """
        with self._lock:
            self._watched[pid] = grace
            self._send(f"+ {pid} {grace}\n")

    def forget(self, pid: int) -> None:
        """Watch it no longer: it has ended. Harmless when it was not watched."""
        with self._lock:
            if self._watched.pop(pid, None) is not None:
                self._send(f"- {pid}\n")

    def say_goodbye(self) -> None:
        """This process ends in order: the guard need not wait for what a killed one was about to start."""
        with suppress(OSError):
            if self._guard is not None:
                self._guard.send(".\n")

    @contextmanager
    def marking(self) -> Iterator[None]:
        """What is started in this block gets the mark: for libraries that take no environment.

        A process that another thread starts in the meantime gets it as well.
        """
        name = next(iter(self.mark))
        os.environ[name] = "1"
        try:
            yield
        finally:
            os.environ.pop(name, None)

    def _send(self, line: str) -> None:
        guard = self._started()
        if guard is None:
            return
        try:
            guard.send(line)
        except OSError:  # somebody has killed it this moment: the next one is told all that is watched
            self._guard = None
            self._started()

    def _started(self) -> _Guard | None:
        if self._guard is not None and self._guard.is_alive:
            return self._guard
        try:
            self._guard = _Guard(self._name)
            for pid, grace in self._watched.items():
                self._guard.send(f"+ {pid} {grace}\n")
        except OSError as exc:
            self._guard = None
            logger.warning(
                "what this process starts may outlive it: its guard cannot be started: %s",
                exc,
                extra={"action": "guard_missing"},
            )
        return self._guard


class _Guard:
    """The guard of this process, and the pipe by which it knows that the process lives."""

    def __init__(self, name: str) -> None:
        if not sys.executable or getattr(sys, "frozen", False):  # a packed program would start itself again
            raise OSError("there is no Python here that could run it")
        theirs, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM), name, str(os.getpid())],
                cwd="/",
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, line: str) -> None:
        os.write(self._pipe, line.encode())

    def let_go(self) -> None:
        """In a forked child: a copy of the pipe there would hide the end of the parent from the guard."""
        os.close(self._pipe)
        self._process.returncode = 0  # not a child of this process: nothing here waits for it


lifeline: Final = Lifeline()
atexit.register(lifeline.say_goodbye)
os.register_at_fork(
    before=lifeline.before_fork,
    after_in_parent=lifeline.after_fork_in_parent,
    after_in_child=lifeline.after_fork,
)
