"""The worker's side of a warm process: starts it, runs steps and runs in it, ends them. Thread-safe."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from dagster_glidemq.warm.messages import APART, INTERRUPTED, OF_A_RUN, Lines, encoded
from glidemq_orchestrate import Unrecoverable
from glidemq_orchestrate.lifeline import guard
from glidemq_orchestrate.lifeline.lifeline import lifeline

POLL_SECONDS: Final = 0.1
END_SECONDS: Final = 5.0
_CHUNK: Final = 1 << 16
_SPARED: Final = frozenset({0, 1})


class Stale(Exception):
    """The process takes no more jobs: its code has changed since the import, or it has ended.

    The job has not started.

    Attributes:
        apart: The argument for the next process (see ``messages``): its children must import the code
            themselves.
        is_of_a_run: The import is valid for one run only.
    """

    def __init__(self, apart: Mapping[str, Any] | None = None, *, is_of_a_run: bool = False) -> None:
        super().__init__()
        self.apart, self.is_of_a_run = apart, is_of_a_run


class WarmProcess:
    """A process that loads the code of its first job; only jobs with the same code may follow.

    Args:
        apart: Given if the process must not import the code itself (``Stale.apart``).
    """

    def __init__(self, apart: Mapping[str, Any] | None = None) -> None:
        self._mark = f"GLIDEMQ_DAGSTER_{secrets.token_hex(8)}"
        self._sock, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._calls: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._number, self._is_over, self.used_at = 0, False, time.monotonic()
        self._is_stuck, self._begun = False, set[int]()  # an import that hangs; the running calls
        with theirs:
            program = [sys.executable, "-m", "dagster_glidemq.warm.program", str(theirs.fileno()), self._mark]
            self._process = subprocess.Popen(  # noqa: S603  a module of this package
                [*program, APART] if apart else program,
                env={**os.environ, **lifeline.mark, self._mark: "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        lifeline.watch(self._process.pid)
        if apart:
            self._send(0, apart=apart)
        threading.Thread(target=self._listen, name="glidemq-warm", daemon=True).start()

    @property
    def is_usable(self) -> bool:
        """Whether it takes jobs."""
        return not self._is_over

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in it."""
        return not self._calls

    def run(self, kind: str, job: Any, how_to_end: Callable[[], int], grace: float) -> None:
        """Run a step or a run in a child, to its end.

        To end it early, the child is interrupted, and killed after the grace period, with its own children.

        Args:
            kind: ``step`` or ``run``.
            job: The payload.
            how_to_end: Returns the signal with which to end it now: SIGINT, or SIGKILL if another process may
                have the job, so that it writes no more; 0 while it may continue. Called ten times a second.
            grace: The grace period in seconds.

        Raises:
            Stale: A new process is needed; the job has not started.
            Unrecoverable: The child did not end normally, or could not start; with the reason.
        """
        replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._lock:
            if self._is_over:
                raise Stale
            self._number += 1
            number, self.used_at = self._number, time.monotonic()
            self._calls[number] = replies
        try:
            self._send(number, begin=kind, job=job, at=time.monotonic())
            self._wait(number, replies, how_to_end, grace)
        finally:
            with self._lock:
                self._calls.pop(number, None)
                self._begun.discard(number)
                self.used_at = time.monotonic()
                if self._is_stuck and not self._begun:  # jobs that wait for it start in another process
                    self._process.kill()

    def retire(self) -> bool:
        """Take no more jobs, unless a job is running. Returns whether the process is retired."""
        with self._lock:
            self._is_over = self._is_over or not self._calls
            return self._is_over

    def close(self) -> None:
        """End the process with its jobs, and wait for its end. Repeatable."""
        self._is_over = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._process.kill()
        self._process.wait()
        lifeline.forget(self._process.pid)

    def _wait(
        self,
        number: int,
        replies: queue.SimpleQueue[dict[str, Any] | None],
        how_to_end: Callable[[], int],
        grace: float,
    ) -> None:
        signals: list[int] = []
        has_begun, kill_at, gone_at = False, 0.0, 0.0
        while True:
            with suppress(queue.Empty):
                message = replies.get(timeout=POLL_SECONDS)
                if message is None and not has_begun:
                    raise Stale
                has_begun = True
                if message and "pid" in message:
                    self._begun.add(number)
                if message and "ended" in message and signal.SIGKILL in signals:
                    guard.end({}, f"{self._mark}_{number}=1".encode(), _SPARED, quiet=0.0)
                if _is_end(message, signals):
                    return
                continue
            now = time.monotonic()
            if not signals and (how := how_to_end()):
                signals.append(how)
                kill_at, gone_at = now + grace, now + grace + END_SECONDS
                self._send(number, signal=how)
            elif signals == [signal.SIGINT] and now >= kill_at:
                signals.append(signal.SIGKILL)
                self._send(number, signal=signal.SIGKILL)
            elif signals and now >= gone_at:  # it has not started yet, and would be killed immediately
                if not has_begun:
                    self._is_over = self._is_stuck = True
                raise Unrecoverable("cancelled before its process began")

    def _send(self, number: int, **what: Any) -> None:
        with self._lock, suppress(OSError):  # it has ended; the listener reports it
            self._sock.sendall(encoded({"number": number, **what}))

    def _listen(self) -> None:
        """Dispatch the messages of the process until it has ended; then kill its leftovers."""
        lines = Lines()
        with suppress(OSError, ValueError):
            while received := self._sock.recv(_CHUNK):
                for message in lines.feed(received):
                    if (replies := self._calls.get(message["number"])) is not None:
                        replies.put(message)
        with self._lock:
            self._is_over, left = True, list(self._calls.values())
        self._process.kill()
        self._process.wait()
        # Its children are in its session, and all their descendants have the mark.
        watched = {self._process.pid: guard.Watched("", 0.0)}
        guard.end(watched, f"{self._mark}=1".encode(), _SPARED | {os.getpid()}, quiet=0.0)
        lifeline.forget(self._process.pid)
        for replies in left:
            replies.put(None)
        self._sock.close()


def _is_end(message: dict[str, Any] | None, signals: list[int]) -> bool:
    """Whether the message reports the normal end of the job.

    Raises:
        Stale, Unrecoverable: The job has ended otherwise.
    """
    if message is None:
        raise Unrecoverable("the process that ran it was lost: the warm process of the worker has ended")
    if "stale" in message or "apart" in message:
        raise Stale(message.get("apart"), is_of_a_run=message.get("stale") == OF_A_RUN)
    if "refused" in message:
        raise Unrecoverable(str(message["refused"]))
    code = message.get("ended")
    if code is None or code == 0:
        return code == 0
    if code == INTERRUPTED:
        raise Unrecoverable("its process was interrupted")
    if code > 0:
        raise Unrecoverable(f"its process ended with exit code {code}; the event log may have more")
    how = _name_of(-code)
    if -code == signal.SIGKILL and signals == [signal.SIGKILL]:
        raise Unrecoverable("another attempt may have it: its process was ended by SIGKILL")
    if -code == signal.SIGKILL and signal.SIGKILL in signals:
        raise Unrecoverable(f"its process did not end when it was interrupted, and was ended by {how}")
    raise Unrecoverable(f"its process was ended by {how}")


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
