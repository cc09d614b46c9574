"""Starts and ends the process that renews the leases of a worker while the worker cannot.

The process reads a pipe that only the worker holds open, so it never outlives the worker. If it is killed,
the next heartbeat starts another.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from glidemq_orchestrate.settings import ENV_URL, ConnectionSettings
from glidemq_orchestrate.wire.keys import GROUP

logger = logging.getLogger("glidemq_orchestrate.worker")

_PROGRAM: Final = Path(__file__).with_name("renewing_process.py")
_SOURCES: Final = str(Path(__file__).parents[3])
MAX_PATIENCE: Final = 10.0
SHARE: Final = 0.45
"""The share of a lease for which a worker may be silent before its leases are renewed."""
LEASES: Final = 10
MIN_LIMIT: Final = 60.0
HURRIED: Final = 3.0
READY_SECONDS: Final = 5.0
_ALL: Final[weakref.WeakSet[Renewer]] = weakref.WeakSet()


class Renewer:
    """The renewing process of one worker. Thread-safe. Once closed, it cannot be started again.

    Args:
        worker: The id of the worker.
        queues: The queues that it serves.
        settings: Its connection.
        lock_seconds: How long a lease lasts.
        group: The consumer group of the workers, or a subscription.
    """

    def __init__(
        self,
        worker: str,
        queues: Sequence[str],
        settings: ConnectionSettings,
        lock_seconds: float,
        *,
        group: str = GROUP,
    ) -> None:
        self._worker, self._queues, self._settings, self._group = worker, list(queues), settings, group
        self._patience = patience = min(lock_seconds * SHARE, MAX_PATIENCE)
        self._is_hurried = patience < HURRIED
        limit = max(LEASES * lock_seconds, MIN_LIMIT)
        self._words = (f"{patience:.3f}", f"{limit:.3f}", str(int(self._is_hurried)))
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe, self._is_warned, self._owner = -1, False, os.getpid()
        self._lock, self._is_closed = threading.Lock(), False
        _ALL.add(self)

    @property
    def pid(self) -> int | None:
        """The process id; None while none runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Start the process, unless it runs. If that fails, it is logged once; the worker runs without it."""
        with self._lock:
            if self._is_closed or self.pid is not None or os.getpid() != self._owner:
                return
            self._end()
            try:
                self._start()
            except OSError as exc:
                self._end()
                self._warn(exc)

    def _warn(self, exc: OSError) -> None:
        if not self._is_warned:
            self._is_warned = True
            text = (
                "worker %s: cannot start the process that renews its leases: %s. A handler that blocks the "
                "worker will cost its other jobs their leases"
            )
            extra = {"action": "renewer_missing", "worker": self._worker}
            logger.warning(text, self._worker, exc, extra=extra)

    def renewed(self, shortest: float = math.inf) -> bool:
        """Note that the worker has renewed its leases itself; False if the process must be started.

        ``shortest``: the shortest lease that it holds, in seconds, since jobs may have leases of their own.
        """
        if not self._lock.acquire(blocking=False):
            return True  # it is being started, or ended
        try:
            if self.pid is None:
                return False
            os.write(self._pipe, b"%d\n" % (min(self._patience, shortest * SHARE) * 1000))
        except BlockingIOError:  # it is stopped, and its pipe is full
            return True
        except OSError:
            return False
        else:
            return True
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process and wait for its end. Repeatable."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if process is not None and os.getpid() == self._owner:
            process.kill()
            process.communicate()

    def detach(self) -> None:
        """Close the pipe in a forked child: a copy there would keep it open after the worker's end."""
        self._lock = threading.Lock()  # another thread may have held it
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._process is not None:
            self._process.returncode = 0  # not a child of this process
        self._process = None

    def _start(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself again
            raise OSError("no Python interpreter found to run it")
        theirs, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603  the program beside this file
                [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid()), *self._words],
                cwd="/",
                env={name: value for name, value in os.environ.items() if name != ENV_URL},
                stdin=theirs,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        os.write(self._pipe, json.dumps(self._input()).encode() + b"\n")
        if self._is_hurried and self._process.stdout is not None:
            select.select([self._process.stdout], [], [], READY_SECONDS)

    def _input(self) -> dict[str, Any]:
        """The first line that the process reads, with the secrets of the connection: only in the pipe."""
        connection = {
            one.name: getattr(self._settings, one.name)
            for one in dataclasses.fields(self._settings)
            if one.init
        }
        path = [_SOURCES, *(os.path.abspath(part) for part in sys.path if part)]  # noqa: PTH100
        about = {"worker": self._worker, "queues": self._queues, "group": self._group}
        return {**about, "path": path, "connection": connection}


def _detach_all() -> None:
    for renewer in list(_ALL):
        renewer.detach()


os.register_at_fork(after_in_child=_detach_all)
