"""The session hosts of a worker: which one a step gets, and when hosts are started, replaced and ended."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.spark.failures import SessionGone, StepCancelled
from glidemq_orchestrate.spark.hosts.host import Host, PooledHost
from glidemq_orchestrate.spark.hosts.wire import StepOutcome
from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.spark.setup.jvm import sweep
from glidemq_orchestrate.spark.setup.request import SessionRequest
from glidemq_orchestrate.spark.setup.spark_settings import Limits, SparkSettings, patience
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

logger = logging.getLogger("glidemq_orchestrate.spark")

SHARED: Final = SessionRequest()
POLL_SECONDS: Final = 1.0
MEASURE_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 60.0
KILL_SECONDS: Final = 300.0
"""How long a session may fail to reply, as in a long garbage collection; then its steps run again."""
IDLE_SECONDS: Final = 300.0
"""How long a session with other settings stays after its last step."""
REPORT_WAIT_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 60.0
START_TRIES: Final = 3


class Hosts:
    """All session hosts of this process. Any thread may call it. The first host starts on demand.

    Args:
        make: Makes a host that is not started yet.
    """

    def __init__(self, make: Callable[[SparkSettings], Host] = Host) -> None:
        self._make = make
        self._reset()

    def _reset(self) -> None:
        self._limits = Limits()
        self._settings = SparkSettings()
        self._members: list[PooledHost] = []
        self._changed = threading.Condition()
        self._stopping: threading.Event | None = None
        self._was_stopped = False
        self._owner = os.getpid()

    def start(self, scope: str = "", server: Mapping[str, str] | None = None) -> None:
        """Start the shared host, and return when its session exists. Repeatable.

        Args:
            scope: The server of the jobs: the same ids on another server are other jobs.
            server: See ``SparkSettings``.

        Raises:
            JavaMissing, ConfigurationError: It cannot be built.
            SessionGone: It was killed while it started, ``START_TRIES`` times.
        """
        with self._changed:
            self._was_stopped = False
            if self._stopping is None:
                self._limits = Limits.from_environment()
                patience()  # refused now, not by each step
                self._settings = replace(SparkSettings.from_environment(), scope=scope, server=server or {})
                sweep(self._settings.of_users)
                self._stopping = threading.Event()
                threading.Thread(
                    target=self._maintain, args=(self._stopping,), name="spark-hosts", daemon=True
                ).start()
        for left in reversed(range(START_TRIES)):
            member = self._take(SHARED)
            try:
                member.started()
            except SessionGone as exc:
                if not left:
                    raise
                logger.warning("%s; another one is started", exc)
            else:
                return
            finally:
                self._give_back(member)

    def run(self, ctx: Context, title: str, request: SessionRequest, *, fresh: bool = False) -> StepOutcome:
        """Run a step in a host with the session that it requests.

        Args:
            ctx: The context of the step.
            title: The name of the step in messages.
            request: The session.
            fresh: Use a session that no other step has used or will use; after ``FRESH_SECONDS`` of waiting
                for one, the shared session.

        Raises:
            SessionGone: The session ended while the step ran. Its ``is_alone`` is true in a fresh one.
            StepCancelled: The step was cancelled while it waited for a session.
            Exception: What ``run_step`` raises.
        """
        self._ensure_running()
        if self._settings.is_connect:
            if request.conf:
                names = ", ".join(name for name, _ in request.conf)
                raise InvalidCall(
                    f"{title}: {names}: the settings of a Spark Connect server are fixed; a step may set "
                    "only those of Spark SQL"
                )
            request = SHARED  # on the server each step has a separate session
        member = self._take(request, ctx, fresh=fresh)
        try:
            host = member.started(ctx.cancelled.is_set)
            host.steps += 1
            return host.run(ctx, title)
        except SessionGone as exc:
            exc.is_alone = member.is_for_once
            raise
        finally:
            self._give_back(member)

    def publish(self, publications: Sequence[Publication], epoch: int | None) -> list[Publication]:
        """Make versions in the shared host; see ``make_versions``.

        Raises:
            Exception: What the store or the start of a host raises.
        """
        self._ensure_running()
        member = self._take(SHARED)
        try:
            return member.started().publish(publications, epoch)
        finally:
            self._give_back(member)

    def stop(self) -> None:
        """End all hosts; none starts again before ``start``. Repeatable."""
        with self._changed:
            if self._stopping is not None:
                self._stopping.set()
            self._stopping, self._was_stopped = None, True
            members, self._members = self._members, []
            self._changed.notify_all()
        if os.getpid() == self._owner:
            enders = [threading.Thread(target=member.host.stop, daemon=True) for member in members]
            for ender in enders:
                ender.start()
            for ender in enders:
                ender.join()

    def _ensure_running(self) -> None:
        """Start for callers without a worker, but not again after a worker has stopped."""
        if self._was_stopped:
            raise SessionGone("the worker is stopping and has ended its Spark sessions")
        if not self.is_running:
            self.start()

    def after_fork(self) -> None:
        """Leave the hosts to the parent."""
        self._reset()

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and not stopped."""
        return self._stopping is not None

    @property
    def pids(self) -> list[int]:
        """The processes of the hosts that run."""
        with self._changed:
            return [pid for member in self._members if (pid := member.host.pid) and not member.host.has_ended]

    def _take(
        self, request: SessionRequest, ctx: Context | None = None, *, fresh: bool = False
    ) -> PooledHost:
        """A host for a step, to be given back; waits while all are in use."""
        since, has_reported = time.monotonic(), False
        while True:
            if ctx is not None and ctx.cancelled.is_set():
                raise StepCancelled("cancelled while it waited for a Spark session")
            surplus: PooledHost | None = None
            fresh = fresh and time.monotonic() < since + FRESH_SECONDS
            with self._changed:
                if self._stopping is None:
                    raise SessionGone("the worker is stopping and has ended its Spark sessions")
                member = None if fresh else self._fitting(request)
                if member is None:
                    member, surplus = self._new(request, is_for_once=fresh)
                if member is not None:
                    member.users += 1
                else:
                    self._changed.wait(POLL_SECONDS)
            if surplus is not None:
                self._end(surplus)
            if member is not None:
                return member
            if ctx is not None and not has_reported and time.monotonic() > since + REPORT_WAIT_SECONDS:
                has_reported = True
                ctx.log(
                    f"all {self._limits.sessions} Spark sessions of this worker are in use; waiting for one "
                    "(GLIDEMQ_SPARK_SESSIONS)"
                )

    def _fitting(self, request: SessionRequest) -> PooledHost | None:
        """An existing host that fits, preferably one that is ready."""
        fits = [
            member
            for member in self._members
            if member.request == request
            and not (member.is_over or member.is_for_once)
            and not (request != SHARED and self._needs_replacement(member))
        ]
        return min(fits, key=lambda member: not member.is_ready, default=None)

    def _new(
        self, request: SessionRequest, *, is_for_once: bool
    ) -> tuple[PooledHost | None, PooledHost | None]:
        """A new host if one more is allowed, and the idle host that must end first."""
        surplus = None
        if request != SHARED or is_for_once:
            extra = [
                member
                for member in self._members
                if (member.request != SHARED or member.is_for_once) and not member.is_over
            ]
            if len(extra) >= max(1, self._limits.sessions - 1):
                idle = [member for member in extra if not member.users]
                surplus = min(idle, key=lambda member: member.idle_since, default=None)
                if surplus is None:
                    return None, None
                surplus.host.is_retired = True
        member = PooledHost(self._host(request), request, is_for_once=is_for_once or request.is_own)
        self._members.append(member)
        return member, surplus

    def _host(self, request: SessionRequest) -> Host:
        conf = {**self._settings.conf, **dict(request.conf)}
        return self._make(replace(self._settings, conf=conf))

    def _give_back(self, member: PooledHost) -> None:
        with self._changed:
            member.users -= 1
            member.idle_since = time.monotonic()
            if member.is_for_once:
                member.host.is_retired = True
            ends = member.is_over and not member.users
            self._changed.notify_all()
        if ends:
            self._end(member)

    def _maintain(self, stopping: threading.Event) -> None:
        """Replace hosts that have ended or have reached a limit, and end those that are not used."""
        measured = time.monotonic()
        while not stopping.wait(POLL_SECONDS):
            try:
                if time.monotonic() > measured + MEASURE_SECONDS:
                    measured = time.monotonic()
                    self._probe_all()
                    self._measure()
                self._replace_shared(stopping)
                self._end_unused()
            except Exception:
                logger.exception("the session hosts cannot be maintained; trying again")

    def _replace_shared(self, stopping: threading.Event) -> None:
        """Ensure that a shared host takes steps; at a limit it is retired once its successor is ready."""
        with self._changed:
            shared = [one for one in self._members if one.request == SHARED and not one.is_for_once]
            good = [member for member in shared if not (member.is_over or self._needs_replacement(member))]
            if stopping.is_set() or good:
                return
            new = PooledHost(self._host(SHARED), SHARED, is_for_once=False)
            new.users += 1
            if all(member.is_over for member in shared):
                self._members.append(new)  # steps wait for it
        try:
            new.started(stopping.is_set)
        except Exception as exc:  # noqa: BLE001  the next round tries again
            self._give_back(new)
            if stopping.is_set():
                new.host.stop()  # which ends a start too
            else:
                logger.warning("no new Spark session: %s", exc)
                stopping.wait(POLL_SECONDS * 5)
            return
        with self._changed:
            for member in self._members:
                if member is not new and member.request == SHARED and not member.is_for_once:
                    member.is_replaced = True
            is_late = stopping.is_set()
            if not is_late and new not in self._members:
                self._members.append(new)
        self._give_back(new)
        if is_late:
            new.host.stop()

    def _needs_replacement(self, member: PooledHost) -> bool:
        host, limits = member.host, self._limits
        age = time.monotonic() - host.since
        return host.steps >= limits.steps or age >= seconds(limits.age) or member.bytes >= limits.memory

    def _end_unused(self) -> None:
        now = time.monotonic()
        with self._changed:
            unused = [
                member
                for member in self._members
                if not member.users
                and (
                    member.is_over
                    or (member.request != SHARED and self._needs_replacement(member))
                    or (member.request != SHARED and now > member.idle_since + IDLE_SECONDS)
                )
            ]
            for member in unused:
                member.host.is_retired = True
        for member in unused:
            self._end(member)

    def _end(self, member: PooledHost) -> None:
        """End a host that takes no more steps, and remove what is left of it if it was killed."""
        member.host.stop()
        with self._changed:
            if member in self._members:
                self._members.remove(member)
            self._changed.notify_all()
        sweep(member.host.settings.of_users)  # may take a while, so without the lock

    def _probe_all(self) -> None:
        """Retire hosts that do not reply, and kill those that have not replied for long."""
        with self._changed:
            started = [member for member in self._members if member.has_started and not member.host.has_ended]
        for member in started:
            silent = member.host.probe()
            if silent >= SILENT_SECONDS and not member.host.is_retired:
                member.host.is_retired = True
                logger.warning(
                    "a session host has not replied for %.0f s and takes no more steps; it ends after %g s",
                    silent,
                    KILL_SECONDS,
                )
            if silent >= KILL_SECONDS:
                member.host.kill()

    def _measure(self) -> None:
        """Measure the memory of the hosts, if it is limited."""
        if self._limits.memory == math.inf:
            return
        with self._changed:
            members = list(self._members)
        for member in members:
            member.measure()


hosts: Final = Hosts()
os.register_at_fork(after_in_child=hosts.after_fork)
