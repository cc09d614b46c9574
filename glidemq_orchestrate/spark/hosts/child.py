"""A session host as its worker sees it: a child process, its steps, and its end."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import glidemq_orchestrate
from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.spark.ended import SessionClosed, SessionGone, SessionUnfit
from glidemq_orchestrate.spark.hosts.wire import Message, Opening, Outcome, Wire, levels_now
from glidemq_orchestrate.spark.published.version import Publication
from glidemq_orchestrate.spark.settings import SparkSettings
from glidemq_orchestrate.spark.step import StepCancelled
from glidemq_orchestrate.wire.codec import decode
from glidemq_orchestrate.worker.execution.contexts import portable
from glidemq_orchestrate.worker.execution.packed_errors import pack, unpack
from glidemq_orchestrate.worker.handlers.context import Context

logger = logging.getLogger("glidemq_orchestrate.spark")

_ROOT: Final = Path(glidemq_orchestrate.__file__).parents[1]
# The folder of the package comes last: modules beside it hide none of Python's.
_START: Final = (
    "import sys; sys.path.append(sys.argv[2]); from glidemq_orchestrate.spark.hosts.host import main; main()"
)
START_SECONDS: Final = 900.0
"""So long a session may take to be there: a cluster may have to make room for it."""
LOOK_SECONDS: Final = 0.1
STUBBORN_SECONDS: Final = 20.0
"""So long after its cancel a step may go on; then it is left to its host, which takes no other any more."""
END_SECONDS: Final = 20.0
_METHODS: Final = frozenset({"log", "report_usage", "write_message", "check_owner"})
_OF_SPEAKER: Final = frozenset({"note_published"})
"""Not for users: their contexts have none of these."""
_OF_JSON: Final = frozenset({"progress", "output"})

Inbox = queue.SimpleQueue[Message]


class Host:
    """A session host. Any thread may call it.

    Attributes:
        settings: Of its session.
        is_retired: Whether it takes no further step: it is to end, or has ended.
        steps: How many steps it has been given.
        since: When it was started, by the monotonic clock.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self.settings = settings
        self.is_retired, self.steps, self.since = False, 0, time.monotonic()
        self._numbers = itertools.count()
        self._inboxes: dict[int, Inbox] = {}
        self._is_killed = False
        self._asked: tuple[int, Inbox, float] | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None
        self._why = ""

    @property
    def pid(self) -> int | None:
        """Of its process; None before it is started."""
        return self._process.pid if self._process is not None else None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start the process, and return when it has its session.

        Raises:
            JavaMissing, ConfigurationError: As ``WarmSession.get``.
            SessionGone: The process has ended before, or has no session after ``START_SECONDS``.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603  this package's own
                    [sys.executable, "-P", "-c", _START, str(theirs.fileno()), str(_ROOT)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **self.settings.server, **lifeline.mark},
                    start_new_session=True,  # Ctrl-C reaches the worker alone
                )
            except BaseException:
                ours.close()
                raise
        lifeline.watch(self._process.pid)
        self._wire = Wire(ours)
        inbox = self._opened(number := next(self._numbers))
        threading.Thread(target=self._listen, name=f"spark-host-{self._process.pid}", daemon=True).start()
        until = time.monotonic() + START_SECONDS
        try:
            self._send("open", number, Opening(self.settings, sys.path, levels_now()))
            while (message := self._next(inbox, number)) is None:
                if time.monotonic() > until or self.is_retired:
                    self.kill()
        finally:
            self._inboxes.pop(number, None)
        if message.kind != "done":
            self.stop()
            raise self._error(message, "was built")

    def run(self, ctx: Context, title: str) -> Outcome:
        """Run a step, and return its outcome.

        Raises:
            SessionGone: The process or its session has ended.
            StepCancelled: The step goes on although it was cancelled; the host ends with its others.
            Exception: Whatever ``run_step`` raises.
        """
        inbox = self._opened(number := next(self._numbers))
        stopped: float | None = None
        try:
            self._send("step", number, (portable(ctx), ctx.flow is not None))
            while True:
                if stopped is None and ctx.cancelled.is_set():
                    stopped = time.monotonic()
                    self._send("cancel", number)
                elif stopped is not None and time.monotonic() > stopped + STUBBORN_SECONDS:
                    self._leave(title)
                message = self._next(inbox, number)
                if message is None:
                    continue
                if message.kind == "call":
                    self._send("answer", number, _called(ctx, message))
                elif message.kind == "done":
                    return Outcome(*message.value)
                else:
                    raise self._error(message, f"ran {title}")
        finally:
            self._inboxes.pop(number, None)

    def publish(self, places: Sequence[Publication], epoch: int | None) -> list[Publication]:
        """Make versions where the session is; see ``make_versions``.

        Raises:
            SessionGone: It has ended.
            Exception: Whatever the store raises.
        """
        inbox = self._opened(number := next(self._numbers))
        try:
            self._send("publish", number, (list(places), epoch))
            while (message := self._next(inbox, number)) is None:
                pass
            if message.kind != "done":
                raise self._error(message, "made versions")
            settled: list[Publication] = message.value
            return settled
        finally:
            self._inboxes.pop(number, None)

    @property
    def running(self) -> int:
        """How many steps and other calls it has at the moment."""
        return len(self._inboxes) - (self._asked is not None)

    def look(self) -> float:
        """Ask whether the session replies: for how many seconds it has not. One that has ended is retired."""
        if self._asked is not None:
            number, inbox, since = self._asked
            try:
                message = inbox.get_nowait()
            except queue.Empty:
                return time.monotonic() - since
            self._inboxes.pop(number, None)
            self._asked = None
            if message.kind != "done":
                self.is_retired = True
                return 0.0
        inbox = self._opened(number := next(self._numbers))
        self._asked = number, inbox, time.monotonic()
        with suppress(OSError):  # it has ended: the inbox tells
            if self._wire is not None:
                self._wire.try_to_send("look", number)
        return 0.0

    def stop(self) -> None:
        """End it, with its JVM and whatever runs there, and wait. Repeatable."""
        self.is_retired = True
        process = self._process
        if process is None:
            return
        if self._wire is not None:
            self._wire.end()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("a session host did not end within %g s; killing it", END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, with all that it has started."""
        self.is_retired = True
        if (process := self._process) is not None:
            self._kill_group(process.pid)
            process.wait()
            lifeline.forget(process.pid)

    def _kill_group(self, pid: int) -> None:
        """Kill the process, its JVM and what steps have started, once: later its id may be another's."""
        with self._lock:
            is_first, self._is_killed = not self._is_killed, True
        if is_first:
            with suppress(OSError):  # nothing is left of it
                os.killpg(pid, signal.SIGKILL)

    def _leave(self, title: str) -> None:
        self.is_retired = True
        logger.warning("%s goes on although it was cancelled; its session host takes no other step", title)
        if self.running == 1:
            self.kill()
        raise StepCancelled(f"{title} was cancelled, and went on for {STUBBORN_SECONDS:g} s more")

    def _opened(self, number: int) -> Inbox:
        inbox: Inbox = queue.SimpleQueue()
        with self._lock:
            self._inboxes[number] = inbox
            if self._why:
                inbox.put(Message.of("lost", number, (self._why, "")))
        return inbox

    def _next(self, inbox: Inbox, number: int) -> Message | None:
        """The next message of a step; None when there is none at the moment.

        That the process has ended is seen here too: something that it has started may hold its connection.
        """
        with suppress(queue.Empty):
            return inbox.get(timeout=LOOK_SECONDS)
        if not self.has_ended:
            return None
        with suppress(queue.Empty):
            return inbox.get(timeout=LOOK_SECONDS)  # what it said last
        return Message.of("lost", number, (self._how_it_ended(), ""))

    def _send(self, kind: str, number: int, value: Any = None) -> None:
        with suppress(OSError):  # it has ended: the inbox tells
            if self._wire is not None:
                self._wire.send(kind, number, value)

    def _error(self, message: Message, when: str) -> Exception:
        if message.kind == "raised":
            return unpack(message.value)
        what, explanation = message.value
        if message.kind == "closed":
            return SessionClosed(what, explanation)
        if message.kind == "unfit":
            return SessionUnfit(f"{what} while it {when}", explanation)
        self.is_retired = True  # its JVM has ended, or all of it
        return SessionGone(f"{what} while it {when}", explanation)

    def _listen(self) -> None:
        """Hand out what it says, until it ends; then tell all who wait."""
        wire = self._wire
        try:
            while wire is not None and (message := wire.receive()) is not None:
                if message.kind == "logged":
                    _log(message)
                elif (inbox := self._inboxes.get(message.number)) is not None:
                    inbox.put(message)
        finally:
            self.is_retired = True
            why = self._how_it_ended()
            with self._lock:
                self._why = why
                waiting = list(self._inboxes.items())
            for number, inbox in waiting:
                inbox.put(Message.of("lost", number, (why, "")))
            if wire is not None:
                wire.close()

    def _how_it_ended(self) -> str:
        process = self._process
        if process is None:
            return "the session host was not started"
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        if process.returncode is not None:
            self._kill_group(process.pid)  # what it has left
        return f"the session host {_ended(process.returncode)}"


def _called(ctx: Context, message: Message) -> bytes | None:
    """Call what a step asks for: nothing, or the error, packed."""
    try:
        method, given = message.value
        if method == "add_nodes" and ctx.flow is not None:
            nodes, before = given
            ctx.flow.add_nodes(nodes, before=before)
        elif method in _OF_JSON:
            getattr(ctx, method)(decode(given[0], where=method))
        elif method in _METHODS:
            getattr(ctx, method)(*given)
        elif method in _OF_SPEAKER:
            getattr(ctx.speaker, method)(*given)
    except Exception as exc:  # noqa: BLE001  it is the step's
        return pack(exc)
    return None


def _log(message: Message) -> None:
    try:
        record = logging.makeLogRecord(message.value)
        known = logging.getLogger(record.name)
        if known.isEnabledFor(record.levelno):
            known.handle(record)
    except Exception:
        logger.exception("a record of a session host cannot be logged")


def _ended(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
