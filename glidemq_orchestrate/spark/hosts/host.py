"""A session host, on the side of its worker: the child process, its steps, and its entry in the pool."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import glidemq_orchestrate
from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.spark.failures import SessionClosed, SessionGone, SessionUnfit, StepCancelled
from glidemq_orchestrate.spark.hosts.wire import Message, Opening, StepOutcome, Wire, levels_now, log_record
from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.spark.setup.request import SessionRequest
from glidemq_orchestrate.spark.setup.spark_settings import SparkSettings
from glidemq_orchestrate.wire.codec import decode
from glidemq_orchestrate.worker.contexts import portable
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.tracebacks import pack, unpack

logger = logging.getLogger("glidemq_orchestrate.spark")

_ROOT: Final = Path(glidemq_orchestrate.__file__).parents[1]
# The folder of the package comes last, so that modules beside it hide none of Python's.
_PROCESS: Final = "glidemq_orchestrate.spark.host_process"
_START: Final = f"import sys; sys.path.append(sys.argv[2]); from {_PROCESS} import main; main()"
START_SECONDS: Final = 900.0
"""How long a session may take to start: a cluster may have to make room for it."""
POLL_SECONDS: Final = 0.1
CANCEL_GRACE_SECONDS: Final = 20.0
"""How long a cancelled step may continue. After that its host takes no more steps."""
END_SECONDS: Final = 20.0
_CONTEXT_METHODS: Final = frozenset({"log", "report_usage", "write_message", "check_owner"})
_REPORTER_METHODS: Final = frozenset({"note_published"})
"""Methods that the contexts of users do not have."""
_JSON_METHODS: Final = frozenset({"progress", "output"})

HostInbox = queue.SimpleQueue[Message]


class Host:
    """A session host. Any thread may call it.

    Attributes:
        settings: The settings of its session.
        is_retired: Whether it takes no more steps, because it is about to end or has ended.
        steps: The number of steps that were sent to it.
        since: The monotonic time of its start.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self.settings = settings
        self.is_retired, self.steps, self.since = False, 0, time.monotonic()
        self._numbers = itertools.count()
        self._inboxes: dict[int, HostInbox] = {}
        self._is_killed = False
        self._probe: tuple[int, HostInbox, float] | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None
        self._why = ""

    @property
    def pid(self) -> int | None:
        """The id of its process; None before it is started."""
        return self._process.pid if self._process is not None else None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start the process, and return when its session exists.

        Raises:
            JavaMissing, ConfigurationError: As ``WarmSession.get``.
            SessionGone: The process ended first, or has no session after ``START_SECONDS``.
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
        threading.Thread(target=self._listen, name=f"spark-host-{self._process.pid}", daemon=True).start()
        until = time.monotonic() + START_SECONDS
        with self._request("open", Opening(self.settings, sys.path, levels_now())) as (number, inbox):
            while (message := self._next(inbox, number)) is None:
                if time.monotonic() > until or self.is_retired:
                    self.kill()
        if message.kind != "done":
            self.stop()
            raise self._error(message, "was built")

    def run(self, ctx: Context, title: str) -> StepOutcome:
        """Run a step, and return its outcome.

        Raises:
            SessionGone: The process or its session has ended.
            StepCancelled: The step continues although it was cancelled; the host ends with its other steps.
            Exception: What ``run_step`` raises.
        """
        stopped: float | None = None
        with self._request("step", (portable(ctx), bool(ctx.flow))) as (number, inbox):
            while True:
                if stopped is None and ctx.cancelled.is_set():
                    stopped = time.monotonic()
                    self._send("cancel", number)
                elif stopped is not None and time.monotonic() > stopped + CANCEL_GRACE_SECONDS:
                    self._abandon(title)
                message = self._next(inbox, number)
                if message is None:
                    continue
                if message.kind == "call":
                    self._send("answer", number, _call(ctx, message))
                elif message.kind == "done":
                    return StepOutcome(*message.value)
                else:
                    raise self._error(message, f"ran {title}")

    def publish(self, publications: Sequence[Publication], epoch: int | None) -> list[Publication]:
        """Make versions where the session is; see ``make_versions``.

        Raises:
            SessionGone: It has ended.
            Exception: What the store raises.
        """
        with self._request("publish", (list(publications), epoch)) as (number, inbox):
            while (message := self._next(inbox, number)) is None:
                pass
        if message.kind != "done":
            raise self._error(message, "made versions")
        settled: list[Publication] = message.value
        return settled

    @property
    def running(self) -> int:
        """How many steps and other calls it runs now."""
        return len(self._inboxes) - (self._probe is not None)

    def probe(self) -> float:
        """Check that the session replies. A host whose session has ended is retired.

        Returns:
            For how many seconds it has not replied.
        """
        if self._probe is not None:
            number, inbox, since = self._probe
            try:
                message = inbox.get_nowait()
            except queue.Empty:
                return time.monotonic() - since
            self._inboxes.pop(number, None)
            self._probe = None
            if message.kind != "done":
                self.is_retired = True
                return 0.0
        inbox = self._open_inbox(number := next(self._numbers))
        self._probe = number, inbox, time.monotonic()
        with suppress(OSError):  # it has ended: the inbox gets a message
            if self._wire is not None:
                self._wire.try_to_send("probe", number)
        return 0.0

    def stop(self) -> None:
        """End it with its JVM and everything that runs there, and wait. Repeatable."""
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
        """Kill it, with everything that it has started."""
        self.is_retired = True
        if (process := self._process) is not None:
            self._kill_group(process.pid)
            process.wait()
            lifeline.forget(process.pid)

    def _kill_group(self, pid: int) -> None:
        """Kill the process, its JVM and what steps have started; only once, because its id may be reused."""
        with self._lock:
            is_first, self._is_killed = not self._is_killed, True
        if is_first:
            with suppress(OSError):  # nothing is left of it
                os.killpg(pid, signal.SIGKILL)

    def _abandon(self, title: str) -> None:
        self.is_retired = True
        logger.warning("%s was cancelled but continues; its session host takes no more steps", title)
        if self.running == 1:
            self.kill()
        raise StepCancelled(f"{title} was cancelled, but was still running {CANCEL_GRACE_SECONDS:g} s later")

    @contextmanager
    def _request(self, kind: str, value: Any) -> Iterator[tuple[int, HostInbox]]:
        """Send a request; yields its number, and the inbox for the messages about it."""
        inbox = self._open_inbox(number := next(self._numbers))
        try:
            self._send(kind, number, value)
            yield number, inbox
        finally:
            self._inboxes.pop(number, None)

    def _open_inbox(self, number: int) -> HostInbox:
        inbox: HostInbox = queue.SimpleQueue()
        with self._lock:
            self._inboxes[number] = inbox
            if self._why:
                inbox.put(Message.of("lost", number, (self._why, "")))
        return inbox

    def _next(self, inbox: HostInbox, number: int) -> Message | None:
        """The next message of a step; None if there is none yet.

        The end of the process is detected here too: a process that it has started may hold its connection
        open.
        """
        with suppress(queue.Empty):
            return inbox.get(timeout=POLL_SECONDS)
        if not self.has_ended:
            return None
        with suppress(queue.Empty):
            return inbox.get(timeout=POLL_SECONDS)  # its last message
        return Message.of("lost", number, (self._how_it_ended(), ""))

    def _send(self, kind: str, number: int, value: Any = None) -> None:
        with suppress(OSError):  # it has ended: the inbox gets a message
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
        """Distribute its messages until it ends, then wake all waiters."""
        wire = self._wire
        try:
            while wire is not None and (message := wire.receive()) is not None:
                if message.kind == "logged":
                    log_record(message)
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
        return f"the session host {_exit(process.returncode)}"


