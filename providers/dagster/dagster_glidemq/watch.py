"""Follows a flow until it has ended, with the changes since the last read. Independent of Dagster.

Events of the flow's home queue wake it; the state is read from the flow, at the latest after the poll
interval, so a trimmed stream or a node in another queue delays a change but never hides it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from glidemq_orchestrate import EventReader, Flow, FlowStatus, NodeStatus
from glidemq_orchestrate.errors import Superseded, TransportError, WaitTimeout

logger = logging.getLogger(__name__)

REST: Final = timedelta(milliseconds=50)
PATIENCE: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Changes:
    """One read of a flow: its status, every node (dependencies first), and the nodes ended since the last."""

    status: FlowStatus
    nodes: Sequence[NodeStatus]
    ended: Sequence[NodeStatus]


def follow(  # noqa: PLR0913  how to follow
    flow: Flow,
    reader: EventReader,
    *,
    poll: timedelta,
    timeout: timedelta | None = None,
    patience: timedelta = PATIENCE,
    lapse: timedelta | None = None,
) -> Iterator[Changes]:
    """Yield whenever nodes have ended; the last yield is the one whose status is terminal.

    Args:
        flow: The flow.
        reader: Reads the events of the flow's home queue; it should have been started before the submission.
        poll: Longest time between two reads.
        timeout: Longest time in total; None: for ever.
        patience: How long the server may be unreachable; shorter outages are waited out.
        lapse: Of the owner with which the flow was submitted or found, who is renewed; None: it has none.

    Raises:
        WaitTimeout: It has not ended in time. The flow keeps running.
        TransportError: The server was unreachable for too long. The flow keeps running.
        Superseded: Another generation has begun.
    """
    seen: set[str] = set()
    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    outage, renewed = _Outage(patience), -math.inf
    while True:
        began = time.monotonic()
        try:
            if lapse is not None and began - renewed > lapse.total_seconds() / 3:
                flow.renew()
                renewed = began
            status = flow.status()  # before the nodes, so that the end comes with their last states
            nodes = flow.nodes()
        except TransportError as exc:
            outage.wait(exc)
            continue
        outage.end()
        if status.superseded_by is not None:
            raise Superseded(f"flow {flow.id} was begun anew: generation {status.superseded_by}")
        ended = [node for node in nodes if node.state.is_terminal and node.name not in seen]
        seen.update(node.name for node in ended)
        if ended or status.state.is_terminal:
            yield Changes(status, nodes, ended)
        if status.state.is_terminal:
            return
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(
                f"flow {flow.id} is still {status.state} after {timeout}: "
                f"{status.completed} of {status.total} nodes completed"
            )
        # Events come in bursts, and large flows take long to read: spend at most a third of the time on it.
        time.sleep(max(REST.total_seconds(), 2 * (time.monotonic() - began)))
        _sleep_until_event(flow, reader, {node.job_id for node in nodes}, poll, deadline)


def _sleep_until_event(
    flow: Flow, reader: EventReader, job_ids: set[str], poll: timedelta, deadline: float | None
) -> None:
    until = time.monotonic() + poll.total_seconds()
    until = until if deadline is None else min(until, deadline)
    while (left := until - time.monotonic()) > 0:
        try:
            events = reader.read(timedelta(seconds=left))
        except TransportError:
            return  # the next read of the flow handles it
        if any(event.flow_id == flow.id or event.job_id in job_ids for event in events):
            return


class _Outage:
    """How long the server has been unreachable."""

    def __init__(self, patience: timedelta) -> None:
        self._patience = patience.total_seconds()
        self._since: float | None = None

    def wait(self, exc: TransportError) -> None:
        """Wait a moment; raise when the outage has lasted too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            logger.warning("the server cannot be reached, retrying: %s", exc)
        if now - self._since > self._patience or not exc.retryable:
            raise exc
        time.sleep(0.5)

    def end(self) -> None:
        """Note that the server is reachable again."""
        self._since = None
