"""Renews the leases of a worker: by heartbeats, or by a separate process while the worker cannot.

The process reads a pipe that only the worker holds open, so it never outlives the worker. If it is killed,
the next heartbeat starts another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import math
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from glidemq_orchestrate.attempts.exchange import TAKEN_BACK, heartbeat, renew_all
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.foundation.functions import named_function
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.settings import ENV_URL, ConnectionSettings
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys
from glidemq_orchestrate.worker.job_slots import JobSlots

logger = logging.getLogger("glidemq_orchestrate.worker")

_PROGRAM: Final = Path(__file__).with_name("renewing_process.py")
_SOURCES: Final = str(Path(__file__).parents[2])
MAX_PATIENCE: Final = 10.0
SHARE: Final = 0.45
"""The share of a lease for which a worker may be silent before the process renews its leases."""
LEASES: Final = 10
MIN_LIMIT: Final = 60.0
HURRIED: Final = 3.0
READY_SECONDS: Final = 5.0
CLIENT: Final = f"{__name__}:renewal_client"
_ALL: Final[weakref.WeakSet[Renewer]] = weakref.WeakSet()


class Renewer:
    """The renewing process of one worker. Thread-safe. It cannot be restarted after ``close``.

    Args:
        worker: The id of the worker.
        queues: The queues that it serves; after one was added, ``restart`` includes it.
        settings: Its connection.
        lock_seconds: How long a lease lasts.
        group: The consumer group of the workers, or a subscription.
        client: The function, by import path, that makes the connection of the process; see ``Renews``.
    """

    def __init__(  # noqa: PLR0913  all but the last have no sensible default
        self,
        worker: str,
        queues: Collection[str],
        settings: ConnectionSettings,
        lock_seconds: float,
        *,
        group: str = GROUP,
        client: str = CLIENT,
    ) -> None:
        self._client = client
        self._worker, self._queues, self._settings, self._group = worker, queues, settings, group
        self._patience = patience = min(lock_seconds * SHARE, MAX_PATIENCE)
        self._is_hurried = patience < HURRIED
        limit = max(LEASES * lock_seconds, MIN_LIMIT)
        self._arguments = (f"{patience:.3f}", f"{limit:.3f}", str(int(self._is_hurried)))
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe, self._is_warned, self._owner = -1, False, os.getpid()
        self._lock, self._is_closed = threading.Lock(), False
        _ALL.add(self)

    @property
    def pid(self) -> int | None:
        """The process id; None while none runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Start the process, unless it runs. A failure is logged once, and the worker runs without it."""
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
        """Report that the worker has renewed its leases itself; returns False if the process must be started.

        ``shortest``: the shortest lease that the worker holds, in seconds: jobs may have their own leases.
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

    def restart(self) -> None:
        """Start the process again, for the queues that the worker serves now."""
        with self._lock:
            self._end()
        self.start()

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
        """Close the pipe in a forked child: its copy would keep the pipe open after the worker's end."""
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
        read_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid()), *self._arguments],
                cwd="/",
                env={name: value for name, value in os.environ.items() if name != ENV_URL},
                stdin=read_end,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            os.close(read_end)
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
        about = {
            "worker": self._worker,
            "queues": list(self._queues),
            "group": self._group,
            "client": self._client,
        }
        return {**about, "path": path, "connection": connection}


def _detach_all() -> None:
    for renewer in list(_ALL):
        renewer.detach()


os.register_at_fork(after_in_child=_detach_all)


MAX_BEAT_SECONDS: Final = 1.0


