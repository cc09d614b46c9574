"""What Flow and AsyncFlow do: read a flow, wait for it and watch it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TypeAlias

from glidemq_orchestrate.attempts import client_supervision as tendings
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import flow_history
from glidemq_orchestrate.flows.nodes import leaf_names, named_nodes, node_logs, node_results
from glidemq_orchestrate.flows.ownership import Ownership
from glidemq_orchestrate.flows.status import FlowOutcome, FlowStatus, NodeStatus, Wait, raise_unless_completed
from glidemq_orchestrate.flows.watch import REST_MS, Quiet, Watch, begin_watch
from glidemq_orchestrate.flows.watched import FlowChange, NodeChange
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.queues import waits as waiting
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.wire.stored import as_time

Change: TypeAlias = "NodeChange | FlowChange"


class ReadingOperations:
    """Operations that change nothing about a flow.

    Attributes:
        ref: The flow, and the generation of it.
        clock: The server's time.
        owned: The owner of the flow, if this client renews its lease.
    """

    def __init__(self, ref: FlowRef, clock: Clock, owned: Ownership | None = None) -> None:
        self.ref, self.clock, self.owned = ref, clock, owned
        self._backend = backend_of(ref)

    @cached_property
    def _tending(self) -> tendings.Tending:
        """The supervision by this client, from its first wait on."""
        return tendings.for_flow(self.ref, self.clock)

    def read_changes(self, watch: Watch) -> Op[list[Change]]:
        """The next changes of a watch; renews the lease of the owner, and supervises where nobody does."""
        if self.owned is not None:
            yield from self.owned.renew_if_due(self.ref, self.clock)
        return (yield from tendings.step(self._tending, watch))

    def now(self) -> Op[datetime]:
        """The server's time, by which the times of flows and nodes go; to some milliseconds, UTC."""
        yield from ()  # without a call to the server
        return as_time(self.clock.now_ms())

    def status(self) -> Op[FlowStatus]:
        """State and counts, in constant time.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._backend.status(self.ref)

    def node(self, name: str) -> Op[NodeStatus]:
        """One node with its state.

        Raises:
            NodeNotFound: The flow has none of this name.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        return (yield from named_nodes(self.ref, [name]))[0]

    def nodes(self, names: Iterable[str] | None = None) -> Op[list[NodeStatus]]:
        """Every node with its state, dependencies before dependents. Read in pages of some 200 nodes.

        Args:
            names: Only these nodes, in this order; the cost grows with their number, not with the flow.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        if names is None:
            return (yield from self._backend.nodes(self.ref))
        return (yield from named_nodes(self.ref, names))

    def leaves(self) -> Op[list[str]]:
        """The names of the nodes that no other node waits for; much cheaper than ``nodes``.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        return leaf_names(self.ref)

    def results(self, names: Iterable[str] | None = None) -> Op[Mapping[str, Json]]:
        """The results of the nodes that have completed so far, by node name.

        Args:
            names: Only of these nodes, such as those of a fan-in; the cost grows with their number, not with
                the flow. None: of all.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        if names is None:
            return (yield from self._backend.results(self.ref))
        return (yield from node_results(self.ref, names))

    def waits(self, nodes: Iterable[NodeStatus] | None = None) -> Op[Mapping[str, Wait]]:
        """Why nodes that could run do not run now, and until when, by name.

        Of those that wait for a worker, for their next attempt or delay, for their ordering key, for a signal
        or for the jobs that they have added, and of those whose worker is silent; not of those that wait for
        other nodes. Those that wait for more than their turn come first. Of those that are ready to run all
        are there, of the others the first 100. For people: it costs five calls for each queue, and two for
        each node that is not ready; on the portable path (several slots of a cluster), where nodes have
        delays, one more for each node.

        Args:
            nodes: Of these nodes, as ``nodes`` has returned them; None: of all.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``node``; not where the nodes are given.
        """
        found = (yield from self.nodes()) if nodes is None else nodes
        return (yield from waiting.waits(self.ref, found, self.clock.now_ms()))

    def logs(self, after: Mapping[str, int], *, limit: int = 100) -> Op[Mapping[str, JobLogs]]:
        """The lines that some nodes have logged, the oldest first, and how many they have in total.

        Args:
            after: By node name, how many lines to leave out; -20: all but the last 20. Lines that are gone
                count as well. 200 nodes take two trips to the server, three where lines are gone.
            limit: The most lines of each node.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        return node_logs(self.ref, after, limit)

    def outcome(self) -> Op[FlowOutcome]:
        """The current status, results and failures."""
        return (yield from self._backend.outcome(self.ref, (yield from self._backend.status(self.ref))))

    def wait(self, *, timeout: Duration | None = None) -> Op[FlowOutcome]:
        """Wait until the flow has ended in any way; read the state from ``outcome.status``.

        Args:
            timeout: Longest time to wait, to the millisecond; None: for ever. The flow continues after a
                time-out.

        Raises:
            WaitTimeout: It has not ended in time.
        """
        limit = _limit(timeout)
        return tendings.wait(self._tending, self._waiting, limit)

    def _waiting(self, limit: int | None) -> Op[FlowOutcome]:
        if self.owned is not None:
            return self.owned.wait(self.ref, limit, self.clock)
        return self._backend.wait(self.ref, limit, self.clock)

    def resign(self) -> Op[None] | None:
        """Let others supervise at once, if this client does; the locks expire by themselves."""
        return tendings.resign(self._tending) if self._tending.led else None

    def supervise(self) -> Op[None]:
        """Look after the queues of the flow for a moment, where nobody supervises them.

        Flows with nodes that Node workers run need a supervisor. Workers of ours are that, and ``wait`` and
        ``watch`` while they last; for code that only reads the status now and then there is this call. It
        takes a trip to the server where somebody else supervises, else up to some seconds. Safe to repeat.
        Where the server refuses it, it does nothing.
        """
        yield from tendings.once(self._tending)

    def is_supervised(self) -> Op[bool]:
        """Whether somebody supervises the home of the flow.

        That is a worker of one of its queues, a client that waits for it or watches it, or
        ``glidemq supervise``. Without one, what Node workers end does not reach the flow.
        """
        return tendings.is_supervised(self.ref)

    def watch(self, *, after: str | None = None, timeout: Duration | None = None) -> Changes:
        """Yield the changes of the flow until it has ended; the last is a ``FlowChange``.

        Starts with every node that has left ``waiting-children``. No node is reported as started before the
        dependencies that its rule waits for are reported as ended. Every difference is reported once; a node
        that passes through several states between two reads is reported in the last of them, and no change is
        missed if events were trimmed unread. A node that runs again, or gets another end by hand, is a
        difference even if it is in the same state as before.

        Args:
            after: Continue after the ``position`` of a change, also one read by another process: only the
                differences since then, and the end; after the position of a ``FlowChange`` nothing, if the
                flow has not run since.
            timeout: Longest time to wait for the end, to the millisecond; None: for ever.

        Raises:
            ConfigurationError: ``after`` is not a position of this flow; raised immediately, the others while
                iterating.
            WaitTimeout: The flow has not ended in time. It continues; watch again after the last position.
            FlowNotFound, FlowExpired: The flow no longer exists.
        """
        limit = _limit(timeout)
        return Changes(self, begin_watch(self.ref, after, limit, self.clock))

    def watch_batches(
        self,
        *,
        after: str | None = None,
        timeout: Duration | None = None,
        rest: Duration = 5,
    ) -> Batches:
        """``watch`` in batches, as the changes are read together; the last one ends with a ``FlowChange``.

        For readers that look something up for each change, or that have other things to do: an
        empty batch comes when nothing has changed for a while.

        Args:
            after: As in ``watch``: the ``position`` of the last change of a batch.
            timeout: As in ``watch``.
            rest: The time after which an empty batch comes.

        Raises:
            ConfigurationError, WaitTimeout, FlowNotFound, FlowExpired: As ``watch``.
        """
        limit = _limit(timeout)
        pause = duration("rest", rest)
        rest_ms = min(milliseconds(pause), REST_MS)
        watch = begin_watch(self.ref, after, limit, self.clock, rest_ms=rest_ms)
        return Batches(self, watch, Quiet(self.clock, pause))

    def result(self, *, timeout: Duration | None = None) -> Op[Mapping[str, Json]]:
        """Wait for the results of all nodes.

        Raises:
            FlowFailed: It failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: It was cancelled.
            WaitTimeout: It has not ended in time.
        """
        outcome = yield from self.wait(timeout=timeout)
        raise_unless_completed(outcome)
        return outcome.results

    def owners(self) -> Op[Sequence[str]]:
        """The names of its owners, sorted, without those that are known to have vanished.

        Empty when it has none, and when it has ended.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._backend.owners(self.ref)

    def history(self) -> Op[Sequence[FlowStatus]]:
        """The status of each generation that is kept, oldest first: of the last 100, and of some before them.

        ``superseded_by`` is set in all but the last. With a generation that is no longer kept, the key
        that began it is forgotten too.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return flow_history(self.ref)


