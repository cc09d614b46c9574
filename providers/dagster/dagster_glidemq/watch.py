"""Follows a flow until it has ended, with what has changed since the last time. Independent of Dagster.

The position of the last change is kept, so an outage that is waited out hides nothing, and a change costs the
nodes that have changed, not the flow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from dagster_glidemq.patience import Patience
from glidemq_orchestrate import Flow, FlowChange, FlowStatus, NodeChange, NodeStatus
from glidemq_orchestrate.errors import WaitTimeout
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
    read: Callable[[Sequence[str]], Mapping[str, Json]] = field(repr=False, compare=False)

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """The results of nodes that have completed, read now.

        Args:
            names: Of these nodes, by default of those that have ended since the last time.

        Raises:
            Superseded, FlowNotFound, FlowExpired: They no longer exist.
            TransportError: The server was away for too long.
        """
        wanted = [node.name for node in self.ended] if names is None else list(names)
        return self.read(wanted) if wanted else {}


def follow(
    flow: Flow,
    *,
    patience: Patience,
    timeout: timedelta | None = None,
    look: Callable[[Batch], None] = lambda _: None,
) -> Iterator[Changes]:
    """Yield whenever nodes have ended; the last yield is the one whose status is terminal.

    Args:
        flow: The flow; its owner is renewed meanwhile, if it has one.
        patience: How long the server may be unreachable.
        timeout: Longest time in total; None: for ever.
        look: Called with all changes that were read together, and at least every second with none; what it
            raises ends the following.

    Raises:
        WaitTimeout: It has not ended in time. The flow keeps running.
        TransportError: The server was unreachable for too long. The flow keeps running.
        Superseded: Another generation has begun.
    """

    def results(names: Sequence[str]) -> Mapping[str, Json]:
        return patience(lambda: flow.results(names))

    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    for batch in _batches(flow, patience):
        look(batch)
        names = [one.node for one in batch if isinstance(one, NodeChange) and one.state.is_terminal]
        is_over = bool(batch) and isinstance(batch[-1], FlowChange)
        if names or is_over:
            status = patience(flow.status)
            nodes = patience(lambda names=names: flow.nodes(names)) if names else []  # type: ignore[misc]
            ended = [node for node in nodes if node.state.is_terminal]
            yield Changes(status, ended, results)
        elif deadline is not None and time.monotonic() >= deadline:
            status = patience(flow.status)
            raise WaitTimeout(
                f"flow {flow.id} is still {status.state} after {timeout}: "
                f"{status.completed} of {status.total} nodes completed"
            )


def _batches(flow: Flow, patience: Patience) -> Iterator[Batch]:
    """Those of ``watch_batches``, across outages."""
    position: str | None = None
    batches: Iterator[Batch] | None = None

    def read() -> Batch | None:
        nonlocal batches
        if batches is None:
            batches = flow.watch_batches(after=position, rest=REST)
        try:
            return next(batches, None)
        except BaseException:
            batches = None
            raise

    while (batch := patience(read)) is not None:
        position = batch[-1].position if batch else position
        yield batch
