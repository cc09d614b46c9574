"""The warm process: ``python -m dagster_glidemq.warm.program FD MARK``. One thread, one location.

It imports the code of its first step, and forks a child for each step or run. A child has everything in
memory and runs one step or run in its main thread, as ``dagster api execute_step`` and ``execute_run`` do.
The process itself runs no user code beyond the import, and ends when its worker closes the socket.

Code whose import is unsafe to fork (see ``hazards``) is imported by each child instead, in a process with
``apart`` as its third argument, which has imported only Dagster.

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
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from dagster_glidemq.warm.hazards import Hazards
from dagster_glidemq.warm.messages import APART, CHANGED, OF_A_RUN, Lines, NotPrepared, Outdated, encoded
from dagster_glidemq.warm.sources import Sources, modules_of_code

logger = logging.getLogger("dagster_glidemq.warm")

MAX_OF_A_REFUSAL: Final = 4096
_CHUNK: Final = 1 << 16
_ALL_OF_IT: Final = 100
"""One in this many collections is complete: it takes longer the more code is imported."""
_HANDLED: Final = (signal.SIGINT, signal.SIGTERM)


class _Child(NamedTuple):
    """A child: the number of its job, and the pipe for the reason why it could not begin."""

    number: int
    refusal: int


def main() -> None:
    """Serve the worker at the other end of the socket until it has closed it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)  # not on the root logger: steps have their own
    logger.propagate = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the worker, which then decides what to end
    sock = socket.socket(fileno=int(sys.argv[1]))
    WarmProgram(sock, sys.argv[2], is_apart=APART in sys.argv[3:]).serve()


