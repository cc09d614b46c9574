"""The snapshots of flows that the console keeps: each is read once, however many people look."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from glidemq_orchestrate.clients.client import AsyncClient
from glidemq_orchestrate.clients.flows import AsyncFlow
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.flows import graph
from glidemq_orchestrate.flows.status import FlowStatus

MAX_KEPT: Final = 8
STALE_SECONDS: Final = 1.0


class FlowView:
    """A flow as the console shows it.

    Attributes:
        flow: Its handle.
        status: The record, as last read.
        snapshot: Its nodes.
    """

    def __init__(self, flow: AsyncFlow, status: FlowStatus, snapshot: Snapshot) -> None:
        self.flow, self.status, self.snapshot = flow, status, snapshot
        self._read_at = -STALE_SECONDS
        self._lock = asyncio.Lock()
        self._of: tuple[int, ...] = ()

    async def refresh(self, *, force: bool = False) -> None:
        """Read the record, and the states of all nodes if it shows a change, or if the flow runs."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if not force and loop.time() - self._read_at < STALE_SECONDS:
                return
            self.status = status = await self.flow.status()
            marks = (status.completed, status.failed, status.skipped, status.times_reopened)
            if force or not status.state.is_terminal or marks != self._of:
                self.snapshot.update(await self.flow._run(graph.read_letters(self.flow._ref)))  # noqa: SLF001
                self._of = marks
            self._read_at = loop.time()


class FlowViews:
    """The views of the flows that were looked at last.

    Args:
        client: Reads them.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._kept: OrderedDict[tuple[str, int], FlowView] = OrderedDict()
        self._reading: dict[tuple[str, int], asyncio.Lock] = {}

    async def get(self, flow_id: str) -> FlowView:
        """The view of a flow with its present states.

        Raises:
            FlowNotFound, FlowExpired, TransportError: It cannot be read.
        """
        flow = await self._client.flows.get(flow_id)
        status = await flow.status()
        key = flow._ref.flow_id, status.total  # noqa: SLF001  nodes are added, never changed
        async with self._reading.setdefault(key, asyncio.Lock()):
            view = self._kept.get(key)
            if view is None:
                nodes = await flow._run(graph.read_graph(flow._ref))  # noqa: SLF001
                view = FlowView(flow, status, await asyncio.to_thread(Snapshot, nodes))
                self._kept[key] = view
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
        self._reading.pop(key, None)
        self._kept.move_to_end(key) if key in self._kept else None
        await view.refresh()
        return view
