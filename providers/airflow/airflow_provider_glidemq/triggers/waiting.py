"""The common base of the waiting triggers: deadline, reconnects, single event, lease, reports, callbacks."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_glidemq.callbacks import acall_callbacks, event_of
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, patience_for
from airflow_provider_glidemq.ownership import seconds_of
from airflow_provider_glidemq.parameters import Converted, Seconds, in_seconds
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import GlideMQError, Superseded

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared.client import SharedClient
    from glidemq_orchestrate import AsyncFlow
    from glidemq_orchestrate.flows import FlowStatus

MAX_REASON: Final = 500
LAST_SECONDS: Final = 5.0
# If a scheduler notices the end of a task's first process only after it has queued the second one, it treats
# the task as lost and fails it. So a task should not resume sooner than this after it was deferred.
SECONDS_DEFERRED: Final = 5.0
BACKSTOP: Final = timedelta(seconds=60)  # how much later than its trigger Airflow ends a wait
_ending: Final[set[asyncio.Task[None]]] = set()


class Serialized:
    """A trigger that is a dataclass: its fields are its arguments."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments, from which a triggerer recreates the trigger."""
        kind: Any = type(self)
        arguments = {one.name: getattr(self, one.name) for one in fields(kind) if one.init}
        return f"{kind.__module__}.{kind.__qualname__}", arguments


@dataclass(kw_only=True, eq=False, repr=False)
class WaitingTrigger(Serialized, BaseTrigger):
    """Fires once. Failures to reach the server count as temporary for some minutes; then it fires ``error``.

    Args:
        glidemq_conn_id: The connection.
        poll_interval: How often the state is read if no event arrives.
        deadline: When to give up, in seconds since the epoch; None: never.
        not_before: Do not fire earlier, in seconds since the epoch; None: as soon as possible.
    """

    subject: ClassVar[str] = ""  # for logs, with fields of the trigger

    glidemq_conn_id: str = DEFAULT_CONN_ID
    poll_interval: Seconds = Converted(30.0, in_seconds)
    deadline: float | None = None
    not_before: float | None = None

    def __post_init__(self) -> None:
        """Initialize the base class."""
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def what(self) -> str:
        """The subject of the wait, for logs."""
        return self.subject.format_map(vars(self))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event and return."""
        payload = await self._payload()
        await rest_until(self.not_before)
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _prepare(self) -> None:
        """Do at the start the work that would take too long later."""

    async def _watch(self, client: SharedClient) -> dict[str, Any]:
        """Wait, and return the payload of the event."""
        raise NotImplementedError

    async def _poll_once_more(self) -> None:
        """Show the latest reports when the deadline has passed."""

    def _about(self) -> dict[str, Any]:
        """The values of every event that say which wait is over."""
        return {}

    def _event(self, status: str, reason: str) -> dict[str, Any]:
        """The payload of the event; ``status`` may also be ``timeout`` or ``error``."""
        return {"status": status, "reason": reason[:MAX_REASON], **self._about()}

    async def _payload(self) -> dict[str, Any]:
        left = None if self.deadline is None else self.deadline - time.time()
        try:
            async with asyncio.timeout(left) as timer:
                return await self._watch_patiently()
        except TimeoutError:
            if not timer.expired():
                raise
            with suppress(TimeoutError, GlideMQError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self._poll_once_more()
            return self._event("timeout", "the deadline has passed")

    async def _watch_patiently(self) -> dict[str, Any]:
        shared = await module("shared.client")
        await self._prepare()
        patience = patience_for(self.log, self.what, self.glidemq_conn_id)
        while True:
            try:
                async with shared.shared_client(self.glidemq_conn_id) as client:
                    return await self._watch(client)
            except GlideMQError as exc:
                try:
                    pause = patience.pause(exc)
                except GlideMQError:
                    return self._event("error", f"{type(exc).__name__}: {exc}")
            await asyncio.sleep(pause)


async def rest_until(not_before: float | None) -> None:
    """Wait until a task may resume. The time is by the worker's clock, which may be ahead of this clock."""
    if not_before is not None:
        await asyncio.sleep(min(max(not_before - time.time(), 0.0), SECONDS_DEFERRED))


async def module(name: str) -> Any:
    """Import a module that only triggerers need: DAG files import this module at each parse."""
    return await asyncio.to_thread(importlib.import_module, f"airflow_provider_glidemq.triggers.{name}")


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Complete the work, even though the triggerer cancels ``on_kill`` too, a second later."""
    ending = asyncio.create_task(work)
    _ending.add(ending)
    ending.add_done_callback(_ending.discard)
    await asyncio.shield(ending)


class OwnerRenewal:
    """Renews a lease three times per length, and at once for a new generation.

    Args:
        lease: The length of the lease in seconds; None: the longest time.
    """

    def __init__(self, lease: float | None) -> None:
        self.pause = seconds_of(lease) / runs.RENEWALS
        self._last: tuple[int, float] | None = None

    async def renew_if_due(self, client: SharedClient, flow: AsyncFlow) -> None:
        """Renew the lease of the owner with which the flow was found."""
        now, last = asyncio.get_running_loop().time(), self._last
        if last is None or last[0] != flow.generation or now - last[1] >= self.pause:
            with suppress(Superseded):  # the next poll of the flow finds it
                await client.ask(flow.renew())
            self._last = (flow.generation, now)


class ProgressCallbacks:
    """Calls callbacks concurrently: a slow callback misses some progress, but delays nothing."""

    def __init__(self, paths: Sequence[str], log: Any) -> None:
        self._paths, self._log = paths, log
        self._task: asyncio.Task[None] | None = None

    def progress(self, task: Any, status: FlowStatus) -> None:
        """Call the callbacks with the progress of the flow."""
        if self._paths and task is not None and (self._task is None or self._task.done()):
            event = event_of(task, status)
            self._task = asyncio.create_task(acall_callbacks(self._paths, "progress", event, self._log))

    async def end(self) -> None:
        """Stop the running callback."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
