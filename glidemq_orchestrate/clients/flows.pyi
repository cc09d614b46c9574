# Made by `make generated` from the operations. Do not edit.
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.changing import FlowOperations
from glidemq_orchestrate.clients.operations.reading import Change
from glidemq_orchestrate.clients.operations.submitting import FlowHandle, ProducerOperations
from glidemq_orchestrate.flows.generation import FlowRef, OnExisting
from glidemq_orchestrate.flows.index import Label
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.plan import FlowPlan
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec
from glidemq_orchestrate.flows.status import FlowOutcome, FlowState, FlowStatus, NodeStatus, Wait
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.codec import Json, JsonLike
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

__all__ = ["AsyncFlow", "AsyncFlowProducer", "Flow", "FlowProducer"]

class Flow:
    """A flow on the server. Stores nothing of its state: every call reads it."""

    _operations: FlowOperations
    _run: Any

    def __init__(self, producer: SyncFacade, operations: FlowOperations) -> None: ...
    @property
    def id(self) -> str:
        """The id under which it can be found again."""

    @property
    def generation(self) -> int:
        """Which generation of the flow id this is: 0 for the first."""

    @property
    def home(self) -> str:
        """The queue that holds the flow and emits its events."""

    @property
    def _ref(self) -> FlowRef: ...
    def now(self) -> datetime:
        """The server's time, by which the times of flows and nodes go; to some milliseconds, UTC."""

    def status(self) -> FlowStatus:
        """State and counts, in constant time.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    def node(self, name: str) -> NodeStatus:
        """One node with its state.

        Raises:
            NodeNotFound: The flow has none of this name.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def nodes(self, names: Iterable[str] | None = None) -> list[NodeStatus]:
        """Every node with its state, dependencies before dependents. Read in pages of some 200 nodes.

        Args:
            names: Only these nodes, in this order; the cost grows with their number, not with the flow.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    def leaves(self) -> list[str]:
        """The names of the nodes that no other node waits for; much cheaper than ``nodes``.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """The results of the nodes that have completed so far, by node name.

        Args:
            names: Only of these nodes, such as those of a fan-in; the cost grows with their number, not with
                the flow. None: of all.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    def waits(self, nodes: Iterable[NodeStatus] | None = None) -> Mapping[str, Wait]:
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

    def logs(self, after: Mapping[str, int], *, limit: int = 100) -> Mapping[str, JobLogs]:
        """The lines that some nodes have logged, the oldest first, and how many they have in total.

        Args:
            after: By node name, how many lines to leave out; -20: all but the last 20. Lines that are gone
                count as well. 200 nodes take two trips to the server, three where lines are gone.
            limit: The most lines of each node.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    def outcome(self) -> FlowOutcome:
        """The current status, results and failures."""

    def wait(self, *, timeout: Duration | None = None) -> FlowOutcome:
        """Wait until the flow has ended in any way; read the state from ``outcome.status``.

        Args:
            timeout: Longest time to wait, to the millisecond; None: for ever. The flow continues after a
                time-out.

        Raises:
            WaitTimeout: It has not ended in time.
        """

    def supervise(self) -> None:
        """Look after the queues of the flow for a moment, where nobody supervises them.

        Flows with nodes that Node workers run need a supervisor. Workers of ours are that, and ``wait`` and
        ``watch`` while they last; for code that only reads the status now and then there is this call. It
        takes a trip to the server where somebody else supervises, else up to some seconds. Safe to repeat.
        Where the server refuses it, it does nothing.
        """

    def is_supervised(self) -> bool:
        """Whether somebody supervises the home of the flow.

        That is a worker of one of its queues, a client that waits for it or watches it, or
        ``glidemq supervise``. Without one, what Node workers end does not reach the flow.
        """

    def watch(self, *, after: str | None = None, timeout: Duration | None = None) -> Iterator[Change]:
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

    def watch_batches(
        self, *, after: str | None = None, timeout: Duration | None = None, rest: Duration = 5
    ) -> Iterator[Sequence[Change]]:
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

    def result(self, *, timeout: Duration | None = None) -> Mapping[str, Json]:
        """Wait for the results of all nodes.

        Raises:
            FlowFailed: It failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: It was cancelled.
            WaitTimeout: It has not ended in time.
        """

    def owners(self) -> Sequence[str]:
        """The names of its owners, sorted, without those that are known to have vanished.

        Empty when it has none, and when it has ended.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    def history(self) -> Sequence[FlowStatus]:
        """The status of each generation that is kept, oldest first: of the last 100, and of some before them.

        ``superseded_by`` is set in all but the last. With a generation that is no longer kept, the key
        that began it is forgotten too.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """End every node that has not ended; running handlers are stopped. Returns the state before.

        Args:
            reason: What status and errors say.
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """

    def renew(self) -> FlowState:
        """Renew the lease of the owner with which the flow was submitted or found. Returns the state.

        ``wait``, ``watch`` and ``result`` do so by themselves. An owner whose lease has ended owns a flow
        that still runs again.

        Raises:
            ConfigurationError: There is no owner here.
            Superseded, FlowNotFound: The flow cannot be owned any more.
        """

    def note(self, text: str) -> None:
        """Keep a short text with this generation, for the submitter of the flow: ``FlowStatus.note``.

        The last one counts. It changes nothing else, in any state, and goes with the record of the
        generation. A repeat is safe.

        Args:
            text: At most 256 characters, none of them a control character.

        Raises:
            ConfigurationError: The text is not valid.
            FlowNotFound: The flow no longer exists.
        """

    def retry_failed(self, *, generation: int | None = None) -> FlowState:
        """Run again every node that did not complete; the others keep their results. Returns the new state.

        Nodes that were skipped by hand or by their handler stay skipped. A deadline starts over. Does nothing
        to a flow that runs or has completed. Repeatable.

        Args:
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def restart(
        self, *, nodes: Iterable[str] | None = None, idempotency_key: str = "", generation: int | None = None
    ) -> FlowState:
        """Run all of it again, or from some nodes on, as a new generation. Returns the state of that one.

        A running flow is cancelled first. Afterwards this object stands for the new generation; no result of
        the one before is seen again, but those that it keeps. Nodes that running nodes had added are left
        out: they are added again. The new generation has the owner of this object, and none if it has none.

        Args:
            nodes: Only these run again, by name, with all that follow them, what has not completed by now
                and what has added nodes; the others keep their results. Unlike ``rerun`` it takes nodes that
                have added nodes. None: all of the flow runs again.
            idempotency_key: As in ``FlowProducer.submit``: with the same one a repeat for the same nodes is
                safe.
            generation: Only if this is the current generation, or if the key has begun one already.

        Raises:
            ConfigurationError: An argument is not valid, or ``nodes`` is empty. Nothing was changed.
            FlowConflict: The key has begun a generation for other nodes. Nothing was changed.
            NodeNotFound: The flow was submitted without a node of such a name. Nothing was changed.
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def rerun(
        self,
        node: str | None = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        dependents: bool = True,
        idempotency_key: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """Run nodes again that have ended, in a flow that runs or has ended: then it runs again.

        Afterwards they wait for a worker, or for dependencies that run again too; their last results are
        gone. Rules and policies decide about what follows, as in the first run. The cost grows with the
        nodes that run again, not with the flow.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: Instead of names: every node whose name matches this shell pattern, such as
                ``clean-*``, and the filters below. Nodes that have not ended are left out. Square brackets
                are a class of characters, and themselves too: ``part-[12]``, ``item[1]``, ``clean[*]``.
            state: Only nodes in this state: ``completed``, ``failed`` or ``skipped``.
            error: Only nodes that have failed for a reason that matches this shell pattern; in it square
                brackets are only a class of characters.
            dependents: Whether all nodes that follow run again too, as far as they have begun; those that
                run are stopped. If not, those that run or have ended keep what they have. One that waits for
                a worker or for its next attempt, or was only fetched, waits again until this node has ended,
                and then starts over with the new result. So does the next attempt of one that runs.
            idempotency_key: At most 256 characters: with the same key a repeat changes nothing, also after
                the nodes have ended again. The last ten keys of a node count.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that this call runs again, without what follows them.

        Raises:
            ConfigurationError: An argument is not valid. Nothing was changed.
            NodeNotFound, NodeNotEnded: One is not a node of the flow, or has not ended. Nothing was changed.
            NodeNotRepeatable: A node that would run again has added nodes to the flow, or its job was removed
                from the queue: ``restart`` the flow. Nothing was changed.
            FlowEnded, FlowIncomplete: The flow is being cancelled, or is not submitted completely.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def cancel_node(
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """End nodes that have not ended as failed; what follows, their policies and rules decide.

        The worker that runs one stops it, and its result is refused. Changes nothing about nodes that
        have ended, so a repeat is safe.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: As in ``rerun``, also the filter below.
            state: Only nodes in this state.
            reason: What status and errors say.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were cancelled.

        Raises:
            ConfigurationError, NodeNotFound, FlowEnded, FlowIncomplete, Superseded, FlowNotFound,
            FlowExpired: As ``rerun``.
        """

    def complete_node(
        self,
        node: str | None = None,
        result: JsonLike = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """End nodes as completed with this result, without running them; dependents continue with it.

        One that has ended otherwise, or with another result, gets this one, and all nodes that follow run
        again as far as they have begun, also in a flow that has ended. A worker that runs one is told to
        stop, and its result is refused. Nodes that have this result already are not changed, so a repeat is
        safe.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: As in ``rerun``, also the filters below.
            state: Only nodes in this state.
            error: Only nodes that have failed for such a reason.
            result: At most 1 MiB as JSON.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were changed.

        Raises:
            EncodeError, PayloadTooLarge: The result cannot be stored. Nothing was changed.
            ConfigurationError, NodeNotFound, NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded,
            FlowNotFound, FlowExpired: As ``rerun``.
        """

    def skip_node(
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """End nodes as skipped without running them; rules decide whether what follows is skipped too.

        A retry does not run them while the specification is unchanged; with a changed one they run. Otherwise
        as ``complete_node``; nodes that were skipped are not changed.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: As in ``rerun``, also the filters below.
            state: Only nodes in this state.
            error: Only nodes that have failed for such a reason.
            reason: Shown in the status.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were changed.

        Raises:
            ConfigurationError, NodeNotFound, NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded,
            FlowNotFound, FlowExpired: As ``rerun``.
        """

    def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """Add nodes to the flow while it runs, or after it has completed: then it runs again. All or none.

        Adding the same nodes again changes nothing, so a repeat is safe. Returns the state afterwards.

        Args:
            nodes: They may wait for nodes of the flow and for each other.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: They cannot be added as written; nothing was added.
            NodeExists: The flow has another node of that name; nothing was added.
            FlowEnded: The flow has failed or was cancelled; nothing was added.
            FlowNotFound, FlowExpired: The flow no longer exists.
        """

class AsyncFlow:
    """A flow on the server, with awaitable calls. Stores nothing of its state: every call reads it."""

    _operations: FlowOperations
    _run: Any

    def __init__(self, producer: AsyncFacade, operations: FlowOperations) -> None: ...
    @property
    def id(self) -> str:
        """The id under which it can be found again."""

    @property
    def generation(self) -> int:
        """Which generation of the flow id this is: 0 for the first."""

    @property
    def home(self) -> str:
        """The queue that holds the flow and emits its events."""

    @property
    def _ref(self) -> FlowRef: ...
    async def now(self) -> datetime:
        """The server's time, by which the times of flows and nodes go; to some milliseconds, UTC."""

    async def status(self) -> FlowStatus:
        """State and counts, in constant time.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    async def node(self, name: str) -> NodeStatus:
        """One node with its state.

        Raises:
            NodeNotFound: The flow has none of this name.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def nodes(self, names: Iterable[str] | None = None) -> list[NodeStatus]:
        """Every node with its state, dependencies before dependents. Read in pages of some 200 nodes.

        Args:
            names: Only these nodes, in this order; the cost grows with their number, not with the flow.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    async def leaves(self) -> list[str]:
        """The names of the nodes that no other node waits for; much cheaper than ``nodes``.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """The results of the nodes that have completed so far, by node name.

        Args:
            names: Only of these nodes, such as those of a fan-in; the cost grows with their number, not with
                the flow. None: of all.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    async def waits(self, nodes: Iterable[NodeStatus] | None = None) -> Mapping[str, Wait]:
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

    async def logs(self, after: Mapping[str, int], *, limit: int = 100) -> Mapping[str, JobLogs]:
        """The lines that some nodes have logged, the oldest first, and how many they have in total.

        Args:
            after: By node name, how many lines to leave out; -20: all but the last 20. Lines that are gone
                count as well. 200 nodes take two trips to the server, three where lines are gone.
            limit: The most lines of each node.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    async def outcome(self) -> FlowOutcome:
        """The current status, results and failures."""

    async def wait(self, *, timeout: Duration | None = None) -> FlowOutcome:
        """Wait until the flow has ended in any way; read the state from ``outcome.status``.

        Args:
            timeout: Longest time to wait, to the millisecond; None: for ever. The flow continues after a
                time-out.

        Raises:
            WaitTimeout: It has not ended in time.
        """

    async def supervise(self) -> None:
        """Look after the queues of the flow for a moment, where nobody supervises them.

        Flows with nodes that Node workers run need a supervisor. Workers of ours are that, and ``wait`` and
        ``watch`` while they last; for code that only reads the status now and then there is this call. It
        takes a trip to the server where somebody else supervises, else up to some seconds. Safe to repeat.
        Where the server refuses it, it does nothing.
        """

    async def is_supervised(self) -> bool:
        """Whether somebody supervises the home of the flow.

        That is a worker of one of its queues, a client that waits for it or watches it, or
        ``glidemq supervise``. Without one, what Node workers end does not reach the flow.
        """

    def watch(self, *, after: str | None = None, timeout: Duration | None = None) -> AsyncIterator[Change]:
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

    def watch_batches(
        self, *, after: str | None = None, timeout: Duration | None = None, rest: Duration = 5
    ) -> AsyncIterator[Sequence[Change]]:
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

    async def result(self, *, timeout: Duration | None = None) -> Mapping[str, Json]:
        """Wait for the results of all nodes.

        Raises:
            FlowFailed: It failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: It was cancelled.
            WaitTimeout: It has not ended in time.
        """

    async def owners(self) -> Sequence[str]:
        """The names of its owners, sorted, without those that are known to have vanished.

        Empty when it has none, and when it has ended.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    async def history(self) -> Sequence[FlowStatus]:
        """The status of each generation that is kept, oldest first: of the last 100, and of some before them.

        ``superseded_by`` is set in all but the last. With a generation that is no longer kept, the key
        that began it is forgotten too.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    async def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """End every node that has not ended; running handlers are stopped. Returns the state before.

        Args:
            reason: What status and errors say.
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """

    async def renew(self) -> FlowState:
        """Renew the lease of the owner with which the flow was submitted or found. Returns the state.

        ``wait``, ``watch`` and ``result`` do so by themselves. An owner whose lease has ended owns a flow
        that still runs again.

        Raises:
            ConfigurationError: There is no owner here.
            Superseded, FlowNotFound: The flow cannot be owned any more.
        """

    async def note(self, text: str) -> None:
        """Keep a short text with this generation, for the submitter of the flow: ``FlowStatus.note``.

        The last one counts. It changes nothing else, in any state, and goes with the record of the
        generation. A repeat is safe.

        Args:
            text: At most 256 characters, none of them a control character.

        Raises:
            ConfigurationError: The text is not valid.
            FlowNotFound: The flow no longer exists.
        """

    async def retry_failed(self, *, generation: int | None = None) -> FlowState:
        """Run again every node that did not complete; the others keep their results. Returns the new state.

        Nodes that were skipped by hand or by their handler stay skipped. A deadline starts over. Does nothing
        to a flow that runs or has completed. Repeatable.

        Args:
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def restart(
        self, *, nodes: Iterable[str] | None = None, idempotency_key: str = "", generation: int | None = None
    ) -> FlowState:
        """Run all of it again, or from some nodes on, as a new generation. Returns the state of that one.

        A running flow is cancelled first. Afterwards this object stands for the new generation; no result of
        the one before is seen again, but those that it keeps. Nodes that running nodes had added are left
        out: they are added again. The new generation has the owner of this object, and none if it has none.

        Args:
            nodes: Only these run again, by name, with all that follow them, what has not completed by now
                and what has added nodes; the others keep their results. Unlike ``rerun`` it takes nodes that
                have added nodes. None: all of the flow runs again.
            idempotency_key: As in ``FlowProducer.submit``: with the same one a repeat for the same nodes is
                safe.
            generation: Only if this is the current generation, or if the key has begun one already.

        Raises:
            ConfigurationError: An argument is not valid, or ``nodes`` is empty. Nothing was changed.
            FlowConflict: The key has begun a generation for other nodes. Nothing was changed.
            NodeNotFound: The flow was submitted without a node of such a name. Nothing was changed.
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def rerun(
        self,
        node: str | None = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        dependents: bool = True,
        idempotency_key: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """Run nodes again that have ended, in a flow that runs or has ended: then it runs again.

        Afterwards they wait for a worker, or for dependencies that run again too; their last results are
        gone. Rules and policies decide about what follows, as in the first run. The cost grows with the
        nodes that run again, not with the flow.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: Instead of names: every node whose name matches this shell pattern, such as
                ``clean-*``, and the filters below. Nodes that have not ended are left out. Square brackets
                are a class of characters, and themselves too: ``part-[12]``, ``item[1]``, ``clean[*]``.
            state: Only nodes in this state: ``completed``, ``failed`` or ``skipped``.
            error: Only nodes that have failed for a reason that matches this shell pattern; in it square
                brackets are only a class of characters.
            dependents: Whether all nodes that follow run again too, as far as they have begun; those that
                run are stopped. If not, those that run or have ended keep what they have. One that waits for
                a worker or for its next attempt, or was only fetched, waits again until this node has ended,
                and then starts over with the new result. So does the next attempt of one that runs.
            idempotency_key: At most 256 characters: with the same key a repeat changes nothing, also after
                the nodes have ended again. The last ten keys of a node count.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that this call runs again, without what follows them.

        Raises:
            ConfigurationError: An argument is not valid. Nothing was changed.
            NodeNotFound, NodeNotEnded: One is not a node of the flow, or has not ended. Nothing was changed.
            NodeNotRepeatable: A node that would run again has added nodes to the flow, or its job was removed
                from the queue: ``restart`` the flow. Nothing was changed.
            FlowEnded, FlowIncomplete: The flow is being cancelled, or is not submitted completely.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def cancel_node(
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """End nodes that have not ended as failed; what follows, their policies and rules decide.

        The worker that runs one stops it, and its result is refused. Changes nothing about nodes that
        have ended, so a repeat is safe.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: As in ``rerun``, also the filter below.
            state: Only nodes in this state.
            reason: What status and errors say.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were cancelled.

        Raises:
            ConfigurationError, NodeNotFound, FlowEnded, FlowIncomplete, Superseded, FlowNotFound,
            FlowExpired: As ``rerun``.
        """

    async def complete_node(
        self,
        node: str | None = None,
        result: JsonLike = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """End nodes as completed with this result, without running them; dependents continue with it.

        One that has ended otherwise, or with another result, gets this one, and all nodes that follow run
        again as far as they have begun, also in a flow that has ended. A worker that runs one is told to
        stop, and its result is refused. Nodes that have this result already are not changed, so a repeat is
        safe.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: As in ``rerun``, also the filters below.
            state: Only nodes in this state.
            error: Only nodes that have failed for such a reason.
            result: At most 1 MiB as JSON.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were changed.

        Raises:
            EncodeError, PayloadTooLarge: The result cannot be stored. Nothing was changed.
            ConfigurationError, NodeNotFound, NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded,
            FlowNotFound, FlowExpired: As ``rerun``.
        """

    async def skip_node(
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """End nodes as skipped without running them; rules decide whether what follows is skipped too.

        A retry does not run them while the specification is unchanged; with a changed one they run. Otherwise
        as ``complete_node``; nodes that were skipped are not changed.

        Args:
            node: The node.
            nodes: Several, by name.
            pattern: As in ``rerun``, also the filters below.
            state: Only nodes in this state.
            error: Only nodes that have failed for such a reason.
            reason: Shown in the status.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were changed.

        Raises:
            ConfigurationError, NodeNotFound, NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded,
            FlowNotFound, FlowExpired: As ``rerun``.
        """

    async def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """Add nodes to the flow while it runs, or after it has completed: then it runs again. All or none.

        Adding the same nodes again changes nothing, so a repeat is safe. Returns the state afterwards.

        Args:
            nodes: They may wait for nodes of the flow and for each other.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: They cannot be added as written; nothing was added.
            NodeExists: The flow has another node of that name; nothing was added.
            FlowEnded: The flow has failed or was cancelled; nothing was added.
            FlowNotFound, FlowExpired: The flow no longer exists.
        """

class FlowProducer(SyncFacade):
    """Submits flows to one server and finds them again.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.
    """

    _operations: ProducerOperations

    def __init__(
        self, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None: ...
    def submit(
        self,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        on_existing: OnExisting = "attach",
        idempotency_key: str = "",
        owner: Owner | None = None,
        require_workers: bool = False,
    ) -> Flow:
        """Submit a flow, all or nothing: every job is created, and those without dependencies may run.

        Args:
            spec: 1 to 100,000 nodes.
            flow_id: The identity of the flow. The same id and an equal flow attach to the existing one, even
                while another submission is under way; so a repeat is always safe. None: a new id.
            on_existing: What to do when there is a flow of this id. ``attach``: join it as it is; another
                specification is refused. ``retry_failed``: run again what did not complete. With another
                specification this begins a new generation of the flow that keeps the results of the nodes
                that have completed, and that have not changed in queue, job, data, dependencies, rule,
                fallbacks or ``must_pass``, nor follow one that has; see ``plan``. ``restart``: a new
                generation that keeps nothing, with the same or another specification. A new generation
                cancels the one before.
            idempotency_key: The token of the caller, such as the id of a click or of a run, at most 256
                characters. A restart with the key of an earlier one finds the generation that that one began,
                so it is safe to repeat, with the same specification, as long as that generation is kept: see
                ``Flow.history``. Without a key each restart begins another; only of those at the same moment
                several may share one. It needs a ``flow_id``.
            owner: The owner of the flow: it is cancelled, or kept, when its last owner has vanished. A flow
                that runs already gets one owner more. A new generation has only the owner that its
                caller gave. See ``Owner``.
            require_workers: Refuse unless live workers serve every queue and have a handler for every job.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The flow cannot run as written; nothing was sent.
            QueueNotServed, HandlerNotFound: ``require_workers``, and some are missing; nothing was sent.
            FlowConflict: Another flow has this id, or a job of a node exists already; nothing was changed.
                Also where a restart has the key of one with another specification.
                Also where a new generation was requested with queues in several slots of a cluster, and those
                of the flow are in one.
            GenerationTaken: Other callers kept beginning generations; nothing was changed.
            TransportError: The server is unreachable or overloaded. Repeat with the same ``flow_id``.
        """

    def check_workers(self, jobs: FlowSpec | Mapping[str, Iterable[str]]) -> None:
        """Look whether live workers can run jobs now; a worker of Node.js is assumed to have every handler.

        Args:
            jobs: A flow, or the names of jobs by queue.

        Raises:
            QueueNotServed: Queues have no live worker: ``exc.queues``.
            HandlerNotFound: No live worker of a queue has a handler for a job: ``exc.missing``, by queue.
        """

    def now(self) -> datetime:
        """The server's time, by which the times of flows go; to some milliseconds, UTC."""

    def supervise(self, home: str) -> Sequence[str]:
        """``Flow.supervise`` for all flows of a home queue.

        Args:
            home: The queue of most nodes of these flows; ``flow.home`` is its name.

        Returns:
            The queues that nobody supervises, and that the server does not let this client supervise.
        """

    def plan(self, spec: FlowSpec, *, flow_id: str) -> FlowPlan:
        """What ``submit(spec, flow_id=flow_id, on_existing="retry_failed")`` would run and keep, and why.

        Changes nothing. With an equal specification, the flow is repaired in its current generation: what
        failed, was cancelled, or was skipped because of others would run; all else stays as it is, also nodes
        that have added nodes, those that they added, and those that were skipped by hand or by their handler.
        A running flow continues, and one that has completed stays as it is.

        Raises:
            FlowNotFound: There is no flow with this id.
            FlowExpired, FlowConflict: The submission would be refused: nothing is left of what an equal
                specification would repair, or the flow cannot continue with the queues of another one.
            InvalidFlow, ConfigurationError, EncodeError, PayloadTooLarge: As ``submit``.
        """

    def get(self, flow_id: str, *, owner: Owner | None = None) -> Flow:
        """Find a flow by its id: its current generation.

        Args:
            flow_id: As for ``submit``.
            owner: The owner: it owns the flow from the first ``renew``, ``wait``, ``watch`` or ``result`` on.

        Raises:
            FlowNotFound: There is none with this id.
        """

    def statuses(self, flows: Iterable[FlowHandle]) -> Sequence[FlowStatus | None]:
        """The status of each of many flows, in this order, 250 in a trip; None for one that is gone.

        Each is that of the generation that the handle stands for; ``superseded_by`` is a later one.
        """

    def list(
        self,
        *,
        state: FlowState | str | None = None,
        label: Label | None = None,
        since: datetime | None = None,
        before: FlowStatus | None = None,
        limit: int = 100,
    ) -> Sequence[FlowStatus]:
        """The newest flows that match all filters, newest first. A flow is listed until its retention ends.

        Args:
            state: Only flows in this state.
            label: Only flows with this label: key and value.
            since: Only flows submitted at this time or later; with a time zone.
            before: Continue after this flow, the last of the previous page.
            limit: Most flows to list, 1 to 10,000.

        Raises:
            ConfigurationError: A filter is not valid; nothing was sent.
        """

class AsyncFlowProducer(AsyncFacade):
    """Submits flows to one server and finds them again, with awaitable calls, for one event loop.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.
    """

    _operations: ProducerOperations

    def __init__(
        self, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None: ...
    async def submit(
        self,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        on_existing: OnExisting = "attach",
        idempotency_key: str = "",
        owner: Owner | None = None,
        require_workers: bool = False,
    ) -> AsyncFlow:
        """Submit a flow, all or nothing: every job is created, and those without dependencies may run.

        Args:
            spec: 1 to 100,000 nodes.
            flow_id: The identity of the flow. The same id and an equal flow attach to the existing one, even
                while another submission is under way; so a repeat is always safe. None: a new id.
            on_existing: What to do when there is a flow of this id. ``attach``: join it as it is; another
                specification is refused. ``retry_failed``: run again what did not complete. With another
                specification this begins a new generation of the flow that keeps the results of the nodes
                that have completed, and that have not changed in queue, job, data, dependencies, rule,
                fallbacks or ``must_pass``, nor follow one that has; see ``plan``. ``restart``: a new
                generation that keeps nothing, with the same or another specification. A new generation
                cancels the one before.
            idempotency_key: The token of the caller, such as the id of a click or of a run, at most 256
                characters. A restart with the key of an earlier one finds the generation that that one began,
                so it is safe to repeat, with the same specification, as long as that generation is kept: see
                ``Flow.history``. Without a key each restart begins another; only of those at the same moment
                several may share one. It needs a ``flow_id``.
            owner: The owner of the flow: it is cancelled, or kept, when its last owner has vanished. A flow
                that runs already gets one owner more. A new generation has only the owner that its
                caller gave. See ``Owner``.
            require_workers: Refuse unless live workers serve every queue and have a handler for every job.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The flow cannot run as written; nothing was sent.
            QueueNotServed, HandlerNotFound: ``require_workers``, and some are missing; nothing was sent.
            FlowConflict: Another flow has this id, or a job of a node exists already; nothing was changed.
                Also where a restart has the key of one with another specification.
                Also where a new generation was requested with queues in several slots of a cluster, and those
                of the flow are in one.
            GenerationTaken: Other callers kept beginning generations; nothing was changed.
            TransportError: The server is unreachable or overloaded. Repeat with the same ``flow_id``.
        """

    async def check_workers(self, jobs: FlowSpec | Mapping[str, Iterable[str]]) -> None:
        """Look whether live workers can run jobs now; a worker of Node.js is assumed to have every handler.

        Args:
            jobs: A flow, or the names of jobs by queue.

        Raises:
            QueueNotServed: Queues have no live worker: ``exc.queues``.
            HandlerNotFound: No live worker of a queue has a handler for a job: ``exc.missing``, by queue.
        """

    async def now(self) -> datetime:
        """The server's time, by which the times of flows go; to some milliseconds, UTC."""

    async def supervise(self, home: str) -> Sequence[str]:
        """``Flow.supervise`` for all flows of a home queue.

        Args:
            home: The queue of most nodes of these flows; ``flow.home`` is its name.

        Returns:
            The queues that nobody supervises, and that the server does not let this client supervise.
        """

    async def plan(self, spec: FlowSpec, *, flow_id: str) -> FlowPlan:
        """What ``submit(spec, flow_id=flow_id, on_existing="retry_failed")`` would run and keep, and why.

        Changes nothing. With an equal specification, the flow is repaired in its current generation: what
        failed, was cancelled, or was skipped because of others would run; all else stays as it is, also nodes
        that have added nodes, those that they added, and those that were skipped by hand or by their handler.
        A running flow continues, and one that has completed stays as it is.

        Raises:
            FlowNotFound: There is no flow with this id.
            FlowExpired, FlowConflict: The submission would be refused: nothing is left of what an equal
                specification would repair, or the flow cannot continue with the queues of another one.
            InvalidFlow, ConfigurationError, EncodeError, PayloadTooLarge: As ``submit``.
        """

    async def get(self, flow_id: str, *, owner: Owner | None = None) -> AsyncFlow:
        """Find a flow by its id: its current generation.

        Args:
            flow_id: As for ``submit``.
            owner: The owner: it owns the flow from the first ``renew``, ``wait``, ``watch`` or ``result`` on.

        Raises:
            FlowNotFound: There is none with this id.
        """

    async def statuses(self, flows: Iterable[FlowHandle]) -> Sequence[FlowStatus | None]:
        """The status of each of many flows, in this order, 250 in a trip; None for one that is gone.

        Each is that of the generation that the handle stands for; ``superseded_by`` is a later one.
        """

    async def list(
        self,
        *,
        state: FlowState | str | None = None,
        label: Label | None = None,
        since: datetime | None = None,
        before: FlowStatus | None = None,
        limit: int = 100,
    ) -> Sequence[FlowStatus]:
        """The newest flows that match all filters, newest first. A flow is listed until its retention ends.

        Args:
            state: Only flows in this state.
            label: Only flows with this label: key and value.
            since: Only flows submitted at this time or later; with a time zone.
            before: Continue after this flow, the last of the previous page.
            limit: Most flows to list, 1 to 10,000.

        Raises:
            ConfigurationError: A filter is not valid; nothing was sent.
        """
