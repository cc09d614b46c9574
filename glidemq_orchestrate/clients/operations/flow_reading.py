"""The operations of Flow and AsyncFlow that read, await and watch a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.attempts import client_supervision
from glidemq_orchestrate.clients.operations.once import Once
from glidemq_orchestrate.clients.outage import Outage
from glidemq_orchestrate.errors import GlideMQError, NodeNotFound, WaitTimeout
from glidemq_orchestrate.flows.backend import FlowBackend, backend_of
from glidemq_orchestrate.flows.elements import element_status
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import flow_history
from glidemq_orchestrate.flows.nodes import leaf_names, named_nodes, node_logs, node_results, split_name
from glidemq_orchestrate.flows.outcome import outcome, results
from glidemq_orchestrate.flows.ownership import Ownership
from glidemq_orchestrate.flows.status import FlowOutcome, FlowStatus, NodeStatus, Wait, raise_unless_completed
from glidemq_orchestrate.flows.watch import REST_MS, Quiet, Watch, begin_watch
from glidemq_orchestrate.flows.watched import FlowChange, NodeChange
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs.history import JobHistory, history
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.queues import failure_groups
from glidemq_orchestrate.queues import waits as waiting
from glidemq_orchestrate.queues.failure_groups import FailureGroups
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import as_time

Change: TypeAlias = "NodeChange | FlowChange"
# Finding the reason for a wait takes too long in a larger flow.
EXPLAINED_NODES: Final = 10_000


@dataclass
class ReadingOperations:
    """Operations that do not change a flow.

    Attributes:
        ref: The flow and its generation.
        clock: The server's time.
        owned: The owner of the flow, if this client renews its lease.
    """

    ref: FlowRef
    clock: Clock
    owned: Ownership | None = None

    @cached_property
    def _backend(self) -> FlowBackend:
        return backend_of(self.ref)

    @cached_property
    def _area(self) -> client_supervision.Area:
        """The supervision by this client; starts with its first wait."""
        return client_supervision.for_flow(self.ref, self.clock)

    def read_changes(self, watch: Watch) -> Op[list[Change]]:
        """Read the next changes of a watch. Renews the owner's lease, and supervises if needed."""
        if self.owned is not None:
            yield from self.owned.renew_if_due(self.ref, self.clock)
        return (yield from client_supervision.step(self._area, watch))

    def now(self) -> Op[datetime]:
        """Return the server's time, by which times of flows are set: UTC, within a few milliseconds."""
        yield from ()  # without a call to the server
        return as_time(self.clock.now_ms())

    def status(self) -> Op[FlowStatus]:
        """Read state and counts, in constant time.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._backend.status(self.ref)

    def node(self, name: str) -> Op[NodeStatus]:
        """Read one node with its state, or an element of an array: ``clean[4711]``.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        try:
            return (yield from named_nodes(self.ref, [name]))[0]
        except NodeNotFound:
            if split_name(name) is None:
                raise
        return (yield from element_status(self.ref, name))

    def nodes(self, names: Iterable[str] | None = None) -> Op[list[NodeStatus]]:
        """Read every node with its state, dependencies before dependents, in pages of about 200 nodes.

        Args:
            names: Only these nodes, in this order; the cost grows with their number, not with the flow.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        if names is None:
            return (yield from self._backend.nodes(self.ref))
        return (yield from named_nodes(self.ref, names))

    def leaves(self) -> Op[list[str]]:
        """List the names of the nodes without dependents; much cheaper than ``nodes``.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        return leaf_names(self.ref)

    def results(self, names: Iterable[str] | None = None) -> Op[Mapping[str, Any]]:
        """Read the results of the nodes completed so far, by node name, in no particular order.

        Args:
            names: Only these nodes, such as the dependencies of a fan-in; the cost grows with their number,
                not with the flow. None: all.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        if names is None:
            return (yield from results(self.ref))
        return (yield from node_results(self.ref, names))

    def waits(self, nodes: Iterable[NodeStatus] | None = None) -> Op[Mapping[str, Wait]]:
        """Explain why nodes are not running, and until when, by name.

        Covers nodes that wait for a worker, their next attempt or delay, their ordering key, a signal, or
        jobs that they added; also nodes with a silent worker, and arrays in which nothing runs, but not nodes
        that wait for other nodes. Nodes that only wait for their turn come last. All ready nodes are
        included, and the first 100 of the others. Meant for display: costs five calls for each queue, and two
        for each node that is not ready and each array.
        On the portable path (several slots of a cluster), nodes with delays cost one more each.

        Args:
            nodes: Only these nodes, as returned by ``nodes``; None: all.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``node``, but only without ``nodes``.
        """
        found = (yield from self.nodes()) if nodes is None else nodes
        return (yield from waiting.waits(self.ref, found, self.clock.now_ms()))

    def failures(self) -> Op[FailureGroups]:
        """Group the failed nodes by cause, largest group first; see ``Queue.failures``.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        return failure_groups.flow_failures(self.ref)

    def logs(self, after: Mapping[str, int], *, limit: int = 100) -> Op[Mapping[str, JobLogs]]:
        """Read log lines of some nodes, oldest first, and their total numbers.

        Args:
            after: The number of lines to skip, by node name; -20: all but the last 20. Removed lines count
                too. 200 nodes take two round trips, or three if lines were removed.
            limit: The max number of lines for each node.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        return node_logs(self.ref, after, limit)

    def node_history(self, name: str) -> Op[JobHistory]:
        """Read what happened to the job of a node, as ``Queue.history``.

        Raises:
            NodeNotFound: The flow has no node of this name.
            FlowNotFound, FlowExpired: The flow no longer exists.
            JobNotFound: The job was removed.
        """
        node = yield from self.node(name)
        return (yield from history(QueueKeys(self.ref.home.prefix, node.queue), node.job_id))

    def outcome(self) -> Op[FlowOutcome]:
        """Read the current status, results and failures."""
        return (yield from outcome(self.ref, (yield from self.status())))

    def outage(self, timeout: Duration | None) -> Outage:
        """What waits during an outage of the server, which has replied before, as the handle shows."""
        return Outage(f"flow {self.ref.public_id}", timeout=timeout, has_read=True)

    def wait(self, *, timeout: Duration | None = None) -> Once[FlowOutcome]:
        """Wait until the flow has ended, in any state; ``outcome.status`` has the state.

        Survives outages of the server, such as a failover, and logs those of over a second.

        Args:
            timeout: The max time to wait, to the millisecond; None: no limit. The flow continues after a
                timeout.

        Raises:
            WaitTimeout: The flow has not ended in time.
            TransportError: The server was unreachable at the end of the time.
        """
        return Once(self._until_ended(_limit(timeout)), self.resign)

    def _until_ended(self, limit: int | None) -> Callable[[], Op[FlowOutcome]]:
        """The wait, which may be repeated after an error: all of it within ``limit``."""
        deadline = None if limit is None else self.clock.monotonic_ms() + limit
        return lambda: client_supervision.wait(self._area, self._waiting, limit, deadline)

    def _blocking_wait(self) -> Op[str]:
        """``; node NODE waits: REASON``; '' if all nodes only wait for their turn, or cannot be read."""
        try:
            if (yield from self.status()).total > EXPLAINED_NODES:
                return ""
            waits = yield from self.waits()
        except GlideMQError:
            return ""
        found = next(((name, wait) for name, wait in waits.items() if not wait.is_turn), None)
        return f"; node {found[0]} waits: {found[1]}" if found else ""

    def _waiting(self, limit: int | None) -> Op[FlowOutcome]:
        wait = self._backend.wait if self.owned is None else self.owned.wait
        return (yield from outcome(self.ref, (yield from wait(self.ref, limit, self.clock))))

    def resign(self) -> Op[None] | None:
        """Release the locks of this client as a supervisor, if it has any; without this they expire."""
        return client_supervision.resign(self._area) if self._area.led else None

    def supervise(self) -> Op[None]:
        """Supervise the queues of the flow once, unless they have a supervisor.

        Flows with nodes on Node workers need a supervisor: a Python worker, or a running ``wait`` or
        ``watch``. Use this call in code that only polls the status. It takes one round trip if the queues
        have a supervisor, otherwise up to a few seconds. It does nothing if the server refuses it. Safe to
        repeat.
        """
        yield from client_supervision.once(self._area)

    def is_supervised(self) -> Op[bool]:
        """Whether the home queue of the flow has a supervisor.

        A supervisor is a Python worker of one of the flow's queues, ``glidemq supervise``, or a client in
        ``wait`` or ``watch``. Without one, the flow does not advance after jobs that Node workers have ended.
        """
        return client_supervision.is_supervised(self.ref)

    def watch(self, *, after: str | None = None, timeout: Duration | None = None) -> ChangeStream:
        """Yield the changes of the flow until it has ended; the last is a ``FlowChange``.

        Starts with every node that has left ``waiting-children``. The dependencies that a node's rule
        requires are reported as ended before the node is reported as started. Every difference is reported
        once: a node that passes through several states between two reads is reported in the last one. Events
        that were trimmed unread cause no missed change. A node that was rerun or ended manually is a
        difference even if its state is the same.

        Survives outages of the server, such as a failover, and logs those of over a second.

        Args:
            after: Continue after the ``position`` of a change, possibly one read by another process: yields
                only later differences and the end. After the position of a ``FlowChange``, yields nothing
                unless the flow has run since.
            timeout: The max time to wait for the end, to the millisecond; None: no limit.

        Raises:
            ConfigurationError: ``after`` is not a position of this flow. Raised by the call; the others are
                raised during iteration.
            WaitTimeout: The flow has not ended in time. It continues; watch again after the last position.
            FlowNotFound, FlowExpired: The flow no longer exists.
            TransportError: The server was unreachable at the end of the time.
        """
        limit = _limit(timeout)
        return ChangeStream(self, begin_watch(self.ref, after, limit, self.clock))

    def watch_batches(
        self,
        *,
        after: str | None = None,
        timeout: Duration | None = None,
        rest: Duration = 5,
    ) -> ChangeBatches:
        """``watch`` in batches of changes read together; the last batch ends with a ``FlowChange``.

        For readers with a lookup for each change, or with other work: an empty batch is yielded after a time
        without changes.

        Args:
            after: As in ``watch``; use the ``position`` of the last change of a batch.
            timeout: As in ``watch``.
            rest: The time without changes after which an empty batch is yielded.

        Raises:
            ConfigurationError, WaitTimeout, FlowNotFound, FlowExpired: As ``watch``.
            TransportError: The server is unreachable; watch again after the last position.
        """
        limit = _limit(timeout)
        pause = duration("rest", rest)
        rest_ms = min(milliseconds(pause), REST_MS)
        watch = begin_watch(self.ref, after, limit, self.clock, rest_ms=rest_ms)
        return ChangeBatches(self, watch, Quiet(self.clock, pause))

    def result(self, *, timeout: Duration | None = None) -> Once[Mapping[str, Any]]:
        """Wait for the results of all nodes, by node name, in no particular order.

        Survives outages as ``wait``.

        Raises:
            FlowFailed: The flow failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: The flow was cancelled.
            WaitTimeout: The flow has not ended in time. The message has the reason why a node waits, unless
                all nodes only wait for their turn; finding it may take longer than ``timeout``.
            TransportError: The server was unreachable at the end of the time.
        """
        wait = self._until_ended(_limit(timeout))

        def read() -> Op[Mapping[str, Any]]:
            try:
                outcome = yield from wait()
            except WaitTimeout as exc:
                raise WaitTimeout(f"{exc}{yield from self._blocking_wait()}") from exc.__cause__
            raise_unless_completed(outcome)
            return outcome.results

        return Once(read, self.resign)

    def owners(self) -> Op[Sequence[str]]:
        """List the names of its owners, sorted, without those with an expired lease.

        Empty if the flow has no owners or has ended.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._backend.owners(self.ref)

    def history(self) -> Op[Sequence[FlowStatus]]:
        """Read the status of each stored generation, oldest first: the last 100, and some before them.

        ``superseded_by`` is set in all but the last. When a generation is removed, its idempotency key is
        removed too.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return flow_history(self.ref)


def _limit(timeout: Duration | None) -> int | None:
    return None if timeout is None else milliseconds(duration("timeout", timeout))


@dataclass(slots=True)
class ChangeStream:
    """The changes of a flow, one by one."""

    flow: ReadingOperations
    watch: Watch

    def step(self) -> Op[Sequence[Change]] | None:
        """Read the next changes; None when the flow has ended."""
        return None if self.watch.is_over else self.flow.read_changes(self.watch)

    def end(self) -> Op[None] | None:
        """Release the locks of the supervisor."""
        return self.flow.resign()


@dataclass(slots=True)
class ChangeBatches:
    """The changes of a flow in batches read together; an empty batch after a time without changes."""

    flow: ReadingOperations
    watch: Watch
    quiet: Quiet
    was_given: bool = False

    def step(self) -> Op[Sequence[Sequence[Change]]] | None:
        """Read the next batch, if any; None when the flow has ended."""
        if self.was_given:
            self.quiet.begin()
        return None if self.watch.is_over else self._read()

    def _read(self) -> Op[Sequence[Sequence[Change]]]:
        changes = yield from self.flow.read_changes(self.watch)
        self.was_given = bool(changes) or self.quiet.is_over()
        return [changes] if self.was_given else []

    def end(self) -> Op[None] | None:
        """Release the locks of the supervisor."""
        return self.flow.resign()