def _limit(timeout: Duration | None) -> int | None:
    return None if timeout is None else milliseconds(duration("timeout", timeout))


@dataclass(slots=True)
class Changes:
    """The changes of a flow, one by one."""

    flow: ReadingOperations
    watch: Watch

    def step(self) -> Op[Sequence[Change]] | None:
        """Read the next ones; None when the flow has ended."""
        return None if self.watch.is_over else self.flow.read_changes(self.watch)

    def end(self) -> Op[None] | None:
        """Let others supervise."""
        return self.flow.resign()


@dataclass(slots=True)
class Batches:
    """The changes of a flow as they are read together; an empty batch when it was quiet for long enough."""

    flow: ReadingOperations
    watch: Watch
    quiet: Quiet
    was_given: bool = False

    def step(self) -> Op[Sequence[Sequence[Change]]] | None:
        """Read the next batch, if there is one; None when the flow has ended."""
        if self.was_given:
            self.quiet.begin()
        return None if self.watch.is_over else self._read()

    def _read(self) -> Op[Sequence[Sequence[Change]]]:
        changes = yield from self.flow.read_changes(self.watch)
        self.was_given = bool(changes) or self.quiet.is_over()
        return [changes] if self.was_given else []

    def end(self) -> Op[None] | None:
        """Let others supervise."""
        return self.flow.resign()