def _call(ctx: Context, message: Message) -> tuple[bytes | None, Any]:
    """Call a method of the context for a step; returns the packed error, or None, and what it returned."""
    try:
        method, given = message.value
        if method == "array_results":
            return None, dict(ctx.flow.array_results(*given))
        if method == "add_nodes" and ctx.flow:
            nodes, before = given
            ctx.flow.add_nodes(nodes, before=before)
        elif method in _JSON_METHODS:
            getattr(ctx, method)(decode(given[0], where=method))
        elif method in _CONTEXT_METHODS:
            getattr(ctx, method)(*given)
        elif method in _REPORTER_METHODS:
            getattr(ctx.reporter, method)(*given)
    except Exception as exc:  # noqa: BLE001  raised in the step
        return pack(exc), None
    return None, None


def _exit(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


START_POLL_SECONDS: Final = 0.25


class PooledHost:
    """A host in the pool: which sessions it serves, who uses it. The pool's lock guards all but the start."""

    def __init__(self, host: Host, request: SessionRequest, *, is_for_once: bool) -> None:
        self.host, self.request, self.is_for_once = host, request, is_for_once
        self.users, self.idle_since, self.bytes = 0, time.monotonic(), 0
        self.is_replaced = False
        self._starting = threading.Lock()
        self._is_begun = False
        self._done = threading.Event()
        self._error: Exception | None = None

    def started(self, is_cancelled: Callable[[], bool] = lambda: False) -> Host:
        """The host, once its session exists; the first caller starts it.

        Raises:
            StepCancelled: The step was cancelled while it waited; the start continues.
            Exception: It cannot be started.
        """
        with self._starting:
            if not self._is_begun:
                self._is_begun = True
                threading.Thread(target=self._start, name="spark-host-start", daemon=True).start()
        while not self._done.wait(START_POLL_SECONDS):
            if is_cancelled():
                raise StepCancelled("cancelled while it waited for a Spark session")
        if self._error is not None:
            raise self._error
        return self.host

    @property
    def has_started(self) -> bool:
        """Whether its session was ever built."""
        return self._done.is_set() and self._error is None

    @property
    def is_ready(self) -> bool:
        """Whether its session exists and takes steps."""
        return self.has_started and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it takes no more steps."""
        return self.host.is_retired or self.host.has_ended or self.is_replaced

    def measure(self) -> None:
        """Measure the memory of the host, with everything that it has started."""
        import psutil  # noqa: PLC0415  of an extra

        with suppress(psutil.Error):
            if self.host.pid is not None:
                owner, total = psutil.Process(self.host.pid), 0
                for one in (owner, *owner.children(recursive=True)):
                    with suppress(psutil.Error):  # it has just ended
                        total += one.memory_info().rss
                self.bytes = total

    def _start(self) -> None:
        try:
            self.host.start()
        except Exception as exc:  # noqa: BLE001  raised in the waiting steps
            self._error, self.host.is_retired = exc, True
        self._done.set()
