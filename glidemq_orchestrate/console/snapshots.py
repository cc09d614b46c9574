"""The snapshots of flows that the console keeps: each is read once, however many people look."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from glidemq_orchestrate.clients.client import AsyncClient
from glidemq_orchestrate.clients.flows import AsyncFlow
from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.flows import graph
from glidemq_orchestrate.flows.status import FlowStatus
from glidemq_orchestrate.foundation.collector import paused_collector
from glidemq_orchestrate.queues.open_arrays import counts_of_arrays
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
Marks = tuple[int, ...]
Key = tuple[str, int, datetime | None]
MAX_KEPT: Final = 8
STALE_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 3.0
"""After so long, who asks is told how far reading is, and asks again."""
MAX_EXACT: Final = 5_000
"""Of a larger flow, the states of nodes are inferred."""
MAX_ACTIVE: Final = 1_000


class StillReading(Exception):
    """What was asked for is still being read.

    Args:
        done: How many nodes have been read; 0 if that is not counted.
        of: How many there are.
    """

    def __init__(self, done: int = 0, of: int = 0) -> None:
        super().__init__("it is still being read")
        self.done, self.of = done, of


class FlowView:
    """A flow as the console shows it.

    Attributes:
        flow: Its handle.
        status: The record, as last read.
        snapshot: Its nodes.
    """

    def __init__(self, client: AsyncClient, flow: AsyncFlow, status: FlowStatus, snapshot: Snapshot) -> None:
        self.flow, self.status, self.snapshot, self._client = flow, status, snapshot, client
        self._read_at = -STALE_SECONDS
        self._lock = asyncio.Lock()
        self._of: Marks = ()
        self._reads: dict[str, tuple[Marks, asyncio.Task[tuple[Any, float]]]] = {}
        self._progress: dict[str, int] = {}

    def expire(self) -> None:
        """Read everything at the next refresh."""
        self._read_at, self._of = -STALE_SECONDS, ()
        self._reads.clear()

    def counter(self, what: str) -> Callable[[int], None]:
        """Takes how many nodes of a reading have been read, for those who wait for it."""

        def note(count: int) -> None:
            self._progress[what] = count

        return note

    async def once(self, what: str, read: Callable[[], Awaitable[T]], *, within: float | None = None) -> T:
        """What ``read`` returns, read once however many ask for it at a time.

        It is kept for as long as reading it took, at least a second, but not beyond the end of the flow. Who
        stops waiting leaves it to the rest.

        Raises:
            StillReading: It takes longer than ``within`` seconds, and goes on.
        """
        loop = asyncio.get_running_loop()
        marks = _marks(self.status) if self.status.state.is_terminal else ()
        known, task = self._reads.get(what, ((), None))
        if (
            task is None
            or known != marks
            or (task.done() and (_failed(task) or loop.time() > task.result()[1]))
        ):
            task = loop.create_task(_kept(read))
            task.add_done_callback(_failed)  # looks at the error, as nobody may be there to do so
            self._reads[what] = marks, task
            self._progress.pop(what, None)
        await asyncio.wait([task], timeout=within)
        if not task.done():
            raise StillReading(self._progress.get(what, 0), len(self.snapshot.names))
        found: T = task.result()[0]
        return found

    async def arrays(self) -> Mapping[str, Mapping[str, int]]:
        """How many elements of its open arrays have ended and run, by the name of the array."""
        ref, names = self.flow._ref, self.snapshot.node_of  # noqa: SLF001
        if self.status.state.is_terminal or ref.path != "staged":
            return {}
        queues = [QueueKeys(ref.home.prefix, queue) for queue in set(self.snapshot.graph.queues)]
        found = await self.flow._run(counts_of_arrays(queues, names))  # noqa: SLF001  in two trips for all
        return {names[job_id]: counts for job_id, counts in found.items()}

    async def refresh(self, status: FlowStatus | None = None, *, force: bool = False) -> None:
        """Read the states of all nodes if the record shows a change, or if the flow runs.

        ``status``: the record, if it was just read.
        """
        loop = asyncio.get_running_loop()
        async with self._lock:
            if not force and loop.time() - self._read_at < STALE_SECONDS:
                return
            self.status = status = status or await self.flow.status()
            marks = _marks(status)
            if force or not status.state.is_terminal or marks != self._of:
                await self._read_states()
                self._of = marks
            self._read_at = loop.time()

    async def _read_states(self) -> None:
        """Read the state of each node, or of a large flow what they can be inferred from."""
        run, ref = self.flow._run, self.flow._ref  # noqa: SLF001  there is no public way that takes few calls
        is_large = len(self.snapshot.names) > MAX_EXACT
        if not is_large or self.status.skipped or ref.path != "staged":
            self.snapshot.update(await run(graph.read_letters(ref)))
            return
        open_, failed = await self._ends()
        active: set[str] = set()
        for queue in set(self.snapshot.graph.queues) if open_ is None or open_ else ():
            jobs = await self._client.queue(queue).get_jobs("active", limit=MAX_ACTIVE, exclude_data=True)
            active |= {job.id for job in jobs}
        await asyncio.to_thread(self.snapshot.infer, open_, failed, active)

    async def _ends(self) -> tuple[set[str] | None, set[str]]:
        """The jobs of open nodes, None for all, and of failed ones: only read if the counts do not tell."""
        status = self.status
        if status.open == status.total:
            return None, set()
        if not status.open and not status.failed:
            return set(), set()
        found: tuple[set[str], set[str]] = await self.flow._run(graph.read_ends(self.flow._ref))  # noqa: SLF001
        return found


def _marks(status: FlowStatus) -> Marks:
    """What changes with the states of nodes."""
    return status.completed, status.failed, status.skipped, status.times_reopened


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


async def _kept(read: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """What was read, and until when it is kept."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await read()
    return found, loop.time() + max(STALE_SECONDS, loop.time() - began)


