"""Follows a flow until it has ended, with the nodes that have ended since the last time.

The position of the last change is kept, so an outage that is waited out hides nothing, and a change costs the
nodes that have changed, not the flow.
"""

from __future__ import annotations

import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate.errors import Superseded, WaitTimeout
from glidemq_orchestrate.flows.status import FlowStatus, NodeStatus
from glidemq_orchestrate.flows.watched import FlowChange, NodeChange
from glidemq_orchestrate.runs.patience import Patience
from glidemq_orchestrate.runs.steps import Steps
from glidemq_orchestrate.wire.codec import Json

Batch = Sequence[NodeChange | FlowChange]
REST: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed in a flow since the last time.

    Attributes:
        status: The record of the flow.
        ended: The nodes that have ended since, dependencies first; one that has run again comes again.
    """

    status: FlowStatus
    ended: Sequence[NodeStatus]
    read: Callable[[Sequence[str]], Any] = field(repr=False, compare=False)

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """The results of nodes that have completed, read now. With an asyncio client, await it.

        Args:
            names: Of these nodes, by default of those that have ended since the last time.

        Raises:
            Superseded, FlowNotFound, FlowExpired: They no longer exist.
            TransportError: The server was away for too long.
        """
        chosen = [node.name for node in self.ended] if names is None else list(names)
        return self.read(chosen)  # type: ignore[no-any-return]


class Follower:
    """Reads the changes of one generation, one batch after the other.

    Args:
        flow: The flow; its owner is renewed while it is followed, if it has one.
        patience: How long the server may be unreachable.
        timeout: Longest time in total; None: without limit.
        read: Reads the results of nodes.

    Attributes:
        is_over: Whether all has been read: the last status is the one with which the flow has ended.
    """

    def __init__(
        self,
        flow: Any,
        patience: Patience,
        timeout: timedelta | None,
        read: Callable[[Sequence[str]], Any],
    ) -> None:
        self._flow, self._patience, self._read = flow, patience, read
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        self.is_over = False
        self._position: str | None = None
        self._batches: Iterator[Batch] | AsyncIterator[Batch] | None = None

    def batch(self) -> Steps[Batch]:
        """The next changes, read together; none after a second without any.

        Raises:
            TransportError: The server was unreachable for too long. The flow keeps running.
            Superseded: Another generation has begun.
        """
        batch: Batch = yield from self._patience.steps(self._next)
        self._position = batch[-1].position if batch else self._position
        return batch

    def changes(self, batch: Batch) -> Steps[Changes | None]:
        """What a batch is to those who wait for nodes to end; None: nothing.

        Raises:
            WaitTimeout: The flow has not ended in time. It keeps running.
            TransportError, Superseded: As ``batch``.
        """
        flow, patience = self._flow, self._patience
        names = [one.node for one in batch if isinstance(one, NodeChange) and one.state.is_terminal]
        self.is_over = bool(batch) and isinstance(batch[-1], FlowChange)
        if names or self.is_over:
            status = yield from patience.steps(flow.status)
            if status.superseded_by is not None:
                raise Superseded(f"flow {flow.id} was restarted: generation {status.superseded_by}")
            nodes = (yield from patience.steps(lambda: flow.nodes(names))) if names else []
            return Changes(status, [node for node in nodes if node.state.is_terminal], self._read)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            status = yield from patience.steps(flow.status)
            raise WaitTimeout(
                f"flow {flow.id} is still {status.state} after {self._timeout}: "
                f"{status.completed} of {status.total} nodes completed"
            )
        return None

    def close(self) -> Any:
        """End early, and let others supervise the flow at once. With an asyncio client, await it."""
        batches, self._batches = self._batches, None
        if isinstance(batches, AsyncGenerator):
            return batches.aclose()
        return batches.close() if isinstance(batches, Generator) else None

    def _next(self) -> Any:
        if self._batches is None:
            self._batches = self._flow.watch_batches(after=self._position, rest=REST)
        if isinstance(self._batches, AsyncIterator):
            return self._anext(self._batches)
        try:
            return next(self._batches, ())
        except BaseException:
            self._batches = None
            raise

    async def _anext(self, batches: AsyncIterator[Batch]) -> Batch:
        try:
            return await anext(batches, ())
        except BaseException:
            self._batches = None
            raise
