"""The session hosts of a worker: which one a step gets, and when one is started, replaced or ended."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from glidemq_orchestrate.spark.ended import SessionGone
from glidemq_orchestrate.spark.hosts.child import Host
from glidemq_orchestrate.spark.hosts.limits import Limits
from glidemq_orchestrate.spark.hosts.pooled_host import PooledHost
from glidemq_orchestrate.spark.hosts.session_request import SessionRequest
from glidemq_orchestrate.spark.hosts.wire import Outcome
from glidemq_orchestrate.spark.published.version import Publication
from glidemq_orchestrate.spark.scratch import sweep
from glidemq_orchestrate.spark.settings import SparkSettings, patience
from glidemq_orchestrate.spark.step import StepCancelled
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

logger = logging.getLogger("glidemq_orchestrate.spark")

SHARED: Final = SessionRequest()
LOOK_SECONDS: Final = 1.0
WEIGH_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 60.0
KILL_SECONDS: Final = 300.0
"""So long a session, in the middle of collecting garbage say, may not reply; its steps then run again."""
IDLE_SECONDS: Final = 300.0
"""So long after its last step a session with settings of its own is kept."""
TELL_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 60.0
START_TRIES: Final = 3


class Hosts:
    """All session hosts of this process. Any thread may call it; none is there before the first is asked for.

    Args:
        make: Makes a host that is still to be started.
    """

    def __init__(self, make: Callable[[SparkSettings], Host] = Host) -> None:
        self._make = make
        self._reset()

    def _reset(self) -> None:
        self._limits = Limits()
        self._settings = SparkSettings()
        self._places: list[PooledHost] = []
        self._changed = threading.Condition()
        self._stopping: threading.Event | None = None
        self._was_stopped = False
        self._owner = os.getpid()

    def start(self, scope: str = "", server: Mapping[str, str] | None = None) -> None:
        """Start the shared host, and return when it has its session. Repeatable.

        Args:
            scope: Of the ids of jobs: those of another server are others.
            server: See ``SparkSettings``.

        Raises:
            JavaMissing, ConfigurationError: It cannot be built.
            SessionGone: It was killed while it was built, ``START_TRIES`` times.
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
                    target=self._look_after, args=(self._stopping,), name="spark-hosts", daemon=True
                ).start()
        for left in reversed(range(START_TRIES)):
            place = self._take(SHARED, lambda: False, None)
            try:
                place.started()
            except SessionGone as exc:
                if not left:
                    raise
                logger.warning("%s; another one is started", exc)
            else:
                return
            finally:
                self._give_back(place)

    def run(self, ctx: Context, title: str, wanted: SessionRequest, *, fresh: bool = False) -> Outcome:
        """Run a step in a host that has what it wants.

        Args:
            ctx: Of the step.
            title: How messages call it.
            wanted: The session.
            fresh: One that no other step has used or will use; the shared one if it had to wait for that for
                longer than ``FRESH_SECONDS``.

        Raises:
            SessionGone: The session ended while the step ran. Its ``is_alone`` is true in a fresh one.
            StepCancelled: The step was cancelled while it waited for a session.
            Exception: Whatever ``run_step`` raises.
        """
        self._be_running()
        if self._settings.is_connect:
            if wanted.conf:
                names = ", ".join(name for name, _ in wanted.conf)
                raise InvalidCall(
                    f"{title}: {names}: a Spark Connect server has settings of its own; a step may choose "
                    "those of Spark SQL only"
                )
            wanted = SHARED  # on the server each step has a session of its own
        place = self._take(wanted, ctx.cancelled.is_set, ctx, fresh=fresh)
        try:
            host = place.started(ctx.cancelled.is_set)
            host.steps += 1
            return host.run(ctx, title)
        except SessionGone as exc:
            exc.is_alone = place.is_for_once
            raise
        finally:
            self._give_back(place)

    def publish(self, places: Sequence[Publication], epoch: int | None) -> list[Publication]:
        """Make versions in the shared host; see ``make_versions``.

        Raises:
            Exception: Whatever the store raises, or the start of a host.
        """
        self._be_running()
        place = self._take(SHARED, lambda: False, None)
        try:
            return place.started().publish(places, epoch)
        finally:
            self._give_back(place)

    def stop(self) -> None:
        """End all hosts; none is started any more, until ``start``. Repeatable."""
        with self._changed:
            if self._stopping is not None:
                self._stopping.set()
            self._stopping, self._was_stopped = None, True
            places, self._places = self._places, []
            self._changed.notify_all()
        if os.getpid() == self._owner:
            enders = [threading.Thread(target=place.host.stop, daemon=True) for place in places]
            for ender in enders:
                ender.start()
            for ender in enders:
                ender.join()

    def _be_running(self) -> None:
        """Start for whoever needs no worker; not again after the worker has stopped."""
        if self._was_stopped:
            raise SessionGone("the worker is stopping, and has ended its Spark sessions")
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
            return [pid for place in self._places if (pid := place.host.pid) and not place.host.has_ended]

    def _take(
        self,
        wanted: SessionRequest,
        is_cancelled: Callable[[], bool],
        ctx: Context | None,
        *,
        fresh: bool = False,
    ) -> PooledHost:
        """A place for a step, to be given back; waits for one where all are in use."""
        since, has_told = time.monotonic(), False
        while True:
            if is_cancelled():
                raise StepCancelled("cancelled while it waited for a Spark session")
            surplus: PooledHost | None = None
            fresh = fresh and time.monotonic() < since + FRESH_SECONDS
            with self._changed:
                if self._stopping is None:
                    raise SessionGone("the worker is stopping, and has ended its Spark sessions")
                place = None if fresh else self._fitting(wanted)
                if place is None:
                    place, surplus = self._new(wanted, is_for_once=fresh)
                if place is not None:
                    place.users += 1
                else:
                    self._changed.wait(LOOK_SECONDS)
            if surplus is not None:
                self._end(surplus)
            if place is not None:
                return place
            if ctx is not None and not has_told and time.monotonic() > since + TELL_SECONDS:
                has_told = True
                ctx.log(
                    f"all {self._limits.sessions} Spark sessions of this worker are in use; waiting for one "
                    "(GLIDEMQ_SPARK_SESSIONS)"
                )

    def _fitting(self, wanted: SessionRequest) -> PooledHost | None:
        """A place that is there, one that is ready before one that is not."""
        fits = [
            place
            for place in self._places
            if place.wanted == wanted
            and not (place.is_over or place.is_for_once)
            and not (wanted != SHARED and self._is_worn(place))
        ]
        return min(fits, key=lambda place: not place.is_ready, default=None)

    def _new(
        self, wanted: SessionRequest, *, is_for_once: bool
    ) -> tuple[PooledHost | None, PooledHost | None]:
        """A new place, if there may be one more; and one that has to end for it."""
        surplus = None
        if wanted != SHARED or is_for_once:
            extra = [
                place
                for place in self._places
                if (place.wanted != SHARED or place.is_for_once) and not place.is_over
            ]
            if len(extra) >= max(1, self._limits.sessions - 1):
                idle = [place for place in extra if not place.users]
                surplus = min(idle, key=lambda place: place.idle_since, default=None)
                if surplus is None:
                    return None, None
                surplus.host.is_retired = True
        place = PooledHost(self._host(wanted), wanted, is_for_once=is_for_once or wanted.is_own)
        self._places.append(place)
        return place, surplus

    def _host(self, wanted: SessionRequest) -> Host:
        conf = {**self._settings.conf, **dict(wanted.conf)}
        return self._make(replace(self._settings, conf=conf))

    def _give_back(self, place: PooledHost) -> None:
        with self._changed:
            place.users -= 1
            place.idle_since = time.monotonic()
            if place.is_for_once:
                place.host.is_retired = True
            ends = place.is_over and not place.users
            self._changed.notify_all()
        if ends:
            self._end(place)

    def _look_after(self, stopping: threading.Event) -> None:
        """Replace what has ended or is worn out, and end what nobody uses."""
        weighed = time.monotonic()
        while not stopping.wait(LOOK_SECONDS):
            try:
                if time.monotonic() > weighed + WEIGH_SECONDS:
                    weighed = time.monotonic()
                    self._look_at_each()
                    self._weigh()
                self._replace_shared(stopping)
                self._end_unused()
            except Exception:
                logger.exception("session hosts are not looked after")

    def _replace_shared(self, stopping: threading.Event) -> None:
        """Have a shared host that can take steps; the next is there before a worn one takes no more."""
        with self._changed:
            shared = [place for place in self._places if place.wanted == SHARED and not place.is_for_once]
            good = [place for place in shared if not (place.is_over or self._is_worn(place))]
            if stopping.is_set() or good:
                return
            new = PooledHost(self._host(SHARED), SHARED, is_for_once=False)
            new.users += 1
            if all(place.is_over for place in shared):
                self._places.append(new)  # steps wait for it
        try:
            new.started(stopping.is_set)
        except Exception as exc:  # noqa: BLE001  whatever it is, the next look tries again
            self._give_back(new)
            if stopping.is_set():
                new.host.stop()  # which ends a start, too
            else:
                logger.warning("no new Spark session: %s", exc)
                stopping.wait(LOOK_SECONDS * 5)
            return
        with self._changed:
            for place in self._places:
                if place is not new and place.wanted == SHARED and not place.is_for_once:
                    place.is_replaced = True
            is_late = stopping.is_set()
            if not is_late and new not in self._places:
                self._places.append(new)
        self._give_back(new)
        if is_late:
            new.host.stop()

    def _is_worn(self, place: PooledHost) -> bool:
        age = time.monotonic() - place.host.since
        limits = self._limits
        return place.host.steps >= limits.steps or age >= limits.seconds or place.bytes >= limits.memory

    def _end_unused(self) -> None:
        now = time.monotonic()
        with self._changed:
            unused = [
                place
                for place in self._places
                if not place.users
                and (
                    place.is_over
                    or (place.wanted != SHARED and self._is_worn(place))
                    or (place.wanted != SHARED and now > place.idle_since + IDLE_SECONDS)
                )
            ]
            for place in unused:
                place.host.is_retired = True
        for place in unused:
            self._end(place)

    def _end(self, place: PooledHost) -> None:
        """End a host that takes no more steps, forget it, and remove what is left of it if it was killed."""
        place.host.stop()
        with self._changed:
            if place in self._places:
                self._places.remove(place)
            self._changed.notify_all()
        sweep(place.host.settings.of_users)  # may take a while: others need not wait for it

    def _look_at_each(self) -> None:
        """Give no step to one that does not reply, and end it when it has not for long."""
        with self._changed:
            started = [place for place in self._places if place.has_started and not place.host.has_ended]
        for place in started:
            silent = place.host.look()
            if silent >= SILENT_SECONDS and not place.host.is_retired:
                place.host.is_retired = True
                logger.warning(
                    "a session host has not replied for %.0f s and takes no more steps; it ends after %g s",
                    silent,
                    KILL_SECONDS,
                )
            if silent >= KILL_SECONDS:
                place.host.kill()

    def _weigh(self) -> None:
        """Read how much memory the hosts have, with all that they have started."""
        if self._limits.memory == math.inf:
            return
        with self._changed:
            places = list(self._places)
        for place in places:
            place.weigh()


hosts: Final = Hosts()
os.register_at_fork(after_in_child=hosts.after_fork)
