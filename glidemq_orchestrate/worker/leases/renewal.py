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
from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.keys import QueueKeys

PRINT_AFTER_SECONDS: Final = 10.0
PRINT_EVERY_SECONDS: Final = 60.0
CALL_SECONDS: Final = 2.0


class _RenewalClient(SyncFacade):
    """The connection, opened on first use."""

    def renew(self, queue: str, group: str, worker: str) -> int:
        return self._run(renew_all(QueueKeys(self._prefix, queue), group, worker, self._clock))


class Renewal:
    """Renews all leases of a worker.

    Args:
        worker: Its id.
        queues: The queues that it serves.
        group: The consumer group of the workers, or a subscription.
        connection: The fields of its ``ConnectionSettings``.
    """

    def __init__(
        self, *, worker: str, queues: Sequence[str], group: str, connection: Mapping[str, Any]
    ) -> None:
        settings = ConnectionSettings(**connection)
        calls = min(seconds(settings.socket_timeout), CALL_SECONDS)
        connecting = min(seconds(settings.connect_timeout), calls)
        self._settings = replace(settings, socket_timeout=calls, connect_timeout=connecting, confirm=None)
        self._worker, self._queues, self._group = worker, queues, group
        self._client: _RenewalClient | None = None
        self._printed = 0.0

    def renew(self, silent: float) -> None:
        """Renew all leases; a failure is printed, and the next call tries again."""
        self._client = self._client or _RenewalClient(self._settings)
        for queue in self._queues:
            try:
                count = self._client.renew(queue, self._group, self._worker)
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
        """Close the connection: the worker renews its leases itself again."""
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
