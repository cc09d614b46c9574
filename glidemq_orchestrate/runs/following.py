"""Follows a flow to its end, batch by batch; checks its workers, and renews the lease of its owner.

The follower stores the position of the last change. So no change is lost in an outage, and the cost of a read
depends on the number of changed nodes, not on the size of the flow.

``Unserved`` finds queues without workers, for flows without a queue timeout. The queue timeout of a flow is
enforced by the clients that watch it.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate.errors import Superseded, WaitTimeout, WorkersMissing
from glidemq_orchestrate.flows.owner import MAX, Owner
from glidemq_orchestrate.flows.status import FlowStatus, NodeStatus
from glidemq_orchestrate.flows.watched import FlowChange, NodeChange
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.runs.steps import Patience, Steps, Warns

ChangeBatch = Sequence[NodeChange | FlowChange]
REST: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed in a flow since the previous changes.

    Attributes:
        status: The status of the flow.
        ended: The nodes that have ended since, dependencies first; a node that has run again is repeated.
    """

    status: FlowStatus
    ended: Sequence[NodeStatus]
    read: Callable[[Sequence[str]], Any] = field(repr=False, compare=False)

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Any]:
        """Read the results of completed nodes. With an asyncio client, await the call.

        Args:
            names: The nodes; default: those in ``ended``.

        Raises:
            Superseded, FlowNotFound, FlowExpired: The results no longer exist.
            TransportError: The server was unreachable for too long.
        """
        chosen = [node.name for node in self.ended] if names is None else list(names)
        return self.read(chosen)  # type: ignore[no-any-return]


class Follower:
    """Reads the changes of a generation in batches.

    Args:
        flow: The flow. The lease of its owner, if any, is renewed while the flow is followed.
        patience: How long the server may be unreachable.
        timeout: The max time in total; None: no limit.
        read: Reads the results of nodes.

    Attributes:
        is_over: Whether all changes have been read: the last status is the final status of the flow.
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
        self._batches: Iterator[ChangeBatch] | AsyncIterator[ChangeBatch] | None = None

    def batch(self) -> Steps[ChangeBatch]:
        """The next changes, read together; empty after a second without changes.

        Raises:
            TransportError: The server was unreachable for too long. The flow keeps running.
            Superseded: Another generation has begun.
        """
        batch: ChangeBatch = yield from self._patience.steps(self._next)
        self._position = batch[-1].position if batch else self._position
        return batch

    def changes(self, batch: ChangeBatch) -> Steps[Changes | None]:
        """The ended nodes in a batch, with the status; None if nothing has ended.

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
        """Stop early, and release the supervision of the flow. With an asyncio client, await the call."""
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

    async def _anext(self, batches: AsyncIterator[ChangeBatch]) -> ChangeBatch:
        try:
            return await anext(batches, ())
        except BaseException:
            self._batches = None
            raise


EVERY_SECONDS: Final = 5.0
WARN_AFTER_SECONDS: Final = 10.0
MAX_NODES: Final = 1_000
# A delayed node is not among these: it waits on purpose.
WAITING: Final = frozenset({JobState.WAITING, JobState.PRIORITIZED, JobState.GROUP_WAITING, JobState.ACTIVE})


class Unserved:
    """Checks every few seconds whether live workers serve the runnable nodes of a flow.

    Args:
        producer: A client.
        flow: The flow.
        limit: How long workers may be missing; None: no limit.
        log: Receives one warning for each missing queue or handler.
        patience: How long the server may be unreachable.
    """

    def __init__(
        self, producer: Any, flow: Any, *, limit: timedelta | None, log: Warns, patience: Patience
    ) -> None:
        self._producer, self._flow, self._limit = producer, flow, limit
        self._log, self._patience = log, patience
        self._open: dict[str, tuple[str, str] | None] = {}  # the queue and job of each node, once known
        self._checked = self._served = time.monotonic()
        self._warned = ""

    def check(self, batch: Sequence[NodeChange | FlowChange]) -> Steps[None]:
        """Apply the changes of a batch, and check the workers if a check is due.

        Raises:
            WorkersMissing: Workers have been missing for too long.
        """
        for change in batch:
            if isinstance(change, NodeChange):
                if change.state in WAITING:
                    self._open.setdefault(change.node)
                else:
                    self._open.pop(change.node, None)
        now = time.monotonic()
        if now < self._checked + EVERY_SECONDS:
            return
        self._checked = now
        missing = yield from self._missing()
        if missing is None:
            self._served, self._warned = now, ""
            return
        away = now - self._served
        if self._limit is not None and away >= self._limit.total_seconds():
            raise missing
        if away >= WARN_AFTER_SECONDS and str(missing) != self._warned:
            self._warned = str(missing)
            limit = "" if self._limit is None else f"; the task fails if this lasts for {self._limit}"
            self._log.warning("flow %s waits: %s%s", self._flow.id, missing, limit)

    def _missing(self) -> Steps[WorkersMissing | None]:
        if not self._open:
            return None
        names = [name for name, place in self._open.items() if place is None][:MAX_NODES]
        for node in (yield from self._patience.steps(lambda: self._flow.nodes(names))) if names else ():
            self._open[node.name] = (node.queue, node.job)
        jobs: dict[str, set[str]] = defaultdict(set)
        for queue, job in filter(None, self._open.values()):
            jobs[queue].add(job)
        try:
            yield from self._patience.steps(lambda: self._producer.check_workers(jobs))
        except WorkersMissing as exc:
            return exc
        return None


MAX_NAME: Final = 256
MAX_LEASE: Final = MAX
"""The max duration of a lease."""
RENEWALS: Final = 3
"""How often an owner renews its lease within the duration of the lease."""


class NotOwned(Exception):
    """A flow runs not, or not only, for the task that tries to end it."""


def owner_of(name: str, lease: Duration | None, *, joins: bool = True) -> Owner:
    """An owner with this name.

    Args:
        name: The name.
        lease: The duration of its lease, after which the flow is cancelled. None: the max duration, and the
            flow continues afterwards.
        joins: See ``Owner``.

    Raises:
        ConfigurationError: ``lease`` is not between 15 seconds and 7 days.
    """
    if lease is None:
        return Owner(name, MAX_LEASE, "keep", joins=joins)
    return Owner(name, lease, joins=joins)


def short_name(name: str) -> str:
    """A valid name of an owner: the name, or its beginning and a digest if it is too long."""
    if len(name) <= MAX_NAME and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return "".join(mark for mark in name if mark.isprintable())[: MAX_NAME - 17] + f" {digest}"


def check_owned(
    flow_id: str, name: str, found: Collection[str], counts: Callable[[str], bool] = lambda _: True
) -> None:
    """Refuse to end a flow that runs not, or not only, for this owner. An ended flow has no owners.

    Args:
        flow_id: The flow.
        name: The owner that tries to end it.
        found: Its owners.
        counts: Whether another owner with this name still counts.

    Raises:
        NotOwned: The flow has other owners, or not this owner.
    """
    if name not in found:
        raise NotOwned(f"another client has begun flow {flow_id} or restarted it")
    if others := [one for one in found if one != name and counts(one)]:
        raise NotOwned(f"flow {flow_id} continues for {', '.join(others)}")


def joining(owner: Owner, *, is_begun_here: bool) -> Owner:
    """The owner for the current generation; it does not join a generation that a user has begun."""
    return owner if is_begun_here else replace(owner, joins=False)
