"""The flow of a running node: the class of ``ctx.flow``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence

from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.worker.handlers.context import FlowOfNode


class RunningFlow(FlowOfNode):
    """Adds nodes to the flow of a running node; they join it when the handler has returned.

    Nodes added by a failed, lost or cancelled attempt never run, and are removed within a quarter of an hour.

    Args:
        run: Drives operations on the worker's loop.
        loop: The worker's loop, which runs in the thread that makes this.
        prefix: First part of every key.
        attempt: The attempt of the node.
        clock: The current time.
    """

    def __init__(
        self, run: Run, loop: asyncio.AbstractEventLoop, prefix: str, attempt: Attempt, clock: Clock
    ) -> None:
        self._run, self._loop, self._prefix = run, loop, prefix
        self._attempt, self._clock = attempt, clock
        self._thread = threading.current_thread()

    def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes from a plain handler, all or none. An async handler awaits ``add_nodes_async``.

        They may depend on each other, on nodes of the flow, and on nodes that an earlier call added; those
        without dependencies depend on this node. Repeating the call changes nothing.

        Args:
            nodes: One or more; the flow may have 100,000 in all.
            before: Dependents of this node that are also to depend on the last of the added nodes and get
                their results; at most 100. The added nodes may then depend only on completed nodes and on
                this one.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: They cannot be added as written; nothing was added.
            NodeExists: The flow has another node of that name; nothing was added.
            LeaseLost: The attempt no longer owns its job.
            TransportError: The server could not be reached. Call again.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("add_nodes would block the worker's loop: await add_nodes_async instead")
        asyncio.run_coroutine_threadsafe(self.add_nodes_async(nodes, before=before), self._loop).result()

    async def add_nodes_async(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes from an async handler; otherwise as ``add_nodes``."""
        await self._run(backend.add_nodes(self._prefix, self._attempt, nodes, before, self._clock))
