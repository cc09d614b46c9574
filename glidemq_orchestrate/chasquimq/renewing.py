"""Renews what a worker of ChasquiMQ's jobs runs: from its loop, and from a process while that is blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from glidemq_orchestrate.chasquimq.consuming import Consumer, claim, renew_all
from glidemq_orchestrate.chasquimq.envelope import DEFAULT_MAX_ATTEMPTS
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Op, Run, ask
from glidemq_orchestrate.worker.renewing import Renewer, Renews

MAX_BEAT_SECONDS: Final = 5.0
CLIENT: Final = f"{__name__}:renewal_client"


class _RenewalClient(SyncFacade):
    """The connection of the renewing process."""

    def _checks(self) -> Op[None]:
        yield from ()  # no libraries

    def renew(self, queue: str, group: str, worker: str) -> int:
        """Renew all that a worker holds; returns how many."""
        return self._run(renew_all(Consumer(ChasquiKeys(queue), group, worker, DEFAULT_MAX_ATTEMPTS)))


def renewal_client(settings: ConnectionSettings) -> Renews:
    """The connection of the process for a worker of ChasquiMQ's jobs."""
    return _RenewalClient(settings)


class Renewals:
    """Renews the entries of one worker.

    Args:
        run: Drives operations.
        consumer: The worker.
        settings: Its connection.
        lease_seconds: Others take an entry over after this long without a renewal.
        held: The entries that it runs.
        lose: Called with each entry that it no longer holds.

    Attributes:
        seconds: The time between two renewals.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of its worker that it needs
        self,
        run: Run,
        consumer: Consumer,
        settings: ConnectionSettings,
        lease_seconds: float,
        held: Mapping[str, Any],
        lose: Callable[[str], None],
    ) -> None:
        self._run, self._consumer, self._held, self._lose = run, consumer, held, lose
        queue = consumer.keys.queue
        self._renewer = Renewer(
            consumer.name, [queue], settings, lease_seconds, group=consumer.group, client=CLIENT
        )
        self.seconds = min(lease_seconds / 3, MAX_BEAT_SECONDS)

    async def start(self) -> None:
        """Start the process."""
        await asyncio.to_thread(self._renewer.start)

    async def renew(self) -> None:
        """Renew what runs, and tell the process that this was done."""
        if held := list(self._held):
            for entry_id in await self._run(ask(claim(self._consumer, held))):
                self._lose(entry_id)
        if not self._renewer.renewed():
            await self.start()

    async def close(self) -> None:
        """End the process."""
        await asyncio.to_thread(self._renewer.close)
