"""Changes of flows as they happen: one reader a queue and one view a flow, however many look."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from glidemq_orchestrate.clients.client import AsyncClient
from glidemq_orchestrate.console.snapshots import FlowView, FlowViews
from glidemq_orchestrate.errors import FlowExpired, FlowNotFound, GlideMQError
from glidemq_orchestrate.events import Event
from glidemq_orchestrate.flows.elements import summary_of
from glidemq_orchestrate.flows.graph import failed_letter
from glidemq_orchestrate.queues.open_arrays import COUNTS

EVERY_SECONDS: Final = 0.5
READ_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0
"""A server that does not answer for so long is away."""
PULSE_SECONDS: Final = 15.0
"""A silent stream says so often that it is there: many proxies cut connections after a minute or less."""
MANY: Final = 20_000
MANY_AGAIN_SECONDS: Final = 15.0
"""How often the states of all nodes are read, as starts of jobs are no events; of a large flow less often."""


class QueueEvents:
    """Reads the events of a queue while somebody listens.

    Args:
        client: Reads them.
        queue: The queue.
    """

    def __init__(self, client: AsyncClient, queue: str) -> None:
        self._reader = client.events(queue)
        self.listeners: set[FlowLive] = set()
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while True:
            try:
                await self._reader.start()
                for event in await self._reader.read(READ_SECONDS):
                    for listener in self.listeners:
                        listener.note(event)
            except GlideMQError:
                for listener in self.listeners:
                    listener.is_stale = True
                await asyncio.sleep(READ_SECONDS)

    def stop(self) -> None:
        """Read no more."""
        self._task.cancel()


class FlowLive:
    """Tells everybody who looks at a flow what has changed.

    Args:
        view: The flow.
    """

    def __init__(self, view: FlowView) -> None:
        self.view, self.is_stale, self.is_over = view, False, False
        self.listeners: set[asyncio.Queue[dict[str, Any]]] = set()
        self._sent: dict[int, dict[str, int]] = {}
        self._arrays: dict[str, Mapping[str, int]] = {}
        self._changed_arrays: set[str] = set()
        self._told_arrays: dict[str, Mapping[str, int]] = {}
        self._is_dirty, self._is_away = True, False

    @property
    def queues(self) -> set[str]:
        """The queues whose events concern it."""
        return {*self.view.snapshot.graph.queues, self.view.flow.home}

    def note(self, event: Event) -> None:
        """Read an event of one of its queues."""
        if event.is_gap:
            self.is_stale = True
            return
        name = self.view.snapshot.node_of.get(event.job_id or "")
        if name is None:
            self._is_dirty = self._is_dirty or event.flow_id == self.view.flow.id
            return
        if letter := _letter_of(event):
            self.view.snapshot.changed(name, letter)
        if counts := _elements_of(event):
            self._arrays[name] = counts
            self._changed_arrays.add(name)
        elif event.kind == "failed" and self._arrays.pop(name, None) is not None:
            self._changed_arrays.add(name)
        self._is_dirty = True

    async def run(self) -> None:
        """Tell until the flow has ended."""
        loop = asyncio.get_running_loop()
        snapshot = self.view.snapshot
        again = MANY_AGAIN_SECONDS if len(snapshot.names) > MANY else AGAIN_SECONDS
        read_at = loop.time()
        self._sent = {at: group.states for at, group in enumerate(snapshot.groups)}
        while not self.is_over:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                is_due = self.is_stale or self._is_away or loop.time() - read_at > again
                if is_due or self._is_dirty:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        self.view.status = await self.view.flow.status()
                if is_due or self._changed_arrays:
                    await self._read_arrays()
                if is_due:
                    await self.view.refresh(self.view.status, force=True)
                    self.is_stale, read_at, self._is_dirty = False, loop.time(), True
                if self._is_dirty:
                    await self._tell()
                self._is_away = False
            except (FlowNotFound, FlowExpired):
                self.is_over = True
                self._put({"kind": "reload"})  # the page finds out that it is gone
            except (GlideMQError, TimeoutError):
                if not self._is_away:
                    self._put({"kind": "away"})
                self._is_away = True  # when it is back, all is read and told

    async def _read_arrays(self) -> None:
        """Read what runs in open arrays, which no event tells."""
        for name, counts in (await self.view.arrays()).items():
            self._arrays[name] = counts
            if counts != self._told_arrays.get(name):
                self._told_arrays[name] = counts
                self._changed_arrays.add(name)

    async def _tell(self) -> None:
        view = self.view
        self._is_dirty = False
        if view.status.state.is_terminal:
            await view.refresh(force=True)
        states = {at: group.states for at, group in enumerate(view.snapshot.groups)}
        changed = {at: found for at, found in states.items() if found != self._sent.get(at)}
        self._sent = states
        kind = "change"
        if view.status.total != len(view.snapshot.names) or view.status.superseded_by is not None:
            kind, self.is_over = "reload", True
        elif view.status.state.is_terminal:
            kind, self.is_over = "ended", True
        arrays = {name: await self._counts(name) for name in self._changed_arrays}
        self._changed_arrays.clear()
        self._put({"kind": kind, "states": changed, "status": view.status, "arrays": arrays})

    def _put(self, change: dict[str, Any]) -> None:
        for listener in self.listeners:
            listener.put_nowait(change)

    async def _counts(self, name: str) -> Mapping[str, int]:
        """How many elements of an array have ended: as its last event told, or read after it has failed."""
        if name not in self._arrays:
            found = await self.view.flow.array(name).counts()
            self._arrays[name] = {kind: getattr(found, kind) for kind in COUNTS}
        return self._arrays[name]


def _letter_of(event: Event) -> str:
    """The state of its node after an event; '' if it says nothing of that."""
    if event.kind == "completed":
        return "s" if "skipped" in event.fields else "c"
    if event.kind == "failed":
        return failed_letter(event.fields.get("failedReason", ""))
    return ""


def _elements_of(event: Event) -> Mapping[str, int] | None:
    """The counts of an array, which its events tell about once a second and at its end."""
    running = {"running": 0} if event.kind == "completed" else {}
    text = event.fields.get({"progress": "data", "completed": "returnvalue"}.get(event.kind, ""), "")
    if not text.startswith("{"):
        return None
    try:
        counts = summary_of(json.loads(text))
    except ValueError:
        return None
    return counts and {**counts, **running}


class Live:
    """Everything that is looked at now.

    Args:
        client: Reads it.
        views: The views of flows.
    """

    def __init__(self, client: AsyncClient, views: FlowViews) -> None:
        self._client, self._views = client, views
        self._events: dict[str, QueueEvents] = {}
        self._flows: dict[tuple[str, int], tuple[FlowLive, asyncio.Task[None]]] = {}

    async def changes(self, flow_id: str) -> AsyncIterator[dict[str, Any] | None]:
        """The changes of a flow, until it has ended or has other nodes; None after a while without one."""
        view = await self._views.get(flow_id)
        live = self._join(view)
        mine: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        live.listeners.add(mine)
        try:
            while True:
                change = None
                with contextlib.suppress(TimeoutError):
                    change = await asyncio.wait_for(mine.get(), PULSE_SECONDS)
                yield change
                if change is not None and change["kind"] in {"ended", "reload"}:
                    return
        finally:
            live.listeners.discard(mine)
            if not live.listeners:
                self._leave(live)

    def _join(self, view: FlowView) -> FlowLive:
        key = view.flow._ref.flow_id, view.status.total  # noqa: SLF001
        if (known := self._flows.get(key)) is not None and not known[0].is_over:
            return known[0]
        live = FlowLive(view)
        for queue in live.queues:
            if queue not in self._events:
                self._events[queue] = QueueEvents(self._client, queue)
            self._events[queue].listeners.add(live)
        self._flows[key] = live, asyncio.get_running_loop().create_task(live.run())
        return live

    def _leave(self, live: FlowLive) -> None:
        for key, (known, task) in list(self._flows.items()):
            if known is live:
                task.cancel()
                del self._flows[key]
        for queue, events in list(self._events.items()):
            events.listeners.discard(live)
            if not events.listeners:
                events.stop()
                del self._events[queue]

    def stop(self) -> None:
        """Read and tell nothing more."""
        for live, _ in list(self._flows.values()):
            self._leave(live)
