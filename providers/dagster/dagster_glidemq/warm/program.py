"""The warm process: ``python -m dagster_glidemq.warm.program FD MARK``. One thread, one location.

It imports the code of the first step that it is given, and forks a child for each; a child has everything in
memory and runs one step or run, in its main thread, as ``dagster api execute_step`` and ``execute_run`` do.
The process never runs user code beyond the import, and ends when its worker has closed the socket.

What a kill leaves behind: of the worker, nothing, since the worker's guard ends this process and its
children; of this process, children, which the worker ends when it sees the socket closed; of a child, the
``STEP_START`` in the log, to which the executor's health check adds the failure.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from dagster_glidemq.warm.messages import Lines, NotPrepared, encoded
from dagster_glidemq.warm.sources import Sources

logger = logging.getLogger("dagster_glidemq.warm")

_CHUNK: Final = 1 << 16
_HANDLED: Final = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Serve the worker at the other end of the socket until it has closed it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)  # not that of all loggers: steps have their own
    logger.propagate = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the worker, which then tells what to end
    WarmProgram(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]).serve()


class WarmProgram:
    """The process.

    Args:
        sock: The connection to the worker.
        mark: Starts the name of a variable by which what a child has started is found.
    """

    def __init__(self, sock: socket.socket, mark: str) -> None:
        from dagster_glidemq.warm.execution import Execution  # noqa: PLC0415  seconds, after the signals are set

        self._sock, self._mark, self._lines = sock, mark, Lines()
        self._execution, self._sources = Execution(), Sources()
        self._children: dict[int, int] = {}  # pid: number
        self._is_retired = self._has_warned = False
        self._ended, wake = os.pipe()
        for end in (self._ended, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._of_parent = (self._ended, wake, sock.fileno())

    def serve(self) -> None:
        """Begin and end children as the worker says."""
        self._execution.warm_up()
        self._freeze()
        while not (self._is_retired and not self._children):
            ready, _, _ = select.select([self._sock.fileno(), self._ended], [], [])
            if self._ended in ready:
                with suppress(BlockingIOError):
                    os.read(self._ended, _CHUNK)
                self._reap()
            if self._sock.fileno() in ready:
                received = self._sock.recv(_CHUNK)
                if not received:
                    break
                for message in self._lines.feed(received):
                    self._take(message)
        for pid in self._children:
            _kill(pid, signal.SIGKILL)

    def _take(self, message: dict[str, Any]) -> None:
        number = message["number"]
        if "signal" not in message:
            self._begin(number, message["begin"], message["job"])
            return
        for pid, of in self._children.items():
            if of == number:
                _kill(pid, message["signal"])

    def _begin(self, number: int, kind: str, job: Any) -> None:
        if self._is_retired or self._sources.have_changed():
            self._is_retired = True
            self._say(number, stale=True)
            return
        try:
            if self._execution.prepare(kind, job):
                self._freeze()
        except BaseException as exc:
            if not isinstance(exc, NotPrepared):
                self._is_retired = True  # the code may be half imported
                logger.exception("the code of a job cannot be loaded")
            self._say(number, refused=self._execution.explain(kind, job, exc))
            return
        self._warn_of_threads()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Until the child has handlers of its own, a signal to it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        pid = os.fork()
        if pid == 0:
            self._run(number, kind, job)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        with suppress(OSError):  # the child does it too, whoever is first
            os.setpgid(pid, pid)
        self._children[pid] = number
        self._say(number, pid=pid)

    def _run(self, number: int, kind: str, job: Any) -> None:
        """Be the child. Never returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for descriptor in self._of_parent:
                os.close(descriptor)
            os.environ[f"{self._mark}_{number}"] = "1"
            code = self._execution.run(
                kind, job, lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            )
        except BaseException:
            logger.exception("the process of a job ended by an error")
        finally:
            with suppress(BaseException):
                self._execution.end()
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        for pid in list(self._children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._say(self._children.pop(pid), ended=os.waitstatus_to_exitcode(status))

    def _freeze(self) -> None:
        """Let the collector of the children leave alone what they share with this process."""
        gc.collect()
        gc.freeze()
        self._sources.note()

    def _warn_of_threads(self) -> None:
        if threading.active_count() > 1 and not self._has_warned:
            self._has_warned = True
            names = ", ".join(sorted(thread.name for thread in threading.enumerate()[1:]))
            logger.warning(
                "importing the code has started threads (%s), which the processes of steps do not have: a "
                "lock that one of them holds is never released there. Start them in resources or ops",
                names,
            )

    def _say(self, number: int, **what: Any) -> None:
        with suppress(OSError):  # the worker has gone: the next read finds that
            self._sock.sendall(encoded({"number": number, **what}))


def _kill(pid: int, number: int) -> None:
    """Interrupt a child, or kill it with what it has started. It is not reaped, so the id is its own."""
    with suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


if __name__ == "__main__":
    main()