class WarmProgram:
    """The process.

    Args:
        sock: The connection to the worker.
        mark: The prefix of an environment variable that identifies all descendants of a child.
        is_apart: Whether each child imports the code itself; the first message has the reason.
    """

    def __init__(self, sock: socket.socket, mark: str, *, is_apart: bool) -> None:
        from dagster_glidemq.warm.execution import WarmExecution  # noqa: PLC0415  seconds, after the signals are set

        self._sock, self._mark, self._lines, self._is_apart = sock, mark, Lines(), is_apart
        self._sources, self._hazards = Sources(), Hazards()
        self._execution = WarmExecution(self._sources)
        self._children: dict[int, _Child] = {}  # by pid
        self._parting: dict[str, Any] = {}  # the reply to jobs once it takes no more
        self._why_apart, self._frozen = "", 0
        self._began = 0.0  # start of the import: all sources were read later
        self._ended, wake = os.pipe()
        for end in (self._ended, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._of_parent = (self._ended, wake, sock.fileno())

    def serve(self) -> None:
        """Start and end children on behalf of the worker."""
        self._execution.warm_up()
        self._began = time.monotonic()
        if not self._is_apart:
            self._hazards.note()
            self._execution.preload()
        self._freeze()
        while not (self._parting and not self._children):
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
        if "begin" in message:
            self._begin(number, message["begin"], message["job"], message["at"])
        elif "apart" in message:
            self._why_apart = message["apart"]["why"]
            self._sources.unpack(message["apart"]["sources"])
        else:
            for pid, child in self._children.items():
                if child.number == number:
                    _kill(pid, message["signal"])

    def _begin(self, number: int, kind: str, job: Any, at: float) -> None:
        # An import after a job was sent is recent enough for it, however often its files change.
        if not self._parting and at > self._began and (why := self._why_outdated(job)):
            self._parting = {"stale": why}
        if self._parting:
            self._say(number, **self._parting)
        elif self._is_apart or self._is_prepared(number, kind, job):
            self._fork(number, kind, job)

    def _why_outdated(self, job: Any) -> str:
        """Why a new import might give other code: ``CHANGED``, ``OF_A_RUN``, or empty."""
        if self._sources.have_changed(for_another_run=False):
            return CHANGED
        if self._is_apart or not self._execution.is_of_another_run(job):
            return ""
        is_unsure = not self._sources.is_certain or self._sources.have_changed(for_another_run=True)
        return OF_A_RUN if is_unsure else ""

    def _is_prepared(self, number: int, kind: str, job: Any) -> bool:
        """Import the code of a job; False if it is unusable here, in which case the worker is notified."""
        try:
            if not self._execution.is_open:
                with self._hazards.passing_over():
                    self._execution.open()
            is_new = self._execution.prepare(kind, job)
        except Outdated:
            self._retire(number, stale=OF_A_RUN)
            return False
        except BaseException as exc:
            if not isinstance(exc, NotPrepared):
                self._parting = {"stale": CHANGED}  # the code may be half imported
                logger.exception("the code of a job cannot be loaded")
            self._say(number, refused=self._execution.explain(kind, job, exc))
            return False
        if is_new:
            self._freeze()
            if why := self._hazards.found(modules_of_code(), self._sources.at_exit):
                self._retire(number, apart={"why": why, "sources": self._sources.packed()})
                return False
        return True

    def _retire(self, number: int, **what: Any) -> None:
        """Take no further job; the worker starts a new process for this one."""
        self._parting = what
        self._say(number, **what)

    def _fork(self, number: int, kind: str, job: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        refusal, theirs = os.pipe()
        # Until the child has installed its handlers, a signal to it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        pid = os.fork()
        if pid == 0:
            os.close(refusal)
            self._run(number, kind, job, theirs)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        os.close(theirs)
        os.set_blocking(refusal, False)
        with suppress(OSError):  # the child does this too; either may be first
            os.setpgid(pid, pid)
        self._children[pid] = _Child(number, refusal)
        self._say(number, pid=pid)

    def _run(self, number: int, kind: str, job: Any, refusal: int) -> None:
        """Run as the child. Never returns."""
        code, has_begun = 1, False

        def begin() -> None:
            nonlocal has_begun
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            if self._is_apart:
                self._execution.prepare(kind, job)
                self._execution.log_once(job, _why_slow(self._why_apart))
            has_begun = True

        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for descriptor in self._of_parent:
                os.close(descriptor)
            for child in self._children.values():
                os.close(child.refusal)
            os.environ[f"{self._mark}_{number}"] = "1"
            code = self._execution.run(kind, job, begin)
        except BaseException as exc:
            logger.exception("the process of a job ended by an error")
            if not has_begun:
                with suppress(BaseException):
                    os.write(refusal, self._execution.explain(kind, job, exc).encode()[:MAX_OF_A_REFUSAL])
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
                child, why = self._children.pop(pid), b""
                with suppress(OSError):  # one of its descendants holds the other end
                    why = os.read(child.refusal, MAX_OF_A_REFUSAL)
                os.close(child.refusal)
                if why:
                    self._say(child.number, refused=why.decode(errors="replace"))
                else:
                    self._say(child.number, ended=os.waitstatus_to_exitcode(status))

    def _freeze(self) -> None:
        """Keep the garbage collector of children away from the memory that they share with this process."""
        self._frozen += 1
        if self._frozen % _ALL_OF_IT == 0:  # some frozen objects are garbage by now
            gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _say(self, number: int, **what: Any) -> None:
        with suppress(OSError):  # the worker has gone: the next read finds that
            self._sock.sendall(encoded({"number": number, **what}))


def _why_slow(why: str) -> str:
    return (
        f"Importing the code of this location leaves {why}, which forked processes cannot use, or would "
        "share. So each of its steps imports the code again, which takes longer. Fix: read data, make "
        "temporary folders and generators of random numbers, and open connections, files and databases, in "
        "ops, assets or resources, not at the level of a module."
    )


def _kill(pid: int, number: int) -> None:
    """Interrupt a child, or kill it with its descendants. It is not reaped yet, so its id is still valid."""
    with suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


if __name__ == "__main__":
    main()
