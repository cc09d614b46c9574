"""Reserves a data directory, or the path of a socket, for one server at a time.

The owner of a server holds a lock on a file in the directory, from before the server starts until it has
stopped. If the owner is killed, the system releases the lock. The owner's guard then ends the server, which
may still write for some seconds. So the next owner of the lock waits for the server that the pid file names.

The lock of a socket is a file beside it, removed with the lock. It is needed because a starting server
silently removes the socket of another server.
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
POLL_SECONDS: Final = 0.05
FORK_SECONDS: Final = 0.5
_PROC: Final = Path("/proc")


class Lock:
    """The right of this process to run a server on a directory or a socket.

    It ends with ``release`` or with the process. Forked children do not extend it.

    Args:
        descriptor: The locked file.
        passing: The path of the file, if it is removed with the lock.
    """

    def __init__(self, descriptor: int, passing: Path | None = None) -> None:
        self._descriptor: int | None = descriptor
        self._passing = passing
        _held.add(self)

    def write_holder(self, who: str) -> None:
        """Write the holder of the lock, for the error message of the next process that tries."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, who.encode(), 0)

    def release(self) -> None:
        """Release the directory to others. Idempotent."""
        if self._descriptor is not None:
            self.write_holder("")
            if self._passing is not None:
                with contextlib.suppress(OSError):
                    self._passing.unlink()
        self.close()

    def close(self) -> None:
        """Close the file, which ends the lock if this process took it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def lock_socket(socket: Path) -> Lock:
    """Reserve the path of a Unix socket for a server; its directory is created if missing.

    Raises:
        ConfigurationError: A server uses it, or the lock file cannot be written.
    """
    path, what = socket.with_name(f"{socket.name}.lock"), f"socket {socket}"
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigurationError(f"cannot use {what}: {exc.strerror}") from exc
        descriptor = _open(path, what)
        lock = Lock(descriptor, path)
        try:
            _take(descriptor, what)
        except BaseException:
            lock.close()
            raise
        if _is_at(path, descriptor):
            return lock
        lock.close()  # the previous owner has just removed the file


def lock_directory(directory: Path, pid_file: str, patience: float) -> Lock:
    """Reserve a directory for a server.

    Args:
        directory: An existing directory.
        pid_file: Name of the file in the directory where the server writes its process id.
        patience: Seconds to wait for the end of a server whose owner was killed.

    Raises:
        ConfigurationError: A server uses it, or the lock file cannot be written.
    """
    what = f"data directory {directory}"
    descriptor = _open(directory / LOCK_FILE, what)
    lock = Lock(descriptor)
    try:
        _take(descriptor, what)
        lock.write_holder(f"process {os.getpid()} is starting it")  # replaces the text of the last owner
        _await_end(directory, pid_file, patience)
    except BaseException:
        lock.close()
        raise
    return lock


def _open(path: Path, what: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigurationError(f"cannot use {what}: {path}: {exc.strerror}") from exc


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _take(descriptor: int, what: str) -> None:
    """Lock the file; a child that a killed owner has just forked may hold it for a moment longer."""
    until = time.monotonic() + FORK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                who = os.pread(descriptor, 1_000, 0).decode(errors="replace")
                raise _in_use(what, who) from None
        except OSError as exc:
            raise ConfigurationError(f"cannot lock {what}: {exc.strerror}") from exc
        else:
            return
        time.sleep(POLL_SECONDS)


def _await_end(directory: Path, pid_file: str, patience: float) -> None:
    """Wait for the end of a server that has lost its owner."""
    until = time.monotonic() + patience
    while (pid := _server(directory, pid_file)) is not None:
        if time.monotonic() > until:
            raise _in_use(f"data directory {directory}", f"pid {pid}")
        time.sleep(POLL_SECONDS)


def _in_use(what: str, who: str) -> ConfigurationError:
    kind = "socket" if what.startswith("socket") else "directory"
    return ConfigurationError(
        f"{what} is in use by another server{f' ({who})' if who else ''}. "
        f"Fix: use that server, stop it, or choose another {kind}"
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


_held: Final[weakref.WeakSet[Lock]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_leave_to_parent)