def snapshot_of(stored: graph.StoredNodes) -> Snapshot:
    """The snapshot of a flow."""
    with paused_collector():
        return Snapshot(graph.graph_of(stored))


class FlowViews:
    """The views of the flows that were looked at last.

    Args:
        client: Reads them.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._kept: OrderedDict[Key, FlowView] = OrderedDict()
        self._reading: dict[Key, asyncio.Task[FlowView]] = {}

    def changed(self, flow_id: str) -> None:
        """Somebody has changed the flow: what was read before is old."""
        for view in self._kept.values():
            if view.flow.id == flow_id:
                view.expire()

    async def get(self, flow_id: str) -> FlowView:
        """The view of a flow with its present states.

        Raises:
            StillReading: Its nodes are being read, which goes on.
            FlowNotFound, FlowExpired, TransportError: It cannot be read.
        """
        flow = await self._client.flows.get(flow_id)
        status = await flow.status()
        # Nodes are added, never changed, unless the flow is deleted and submitted anew.
        key = flow._ref.flow_id, status.total, status.created_at  # noqa: SLF001
        if (view := self._kept.get(key)) is None:
            if (task := self._reading.get(key)) is None:
                task = asyncio.create_task(self._read(key, flow, status))
                task.add_done_callback(lambda _: self._reading.pop(key, None))
                task.add_done_callback(_failed)
                self._reading[key] = task
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)
            if not task.done():
                raise StillReading(of=status.total)
            view = task.result()
        if key in self._kept:
            self._kept.move_to_end(key)
        await view.refresh(status)
        return view

    async def _read(self, key: Key, flow: AsyncFlow, status: FlowStatus) -> FlowView:
        stored = await flow._run(graph.read_nodes(flow._ref))  # noqa: SLF001
        view = FlowView(self._client, flow, status, await asyncio.to_thread(snapshot_of, stored))
        self._kept[key] = view
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return view
