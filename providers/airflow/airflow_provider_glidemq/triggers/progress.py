"""What a trigger tells while a flow runs: what nodes report, and progress to callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_glidemq.callbacks import event_of, tell_from_loop
from airflow_provider_glidemq.node_reports import LEFT_OUT, LINES, PASSING, ROUNDS, NodeReports
from airflow_provider_glidemq.silence import Silence

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared import SharedClient
    from glidemq_orchestrate import AsyncFlow, FlowStatus, NodeStatus


PATIENCE: Final = 1.0


class Reporter:
    """Shows what the nodes of one generation report, at most once in ``often`` seconds."""

    def __init__(self, reports: NodeReports, often: float, log: Any) -> None:
        self._reports, self._often, self._log = reports, often, log
        self.names: Sequence[str] | None = None  # of these nodes only
        self._looked_at = 0.0

    @property
    def seconds_left(self) -> float:
        """Until the next look is due."""
        return max(self._looked_at + self._often - asyncio.get_running_loop().time(), 0.0)

    async def look(self, client: SharedClient, flow: AsyncFlow, *, is_last: bool = False) -> None:
        """Show what is new, if a look is due or the flow has ended."""
        if not is_last and self.seconds_left:
            return
        with suppress(*PASSING):  # the next look at the flow tells
            for _ in range(ROUNDS if is_last else 1):
                nodes = await client.ask(flow.nodes(self.names))
                due = self._reports.due(nodes)
                found = await client.ask(flow.logs(due, limit=LINES)) if due else {}
                for number, line in enumerate(self._reports.lines(nodes, found), 1):
                    self._log.info("%s", line)
                    if number % LINES == 0:
                        await asyncio.sleep(0)  # writing takes a millisecond, and others wait
                if not self._reports.has_more:
                    break
                await asyncio.sleep(0)
            if is_last and self._reports.has_more:
                self._log.warning(LEFT_OUT, flow.id)
        self._looked_at = asyncio.get_running_loop().time()


class Quiet:
    """Logs why nothing happens in one generation of a flow."""

    def __init__(self, log: Any, *, is_masked: bool) -> None:
        self._silence, self._log, self._is_masked = Silence(), log, is_masked

    @property
    def seconds_left(self) -> float:
        """Until the next look is due."""
        return self._silence.seconds_left(asyncio.get_running_loop().time())

    async def look(
        self,
        client: SharedClient,
        flow: AsyncFlow,
        ended: int,
        read: Callable[[], Awaitable[Sequence[NodeStatus]]] | None = None,
    ) -> None:
        """Log what waits, of the nodes that are read or of all, if a look is due.

        ``ended``: how many have ended.
        """
        if not self._silence.is_due(ended, asyncio.get_running_loop().time()):
            return
        with suppress(*PASSING):  # the next look at the flow tells
            nodes = await read() if read is not None else None
            waits = await client.ask(flow.waits(nodes))
            if line := self._silence.line(waits, flow.id if self._is_masked else ""):
                self._log.info("%s", line)


class Telling:
    """Calls callbacks beside the trigger: one that is slow misses some progress, and delays nothing."""

    def __init__(self, paths: Sequence[str], log: Any) -> None:
        self._paths, self._log = paths, log
        self._task: asyncio.Task[None] | None = None

    def progress(self, task: Any, status: FlowStatus) -> None:
        """Tell the callbacks how far the flow is."""
        if self._paths and task is not None and (self._task is None or self._task.done()):
            event = event_of(task, status)
            self._task = asyncio.create_task(tell_from_loop(self._paths, "progress", event, self._log))

    async def end(self) -> None:
        """Wait for no callback any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=PATIENCE)  # it may refuse to be cancelled
