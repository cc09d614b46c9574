"""Ends the child processes of a process when it ends, even if it is killed, with a guard process.

A parent-death signal would not suffice: it depends on the thread that started the child, exists only on
Linux, and does not reach grandchildren. The guard starts with the first watched process, and ends after this
process.
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
    """The processes that must not outlive this process. Thread-safe; a forked child starts with none.

    Attributes:
        mark: An environment variable for started processes. It identifies their descendants even when they
            detach (on Linux).
    """

    def __init__(self) -> None:
        self._guard: _Guard | None = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._watched: dict[int, float] = {}
        self._name = f"GLIDEMQ_OWNER_{os.getpid()}_{secrets.token_hex(8)}"

    def before_fork(self) -> None:
        """Wait until no guard is being started: otherwise a child would hold an end of its pipe open."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        self._lock.release()

    def after_fork(self) -> None:
        """Start with none in a child: the parent's processes stay with the parent."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.detach()
        self._begin()

    @property
    def mark(self) -> Mapping[str, str]:
        """The environment variable for started processes. Starts the guard."""
        with self._lock:
            self._started()
            return {self._name: "1"}

    def watch(self, pid: int, *, grace: float = 0.0) -> None:
        """End a process, its group and their descendants after the end of this process.

        Args:
            pid: A child of this process.
            grace: Seconds between SIGTERM and SIGKILL; 0 kills it immediately.
        """
        with self._lock:
            self._watched[pid] = grace
            self._send(f"+ {pid} {grace}\n")

    def forget(self, pid: int) -> None:
        """Stop watching a process that has ended. Does nothing if it was not watched."""
        with self._lock:
            if self._watched.pop(pid, None) is not None:
                self._send(f"- {pid}\n")

    def close(self) -> None:
        """Report a normal exit: the guard then does not wait for processes that are just starting."""
        with suppress(OSError):
            if self._guard is not None:
                self._guard.send(".\n")

    def _send(self, line: str) -> None:
        guard = self._started()
        if guard is None:
            return
        try:
            guard.send(line)
        except OSError:  # the guard was killed: the next guard receives all watched processes
            self._guard = None
            self._started()

    def _started(self) -> _Guard | None:
        """The guard, started if it is not running; None if it cannot be started."""
        if self._guard is not None and self._guard.is_alive:
            return self._guard
        try:
            self._guard = _Guard(self._name)
            for pid, grace in self._watched.items():
                self._guard.send(f"+ {pid} {grace}\n")
        except OSError as exc:
            self._guard = None
            logger.warning(
                "cannot start the guard, so child processes may outlive this process: %s",
                exc,
                extra={"action": "guard_missing"},
            )
        return self._guard


class _Guard:
    """The guard process, and the pipe that stays open while this process lives."""

    def __init__(self, name: str) -> None:
        if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself
            raise OSError("no Python interpreter found to run it")
        read_end, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own guard
                [sys.executable, "-I", "-S", str(_PROGRAM), name, str(os.getpid())],
                cwd="/",
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(read_end)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, line: str) -> None:
        os.write(self._pipe, line.encode())

    def detach(self) -> None:
        """Close the pipe in a forked child: an open copy would hide the parent's end from the guard."""
        os.close(self._pipe)
        self._process.returncode = 0  # it is not a child of this process


lifeline: Final = Lifeline()
atexit.register(lifeline.close)
os.register_at_fork(
    before=lifeline.before_fork,
    after_in_parent=lifeline.after_fork_in_parent,
    after_in_child=lifeline.after_fork,
)


_changing = threading.Lock()
_values: dict[str, list[str | None]] = {}
"""The values of the variables that are set now, each after the one that it replaced."""

os.register_at_fork(
    before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release
)


@contextmanager
def patched(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the block and restore the old ones after it, even if threads overlap.

    A process that another thread starts during the block inherits them too.
    """
    with _changing:
        for name, value in variables.items():
            _values.setdefault(name, [os.environ.get(name)]).append(value)
            os.environ[name] = value
    try:
        yield
    finally:
        with _changing:
            for name, value in variables.items():
                values = _values[name]
                del values[len(values) - 1 - values[::-1].index(value)]
                _set(name, values[-1])
                if len(values) == 1:
                    del _values[name]


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