class Heartbeats:
    """Renews leases queue by queue, and keeps the renewing process informed.

    Args:
        run: Drives operations.
        queues: The names of the queues that the worker serves; it may add some.
        slots: The jobs that it holds.
        renewer: Its renewing process.
        lock_seconds: How long a lease lasts.
        clock: The current time.

    Attributes:
        seconds: The time between two heartbeats of a queue.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of its worker that it needs
        self,
        run: Run,
        queues: Collection[str],
        slots: JobSlots,
        renewer: Renewer,
        lock_seconds: float,
        clock: Clock,
    ) -> None:
        self._run, self._queues, self._slots, self._renewer = run, queues, slots, renewer
        self._clock, self.seconds = clock, min(lock_seconds / 3, MAX_BEAT_SECONDS)
        self._reported_lease = math.inf  # the shortest, as last sent to the renewing process
        self._renewed: dict[str, float] = {}
        self._woken: dict[str, float] = {}

    async def beat(
        self,
        keys: QueueKeys,
        ended: list[Attempt],
        cancel: Callable[[Attempt, bool], None],
        give_back: Callable[[Attempt], None],
    ) -> float | None:
        """Renew the leases of a queue; returns the seconds until the next heartbeat, if they are fewer.

        Args:
            keys: The queue.
            ended: Attempts whose outcome may not have reached the server. Without a lease they would run
                again, although only the server was unreachable.
            cancel: Called with each attempt that must stop; True if it was revoked, False if its lease is
                lost.
            give_back: Called with each attempt whose job a user takes back soon.
        """
        held = [attempt for attempt in self._slots.held.values() if attempt.queue == keys.queue]
        began = time.monotonic()
        if self.is_late(keys.queue):
            self._woken[keys.queue] = began
        if leased := [*held, *ended]:
            renewals = await self._run(heartbeat(keys, leased, self._clock.now_ms()))
            for attempt, beat in zip(held, renewals, strict=False):
                if beat < 1:
                    cancel(attempt, beat == 0)
                elif beat == TAKEN_BACK:
                    give_back(attempt)
        self._renewed[keys.queue] = began
        await self._inform_renewer(began)
        shortest = self._shortest_lease()
        return None if math.isinf(shortest) else shortest / 3

    def is_late(self, queue: str) -> bool:
        """Whether the leases of a queue were not renewed for two intervals."""
        now = time.monotonic()
        return now - self._renewed.get(queue, now) > 2 * self.seconds

    async def catch_up(self, queue: str) -> None:
        """Wait for a heartbeat after this process was stopped; otherwise its own jobs would count as lost."""
        now, late = time.monotonic(), 2 * self.seconds
        if self.is_late(queue) or now - self._woken.get(queue, -late) < late:
            await asyncio.sleep(self.seconds)

    def note_lease(self, seconds: float) -> None:
        """Inform the renewing process of a shorter lease immediately: the next handler may block the loop."""
        if seconds < self._reported_lease:
            self._reported_lease = seconds
            self._renewer.renewed(seconds)

    def _shortest_lease(self) -> float:
        """The shortest lease in seconds of a held job that has its own; infinite for none."""
        own = (attempt.options.lease for attempt in self._slots.held.values())
        return min((lease.total_seconds() for lease in own if lease is not None), default=math.inf)

    async def _inform_renewer(self, now: float) -> None:
        """Postpone the renewal by the renewing process, if the leases of every queue were renewed."""
        if now - min(self._renewed.get(name, 0.0) for name in self._queues) > 2 * self.seconds:
            return
        self._reported_lease = self._shortest_lease()
        if not self._renewer.renewed(self._reported_lease):
            await asyncio.to_thread(self._renewer.start)


PRINT_AFTER_SECONDS: Final = 10.0
PRINT_EVERY_SECONDS: Final = 60.0
CALL_SECONDS: Final = 2.0


class Renews(Protocol):
    """What the process needs of a connection."""

    def renew(self, queue: str, group: str, worker: str) -> int:
        """Renew all leases of a worker in a queue; returns how many."""

    def close(self) -> None:
        """Close it."""


class _RenewalClient(SyncFacade):
    """The connection, opened on first use."""

    _is_patient = False

    def renew(self, queue: str, group: str, worker: str) -> int:
        """Renew all leases of a worker in a queue; returns how many."""
        return self._run(renew_all(QueueKeys(self._prefix, queue), group, worker, self._clock))


def renewal_client(settings: ConnectionSettings) -> Renews:
    """The connection of the process for a worker of ours."""
    return _RenewalClient(settings)


class LeaseRenewal:
    """Renews all leases of a worker.

    Args:
        worker: Its id.
        queues: The queues that it serves.
        group: The consumer group of the workers, or a subscription.
        connection: The fields of its ``ConnectionSettings``.
        client: See ``Renewer``.
    """

    def __init__(
        self, *, worker: str, queues: Sequence[str], group: str, connection: Mapping[str, Any], client: str
    ) -> None:
        self._make = named_function(client, "the client that renews leases").function
        settings = ConnectionSettings(**connection)
        calls = min(seconds(settings.socket_timeout), CALL_SECONDS)
        connecting = min(seconds(settings.connect_timeout), calls)
        self._settings = replace(settings, socket_timeout=calls, connect_timeout=connecting, confirm=None)
        self._worker, self._queues, self._group = worker, queues, group
        self._client: Renews | None = None
        self._printed = 0.0

    def renew(self, silent: float) -> None:
        """Renew all leases; a failure is printed, and the next call tries again."""
        client: Renews = self._client or self._make(self._settings)
        self._client = client
        for queue in self._queues:
            try:
                count = client.renew(queue, self._group, self._worker)
            except GlideMQError as exc:
                self._print(f"its leases in queue {queue} cannot be renewed: {exc}", silent)
            else:
                if count and silent:
                    self._print(f"{count} of its jobs in queue {queue} keep their leases", silent)

    def give_up(self, silent: float) -> None:
        """Print that the leases are no longer renewed, so that other workers run the jobs."""
        self._printed = 0.0
        fix = "Fix: end this process; use process=True for what blocks it"
        self._print(f"its leases are no longer renewed, and other workers run its jobs. {fix}", silent)

    def rest(self, gave_up: bool) -> None:  # noqa: FBT001  one caller
        """Close the connection: the worker renews its leases again."""
        if gave_up:
            self._printed = 0.0
            self._print("it continues; results of jobs that other workers have taken over are refused", 0.0)
        if self._client is not None:
            self._client.close()
            self._client = None

    def _print(self, what: str, silent: float) -> None:
        """Write to the worker's standard error, at intervals: its own log is blocked."""
        now = time.monotonic()
        if (silent and silent < PRINT_AFTER_SECONDS) or (
            self._printed and now - self._printed < PRINT_EVERY_SECONDS
        ):
            return
        self._printed = now
        since = f" has not renewed its leases for {silent:.0f} s" if silent else ""
        print(f"glidemq: worker {self._worker}{since}: {what}", file=sys.stderr, flush=True)  # noqa: T201
