"""Renews the leases of another process, in the process that ``Renewer`` starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from glidemq_orchestrate.attempts.leases import renew_all
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.keys import QueueKeys

SAY_AFTER_SECONDS: Final = 10.0
SAY_EVERY_SECONDS: Final = 60.0
CALL_SECONDS: Final = 2.0


class _Client(SyncFacade):
    """The connection, opened when it is needed."""

    def renew(self, queue: str, group: str, worker: str) -> int:
        return self._run(renew_all(QueueKeys(self._prefix, queue), group, worker, self._clock))


class Renewal:
    """Renews all leases of a worker.

    Args:
        worker: Its id.
        queues: Those that it serves.
        group: The consumer group of the workers, or a subscription.
        connection: The fields of its ``ConnectionSettings``.
    """

    def __init__(
        self, *, worker: str, queues: Sequence[str], group: str, connection: Mapping[str, Any]
    ) -> None:
        settings = ConnectionSettings(**connection)
        calls = min(settings.socket_timeout, CALL_SECONDS)
        self._settings = replace(
            settings, socket_timeout=calls, connect_timeout=min(settings.connect_timeout, calls), confirm=None
        )
        self._worker, self._queues, self._group = worker, queues, group
        self._client: _Client | None = None
        self._said = 0.0

    def renew(self, silent: float) -> None:
        """Renew all of them; a failure is said, and the next call tries again."""
        self._client = self._client or _Client(self._settings)
        for queue in self._queues:
            try:
                count = self._client.renew(queue, self._group, self._worker)
            except GlideMQError as exc:
                self._say(f"its leases in queue {queue} cannot be renewed: {exc}", silent)
            else:
                if count and silent:
                    self._say(f"{count} of its jobs in queue {queue} keep their leases", silent)

    def give_up(self, silent: float) -> None:
        """Say that the leases are left to end, so that others run the jobs."""
        self._said = 0.0
        fix = "Fix: end this process; use process=True for what blocks it"
        self._say(f"others run its jobs now. {fix}", silent)

    def rest(self, gave_up: bool) -> None:  # noqa: FBT001  one caller
        """The worker renews its leases itself again."""
        if gave_up:
            self._said = 0.0
            self._say("it goes on; what it still runs is refused where others have run it", 0.0)
        if self._client is not None:
            self._client.close()
            self._client = None

    def _say(self, what: str, silent: float) -> None:
        """Write to the worker's standard error, now and then: its own log is blocked."""
        now = time.monotonic()
        if (silent and silent < SAY_AFTER_SECONDS) or (self._said and now - self._said < SAY_EVERY_SECONDS):
            return
        self._said = now
        since = f" has not renewed its leases for {silent:.0f} s" if silent else ""
        print(f"glidemq: worker {self._worker}{since}: {what}", file=sys.stderr, flush=True)  # noqa: T201
