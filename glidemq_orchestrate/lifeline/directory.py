"""Keeps a data directory for one server at a time.

The owner of a server holds a lock on a file in the directory, from before the server starts until it has
stopped. The system gives the lock up when the owner is killed; its guard then ends the server, which may
still write for some seconds. So whoever gets the lock also waits for the server that the pid file names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
import weakref
from pathlib import Path
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError

LOCK_FILE: Final = "glidemq.lock"
CONFIG_FILE: Final = "valkey.conf"
LOOK_SECONDS: Final = 0.05
FORK_SECONDS: Final = 0.5
_PROC: Final = Path("/proc")


class DirectoryLock:
    """The right of this process to run a server on a directory.

    It ends with ``release`` or with the process, not with its forked children.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    def tell(self, who: str) -> None:
        """Write who holds it, for the error of the next one that tries."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, who.encode(), 0)

    def release(self) -> None:
        """Let others have the directory. A repeat does nothing."""
        if self._descriptor is not None:
            self.tell("")
        self.close()

    def close(self) -> None:
        """Close the file: the lock ends if this was the process that took it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def lock_directory(directory: Path, pid_file: str, patience: float) -> DirectoryLock:
    """Take a directory for a server.

    Args:
        directory: Exists.
        pid_file: Where the server writes its process id, in the directory.
        patience: Seconds to wait for the end of a server whose owner was killed.

    Raises:
        ConfigurationError: A server uses it, or the lock file cannot be written.
    """
    path = directory / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigurationError(f"cannot use data directory {directory}: {path}: {exc.strerror}") from exc
    lock = DirectoryLock(descriptor)
    try:
        _take(descriptor, directory)
        _await_end(directory, pid_file, patience)
    except BaseException:
        lock.close()
        raise
    return lock


def _take(descriptor: int, directory: Path) -> None:
    """Lock the file; a child that was just forked by a killed owner may hold it for a moment longer."""
    until = time.monotonic() + FORK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                who = os.pread(descriptor, 1_000, 0).decode(errors="replace")
                raise _in_use(directory, who) from None
        except OSError as exc:
            raise ConfigurationError(f"cannot lock data directory {directory}: {exc.strerror}") from exc
        else:
            return
        time.sleep(LOOK_SECONDS)


def _await_end(directory: Path, pid_file: str, patience: float) -> None:
    """Wait for the end of a server that nobody owns any more."""
    until = time.monotonic() + patience
    while (pid := _server(directory, pid_file)) is not None:
        if time.monotonic() > until:
            raise _in_use(directory, f"pid {pid}")
        time.sleep(LOOK_SECONDS)


def _in_use(directory: Path, who: str) -> ConfigurationError:
    return ConfigurationError(
        f"data directory {directory} is in use by another server{f' ({who})' if who else ''}. "
        "Fix: use that server, stop it, or choose another directory"
    )


def _server(directory: Path, pid_file: str) -> int | None:
    """The process id of a live server on the directory, by its pid file; None if there is none."""
    try:
        pid = int((directory / pid_file).read_text())
    except (OSError, ValueError):
        return None
    return pid if _command_line(pid).endswith(f" {directory.resolve() / CONFIG_FILE}") else None


def _command_line(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        if _PROC.is_dir():
            words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            return os.fsdecode(b" ".join(words)).rstrip()
        command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.rstrip()  # noqa: S603
    return ""


_held: Final[weakref.WeakSet[DirectoryLock]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_leave_to_parent)
