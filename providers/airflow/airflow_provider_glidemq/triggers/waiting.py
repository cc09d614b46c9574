"""What all triggers have in common that wait for one thing: deadline, reconnecting, the one event."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_glidemq.patience import patience_for
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared import SharedClient

MAX_REASON: Final = 500
LAST_SECONDS: Final = 5.0
# A scheduler that learns of the end of a task's first process only after it has queued the second one takes
# the task for lost and fails it. So a task should not resume sooner than this after it was deferred.
SECONDS_DEFERRED: Final = 5.0


class WaitingTrigger(BaseTrigger):
    """Fires once. Failures to reach the server are passing ones for minutes; what remains is an event.

    Args:
        glidemq_conn_id: The connection.
        poll_interval: Seconds after which the state is read again even if no event came.
        deadline: When to give up, in seconds since the epoch; None: never.
        not_before: Do not fire earlier, in seconds since the epoch; None: as soon as possible.
    """

    what = "it"

    def __init__(
        self, *, glidemq_conn_id: str, poll_interval: float, deadline: float | None, not_before: float | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.glidemq_conn_id = glidemq_conn_id
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.not_before = not_before

    def _waiting(self) -> dict[str, Any]:
        """The arguments of this class, for ``serialize``."""
        return {
            "glidemq_conn_id": self.glidemq_conn_id,
            "poll_interval": self.poll_interval,
            "deadline": self.deadline,
            "not_before": self.not_before,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event and return."""
        payload = await self._payload()
        await rest_until(self.not_before)
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _prepare(self) -> None:
        """Do what is not to be done later."""

    async def _watch(self, client: SharedClient) -> dict[str, Any]:
        """Wait, and return the payload of the event."""
        raise NotImplementedError

    async def _look_once_more(self) -> None:
        """Show what is there when the deadline has passed."""

    def _told(self, status: str, reason: str) -> dict[str, Any]:
        """The payload of an event: ``timeout`` or ``error``."""
        raise NotImplementedError

    async def _payload(self) -> dict[str, Any]:
        left = None if self.deadline is None else self.deadline - time.time()
        try:
            async with asyncio.timeout(left) as timer:
                return await self._watch_for_ever()
        except TimeoutError:
            if not timer.expired():
                raise
            with suppress(TimeoutError, GlideMQError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self._look_once_more()
            return self._told("timeout", "the deadline has passed")

    async def _watch_for_ever(self) -> dict[str, Any]:
        shared = await module("shared")
        await self._prepare()
        patience = patience_for(self.log, self.what)
        while True:
            try:
                async with shared.shared_client(self.glidemq_conn_id) as client:
                    return await self._watch(client)
            except GlideMQError as exc:
                try:
                    pause = patience.pause(exc)
                except GlideMQError:
                    return self._told("error", f"{type(exc).__name__}: {exc}")
            await asyncio.sleep(pause)


async def rest_until(not_before: float | None) -> None:
    """Wait until a task may resume. The time is by the worker's clock, which may be ahead of this."""
    if not_before is not None:
        await asyncio.sleep(min(max(not_before - time.time(), 0.0), SECONDS_DEFERRED))


async def module(name: str) -> Any:
    """A module that only triggerers need: a task imports this one at each parse of its DAG."""
    return await asyncio.to_thread(importlib.import_module, f"airflow_provider_glidemq.triggers.{name}")
