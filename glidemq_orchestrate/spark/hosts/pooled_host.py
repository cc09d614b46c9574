"""A host in the pool: what it is for, who uses it, and whether it takes steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from glidemq_orchestrate.spark.hosts.child import Host
from glidemq_orchestrate.spark.hosts.session_request import SessionRequest
from glidemq_orchestrate.spark.step import StepCancelled

LOOK_SECONDS: Final = 0.25


class PooledHost:
    """A host in the pool, and who uses it. The lock of the pool guards it, but for the start."""

    def __init__(self, host: Host, wanted: SessionRequest, *, is_for_once: bool) -> None:
        self.host, self.wanted, self.is_for_once = host, wanted, is_for_once
        self.users, self.idle_since, self.bytes = 0, time.monotonic(), 0
        self.is_replaced = False
        self._starting = threading.Lock()
        self._is_begun = False
        self._done = threading.Event()
        self._error: Exception | None = None

    def started(self, is_cancelled: Callable[[], bool] = lambda: False) -> Host:
        """The host, when its session is there; the first who asks starts it.

        Raises:
            StepCancelled: The step was cancelled while it waited; the start goes on.
            Exception: It cannot be started.
        """
        with self._starting:
            if not self._is_begun:
                self._is_begun = True
                threading.Thread(target=self._start, name="spark-host-start", daemon=True).start()
        while not self._done.wait(LOOK_SECONDS):
            if is_cancelled():
                raise StepCancelled("cancelled while it waited for a Spark session")
        if self._error is not None:
            raise self._error
        return self.host

    @property
    def has_started(self) -> bool:
        """Whether its session has been there."""
        return self._done.is_set() and self._error is None

    @property
    def is_ready(self) -> bool:
        """Whether its session is there."""
        return self.has_started and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it takes no more steps."""
        return self.host.is_retired or self.host.has_ended or self.is_replaced

    def weigh(self) -> None:
        """Read how much memory the host has, with all that it has started."""
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
        except Exception as exc:  # noqa: BLE001  it is raised to whoever waits
            self._error, self.host.is_retired = exc, True
        self._done.set()
