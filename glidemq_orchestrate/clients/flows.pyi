# Made by `make generated` from the operations. Do not edit.
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.array import ArrayOperations
from glidemq_orchestrate.clients.operations.flow import FlowOperations
from glidemq_orchestrate.clients.operations.flow_reading import Change
from glidemq_orchestrate.clients.operations.producer import FlowHandle, ProducerOperations
from glidemq_orchestrate.flows.elements import ArrayCounts, FailedElement
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import Label
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.plan import FlowPlan
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec
from glidemq_orchestrate.flows.status import FlowOutcome, FlowState, FlowStatus, NodeStatus, OnExisting, Wait
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs.history import JobHistory
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.queues.failure_groups import FailureGroups
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

__all__ = ["AsyncFlow", "AsyncFlowArray", "AsyncFlowProducer", "Flow", "FlowArray", "FlowProducer"]

class FlowArray:
    """A handle of an array node of a flow, from ``Flow.array``. It caches no state."""

    _operations: ArrayOperations
    _run: Any

    def __init__(self, flow: Any, operations: ArrayOperations) -> None: ...
    def counts(self) -> ArrayCounts:
        """Read how many elements have completed, failed and so on, in constant time.

        Raises:
            NodeNotFound: The flow has no node of this name.
            ConfigurationError: The node is not an array.
            Superseded, FlowNotFound, FlowExpired: The flow can no longer be read.
        """

    def element(self, index: int) -> NodeStatus:
        """Read one element in the form of a node, as ``Flow.node("clean[4711]")``.

        Raises:
            NodeNotFound: There is no such array or element.
            ConfigurationError, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

    def item(self, index: int) -> Any:
        """Read the item of an element: ``ctx.data`` of its handler, if the node has no data of its own.

        Raises:
            NodeNotFound: There is no such array or element.
            ResultRemoved: The items were removed with the job of the array.
            ConfigurationError, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

    def results(self, start: int = 0, stop: int | None = None) -> Mapping[int, Any]:
        """Read the results of the elements completed so far, by position.

        A page of 1,000 elements costs two calls, and 20 pages one round trip. ``iter_results`` reads a large
        array without holding it in memory.

        Args:
            start: The first position.
            stop: The position after the last one; None: the end of the array.

        Raises:
            ResultRemoved: The job of the array was removed with its results.
            ConfigurationError: A position is not valid, or the node is not an array.
            NodeNotFound, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

    def iter_results(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Any]]:
        """Read the same results step by step: pairs of position and result, in order.

        Raises:
            ResultRemoved, ConfigurationError, NodeNotFound, Superseded, FlowNotFound, FlowExpired: As
                ``results``.
        """

    def failed(self, *, limit: int = 1000) -> list[FailedElement]:
        """Read elements that have failed for good, by position.

        Args:
            limit: Read at most this many of them: of more, any.

        Raises:
            ConfigurationError, NodeNotFound, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

class AsyncFlowArray:
    """A handle of an array node of a flow, from ``AsyncFlow.array``, with awaitable calls."""

    _operations: ArrayOperations
    _run: Any

    def __init__(self, flow: Any, operations: ArrayOperations) -> None: ...
    async def counts(self) -> ArrayCounts:
        """Read how many elements have completed, failed and so on, in constant time.

        Raises:
            NodeNotFound: The flow has no node of this name.
            ConfigurationError: The node is not an array.
            Superseded, FlowNotFound, FlowExpired: The flow can no longer be read.
        """

    async def element(self, index: int) -> NodeStatus:
        """Read one element in the form of a node, as ``Flow.node("clean[4711]")``.

        Raises:
            NodeNotFound: There is no such array or element.
            ConfigurationError, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

    async def item(self, index: int) -> Any:
        """Read the item of an element: ``ctx.data`` of its handler, if the node has no data of its own.

        Raises:
            NodeNotFound: There is no such array or element.
            ResultRemoved: The items were removed with the job of the array.
            ConfigurationError, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

    async def results(self, start: int = 0, stop: int | None = None) -> Mapping[int, Any]:
        """Read the results of the elements completed so far, by position.

        A page of 1,000 elements costs two calls, and 20 pages one round trip. ``iter_results`` reads a large
        array without holding it in memory.

        Args:
            start: The first position.
            stop: The position after the last one; None: the end of the array.

        Raises:
            ResultRemoved: The job of the array was removed with its results.
            ConfigurationError: A position is not valid, or the node is not an array.
            NodeNotFound, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

    def iter_results(self, start: int = 0, stop: int | None = None) -> AsyncIterator[tuple[int, Any]]:
        """Read the same results step by step: pairs of position and result, in order.

        Raises:
            ResultRemoved, ConfigurationError, NodeNotFound, Superseded, FlowNotFound, FlowExpired: As
                ``results``.
        """

    async def failed(self, *, limit: int = 1000) -> list[FailedElement]:
        """Read elements that have failed for good, by position.

        Args:
            limit: Read at most this many of them: of more, any.

        Raises:
            ConfigurationError, NodeNotFound, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """

class Flow:
    """A handle of a flow on the server. It caches no state: every call reads it."""

    _operations: FlowOperations
    _run: Any

    def __init__(self, producer: SyncFacade, operations: FlowOperations) -> None: ...
    @property
    def id(self) -> str:
        """The id of the flow, for ``get``."""

    @property
    def generation(self) -> int:
        """The generation of the flow id, 0 for the first."""

    @property
    def home(self) -> str:
        """The queue that holds the flow and emits its events."""

    @property
    def _ref(self) -> FlowRef: ...
    def array(self, name: str) -> FlowArray:
        """The elements of an array node. Makes no call: the methods of the handle do."""

    def now(self) -> datetime:
        """Return the server's time, by which times of flows are set: UTC, within a few milliseconds."""

    def status(self) -> FlowStatus:
        """Read state and counts, in constant time.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    def node(self, name: str) -> NodeStatus:
        """Read one node with its state, or an element of an array: ``clean[4711]``.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def nodes(self, names: Iterable[str] | None = None) -> list[NodeStatus]:
        """Read every node with its state, dependencies before dependents, in pages of about 200 nodes.

        Args:
            names: Only these nodes, in this order; the cost grows with their number, not with the flow.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    def leaves(self) -> list[str]:
        """List the names of the nodes without dependents; much cheaper than ``nodes``.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Any]:
        """Read the results of the nodes completed so far, by node name, in no particular order.

        Args:
            names: Only these nodes, such as the dependencies of a fan-in; the cost grows with their number,
                not with the flow. None: all.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    def waits(self, nodes: Iterable[NodeStatus] | None = None) -> Mapping[str, Wait]:
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

    def failures(self) -> FailureGroups:
        """Group the failed nodes by cause, largest group first; see ``Queue.failures``.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    def logs(self, after: Mapping[str, int], *, limit: int = 100) -> Mapping[str, JobLogs]:
        """Read log lines of some nodes, oldest first, and their total numbers.

        Args:
            after: The number of lines to skip, by node name; -20: all but the last 20. Removed lines count
                too. 200 nodes take two round trips, or three if lines were removed.
            limit: The max number of lines for each node.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    def node_history(self, name: str) -> JobHistory:
        """Read what happened to the job of a node, as ``Queue.history``.

        Raises:
            NodeNotFound: The flow has no node of this name.
            FlowNotFound, FlowExpired: The flow no longer exists.
            JobNotFound: The job was removed.
        """

    def outcome(self) -> FlowOutcome:
        """Read the current status, results and failures."""

    def wait(self, *, timeout: Duration | None = None) -> FlowOutcome:
        """Wait until the flow has ended, in any state; ``outcome.status`` has the state.

        Survives outages of the server, such as a failover, and logs those of over a second.

        Args:
            timeout: The max time to wait, to the millisecond; None: no limit. The flow continues after a
                timeout.

        Raises:
            WaitTimeout: The flow has not ended in time.
            TransportError: The server was unreachable at the end of the time.
        """

    def supervise(self) -> None:
        """Supervise the queues of the flow once, unless they have a supervisor.

        Flows with nodes on Node workers need a supervisor: a Python worker, or a running ``wait`` or
        ``watch``. Use this call in code that only polls the status. It takes one round trip if the queues
        have a supervisor, otherwise up to a few seconds. It does nothing if the server refuses it. Safe to
        repeat.
        """

    def is_supervised(self) -> bool:
        """Whether the home queue of the flow has a supervisor.

        A supervisor is a Python worker of one of the flow's queues, ``glidemq supervise``, or a client in
        ``wait`` or ``watch``. Without one, the flow does not advance after jobs that Node workers have ended.
        """

    def watch(self, *, after: str | None = None, timeout: Duration | None = None) -> Iterator[Change]:
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

    def watch_batches(
        self, *, after: str | None = None, timeout: Duration | None = None, rest: Duration = 5
    ) -> Iterator[Sequence[Change]]:
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

    def result(self, *, timeout: Duration | None = None) -> Mapping[str, Any]:
        """Wait for the results of all nodes, by node name, in no particular order.

        Survives outages as ``wait``.

        Raises:
            FlowFailed: The flow failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: The flow was cancelled.
            WaitTimeout: The flow has not ended in time. The message has the reason why a node waits, unless
                all nodes only wait for their turn; finding it may take longer than ``timeout``.
            TransportError: The server was unreachable at the end of the time.
        """

    def owners(self) -> Sequence[str]:
        """List the names of its owners, sorted, without those with an expired lease.

        Empty if the flow has no owners or has ended.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    def history(self) -> Sequence[FlowStatus]:
        """Read the status of each stored generation, oldest first: the last 100, and some before them.

        ``superseded_by`` is set in all but the last. When a generation is removed, its idempotency key is
        removed too.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """End every node that has not ended, and stop running handlers. Returns the previous state.

        Args:
            reason: The text for status and errors.
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """

    def renew(self) -> FlowState:
        """Renew the lease of the owner given to ``submit`` or ``get``. Returns the state of the flow.

        ``wait``, ``watch`` and ``result`` do so automatically. If the lease has ended and the flow still
        runs, the owner owns it again.

        Raises:
            ConfigurationError: This object has no owner.
            Superseded, FlowNotFound: The flow can no longer have an owner.
        """

    def note(self, text: str) -> None:
        """Store a short text in this generation for the submitter of the flow: ``FlowStatus.note``.

        A later note replaces it. It has no other effect, in any state, and is removed with the record of the
        generation. Safe to repeat.

        Args:
            text: At most 256 characters, none of them a control character.

        Raises:
            ConfigurationError: The text is not valid.
            FlowNotFound: The flow no longer exists.
        """

    def track(self) -> None:
        """Track the flow with its later generations: ``watch_tracked`` of its home queue reports changes.

        It stays tracked until ``untrack``. Repeatable.

        Raises:
            InvalidJob: The queue tracks 1,000 jobs and flows, which is the limit.
        """

    def untrack(self) -> None:
        """Stop tracking the flow. Repeatable."""

    def retry_failed(self, *, generation: int | None = None) -> FlowState:
        """Rerun every node that did not complete; the others keep their results. Returns the new state.

        Nodes skipped manually or by their handler stay skipped. The deadline starts over. A running or
        completed flow is unchanged. Repeatable.

        Args:
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def restart(
        self, *, nodes: Iterable[str] | None = None, idempotency_key: str = "", generation: int | None = None
    ) -> FlowState:
        """Rerun the whole flow, or from some nodes on, as a new generation; returns its state.

        A running flow is cancelled first. Afterwards this object represents the new generation, which has
        only the results that it keeps. Nodes added at run time are left out: their creators add them again.
        The new generation has the owner of this object, if any.

        Args:
            nodes: The names of the nodes to rerun, None for all. Nodes that follow them rerun too, and so do
                nodes that have not completed or that have added nodes; all others keep their results. Unlike
                ``rerun``, this accepts nodes that have added nodes.
            idempotency_key: As in ``FlowProducer.submit``: a repeat with the same key and nodes is safe.
            generation: Only if this is the current generation, or if the key has already begun one.

        Raises:
            ConfigurationError: An argument is not valid, or ``nodes`` is empty. Nothing was changed.
            FlowConflict: The key has begun a generation with other nodes. Nothing was changed.
            NodeNotFound: The submitted flow has no node of this name. Nothing was changed.
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
        """Rerun nodes that have ended. A flow that has ended runs again.

        Afterwards they wait for a worker, or for dependencies that rerun too; their previous results are
        deleted. Rules and policies apply to the following nodes as in the first run. The cost grows with the
        number of rerun nodes, not with the flow.

        Args:
            node: The node, or an element of an array, ``clean[17]``. Only that element runs again; an array
                that has ended opens for it, also for elements that it had not run when it was stopped.
            nodes: Several, by name.
            pattern: Instead of names: every node that has ended and matches this shell pattern, such as
                ``clean-*``, and the filters below. Square brackets match a class of characters, and also
                themselves: ``part-[12]``, ``item[1]``, ``clean[*]``.
            state: Only nodes in this state: ``completed``, ``failed`` or ``skipped``.
            error: Only nodes with a failure reason that matches this shell pattern. Here, square brackets
                match only a class of characters.
            dependents: True: all following nodes that have begun rerun too; running ones are stopped. False:
                nodes that run or have ended continue with the old result. A following node that has not
                started (it waits for a worker or its next attempt, or was only fetched) waits until this node
                has ended. Then it starts over with the new result. So does the next attempt of a running
                node.
            idempotency_key: At most 256 characters. A repeat with the same key changes nothing, even after
                the nodes have ended again. Each node stores its last ten keys, an element its last one.
            generation: Only if this is the current generation.

        Returns:
            The names of the rerun nodes, without those that follow them.

        Raises:
            ConfigurationError: An argument is not valid. Nothing was changed.
            NodeNotFound, NodeNotEnded: The flow has no such node, or the node has not ended. Nothing was
                changed.
            NodeNotRepeatable: A node to rerun has added nodes to the flow, or its job was removed from the
                queue: ``restart`` the flow. Nothing was changed.
            FlowEnded, FlowIncomplete: The flow is being cancelled, or its submission is incomplete.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    def retry_failures(
        self, group: str, *, limit: int = 1000, generation: int | None = None
    ) -> Sequence[str]:
        """Rerun the failed nodes of a group, oldest first, with the nodes that they held back.

        A repeat continues with the next nodes. Otherwise as ``rerun``.

        Args:
            group: A group of ``failures``.
            limit: The max number of failed nodes to rerun.
            generation: Only if this is the current generation.

        Returns:
            The names of the rerun nodes, without those that follow them, and without those that somebody else
            has rerun with success meanwhile. Empty if no failed node is in the group.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
            NodeNotEnded: Somebody else reruns one of them. Nothing was changed.
            NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded, FlowNotFound, FlowExpired: As ``rerun``.
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
        """End nodes as failed before they have ended; policies and rules decide what follows.

        A running node is stopped, and its result is refused. Nodes that have ended are unchanged, so a repeat
        is safe.

        Args:
            node: The node, or an element of an array, ``clean[17]``.
            nodes: Several, by name.
            pattern: As in ``rerun``, with the filter below.
            state: Only nodes in this state.
            reason: The text for status and errors.
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

        A node that has ended differently gets this result, and all following nodes that have begun rerun,
        even in a flow that has ended. A running node is stopped, and its own result is refused. Nodes that
        already have this result are unchanged, so a repeat is safe.

        Args:
            node: The node, or an element of an array, ``clean[17]``.
            nodes: Several, by name.
            pattern: As in ``rerun``, with the filters below.
            state: Only nodes in this state.
            error: Only nodes with such a failure reason, as in ``rerun``.
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
        """End nodes as skipped without running them; rules decide whether following nodes are skipped too.

        A retry runs them only with a changed specification. Nodes that are already skipped are unchanged.
        Otherwise as ``complete_node``.

        Args:
            node: The node, or an element of an array, ``clean[17]``.
            nodes: Several, by name.
            pattern: As in ``rerun``, with the filters below.
            state: Only nodes in this state.
            error: Only nodes with such a failure reason, as in ``rerun``.
            reason: Shown in the status.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were changed.

        Raises:
            ConfigurationError, NodeNotFound, NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded,
            FlowNotFound, FlowExpired: As ``rerun``.
        """

    def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """Add nodes to a running or completed flow, which then runs again. Adds all or none.

        Adding the same nodes again changes nothing, so a repeat is safe. Returns the new state.

        Args:
            nodes: They may depend on nodes of the flow and on each other.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The nodes are not valid; nothing was added.
            NodeExists: The flow has another node of that name; nothing was added.
            FlowEnded: The flow has failed or was cancelled; nothing was added.
            FlowNotFound, FlowExpired: The flow no longer exists.
        """

class AsyncFlow:
    """A handle of a flow on the server, with awaitable calls. It caches no state: every call reads it."""

    _operations: FlowOperations
    _run: Any

    def __init__(self, producer: AsyncFacade, operations: FlowOperations) -> None: ...
    @property
    def id(self) -> str:
        """The id of the flow, for ``get``."""

    @property
    def generation(self) -> int:
        """The generation of the flow id, 0 for the first."""

    @property
    def home(self) -> str:
        """The queue that holds the flow and emits its events."""

    @property
    def _ref(self) -> FlowRef: ...
    def array(self, name: str) -> AsyncFlowArray:
        """The elements of an array node. Makes no call: the methods of the handle do."""

    async def now(self) -> datetime:
        """Return the server's time, by which times of flows are set: UTC, within a few milliseconds."""

    async def status(self) -> FlowStatus:
        """Read state and counts, in constant time.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    async def node(self, name: str) -> NodeStatus:
        """Read one node with its state, or an element of an array: ``clean[4711]``.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def nodes(self, names: Iterable[str] | None = None) -> list[NodeStatus]:
        """Read every node with its state, dependencies before dependents, in pages of about 200 nodes.

        Args:
            names: Only these nodes, in this order; the cost grows with their number, not with the flow.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    async def leaves(self) -> list[str]:
        """List the names of the nodes without dependents; much cheaper than ``nodes``.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def results(self, names: Iterable[str] | None = None) -> Mapping[str, Any]:
        """Read the results of the nodes completed so far, by node name, in no particular order.

        Args:
            names: Only these nodes, such as the dependencies of a fan-in; the cost grows with their number,
                not with the flow. None: all.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    async def waits(self, nodes: Iterable[NodeStatus] | None = None) -> Mapping[str, Wait]:
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

    async def failures(self) -> FailureGroups:
        """Group the failed nodes by cause, largest group first; see ``Queue.failures``.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    async def logs(self, after: Mapping[str, int], *, limit: int = 100) -> Mapping[str, JobLogs]:
        """Read log lines of some nodes, oldest first, and their total numbers.

        Args:
            after: The number of lines to skip, by node name; -20: all but the last 20. Removed lines count
                too. 200 nodes take two round trips, or three if lines were removed.
            limit: The max number of lines for each node.

        Raises:
            NodeNotFound: The flow has no node of this name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """

    async def node_history(self, name: str) -> JobHistory:
        """Read what happened to the job of a node, as ``Queue.history``.

        Raises:
            NodeNotFound: The flow has no node of this name.
            FlowNotFound, FlowExpired: The flow no longer exists.
            JobNotFound: The job was removed.
        """

    async def outcome(self) -> FlowOutcome:
        """Read the current status, results and failures."""

    async def wait(self, *, timeout: Duration | None = None) -> FlowOutcome:
        """Wait until the flow has ended, in any state; ``outcome.status`` has the state.

        Survives outages of the server, such as a failover, and logs those of over a second.

        Args:
            timeout: The max time to wait, to the millisecond; None: no limit. The flow continues after a
                timeout.

        Raises:
            WaitTimeout: The flow has not ended in time.
            TransportError: The server was unreachable at the end of the time.
        """

    async def supervise(self) -> None:
        """Supervise the queues of the flow once, unless they have a supervisor.

        Flows with nodes on Node workers need a supervisor: a Python worker, or a running ``wait`` or
        ``watch``. Use this call in code that only polls the status. It takes one round trip if the queues
        have a supervisor, otherwise up to a few seconds. It does nothing if the server refuses it. Safe to
        repeat.
        """

    async def is_supervised(self) -> bool:
        """Whether the home queue of the flow has a supervisor.

        A supervisor is a Python worker of one of the flow's queues, ``glidemq supervise``, or a client in
        ``wait`` or ``watch``. Without one, the flow does not advance after jobs that Node workers have ended.
        """

    def watch(self, *, after: str | None = None, timeout: Duration | None = None) -> AsyncIterator[Change]:
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

    def watch_batches(
        self, *, after: str | None = None, timeout: Duration | None = None, rest: Duration = 5
    ) -> AsyncIterator[Sequence[Change]]:
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

    async def result(self, *, timeout: Duration | None = None) -> Mapping[str, Any]:
        """Wait for the results of all nodes, by node name, in no particular order.

        Survives outages as ``wait``.

        Raises:
            FlowFailed: The flow failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: The flow was cancelled.
            WaitTimeout: The flow has not ended in time. The message has the reason why a node waits, unless
                all nodes only wait for their turn; finding it may take longer than ``timeout``.
            TransportError: The server was unreachable at the end of the time.
        """

    async def owners(self) -> Sequence[str]:
        """List the names of its owners, sorted, without those with an expired lease.

        Empty if the flow has no owners or has ended.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    async def history(self) -> Sequence[FlowStatus]:
        """Read the status of each stored generation, oldest first: the last 100, and some before them.

        ``superseded_by`` is set in all but the last. When a generation is removed, its idempotency key is
        removed too.

        Raises:
            FlowNotFound: The flow no longer exists.
        """

    async def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """End every node that has not ended, and stop running handlers. Returns the previous state.

        Args:
            reason: The text for status and errors.
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """

    async def renew(self) -> FlowState:
        """Renew the lease of the owner given to ``submit`` or ``get``. Returns the state of the flow.

        ``wait``, ``watch`` and ``result`` do so automatically. If the lease has ended and the flow still
        runs, the owner owns it again.

        Raises:
            ConfigurationError: This object has no owner.
            Superseded, FlowNotFound: The flow can no longer have an owner.
        """

    async def note(self, text: str) -> None:
        """Store a short text in this generation for the submitter of the flow: ``FlowStatus.note``.

        A later note replaces it. It has no other effect, in any state, and is removed with the record of the
        generation. Safe to repeat.

        Args:
            text: At most 256 characters, none of them a control character.

        Raises:
            ConfigurationError: The text is not valid.
            FlowNotFound: The flow no longer exists.
        """

    async def track(self) -> None:
        """Track the flow with its later generations: ``watch_tracked`` of its home queue reports changes.

        It stays tracked until ``untrack``. Repeatable.

        Raises:
            InvalidJob: The queue tracks 1,000 jobs and flows, which is the limit.
        """

    async def untrack(self) -> None:
        """Stop tracking the flow. Repeatable."""

    async def retry_failed(self, *, generation: int | None = None) -> FlowState:
        """Rerun every node that did not complete; the others keep their results. Returns the new state.

        Nodes skipped manually or by their handler stay skipped. The deadline starts over. A running or
        completed flow is unchanged. Repeatable.

        Args:
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def restart(
        self, *, nodes: Iterable[str] | None = None, idempotency_key: str = "", generation: int | None = None
    ) -> FlowState:
        """Rerun the whole flow, or from some nodes on, as a new generation; returns its state.

        A running flow is cancelled first. Afterwards this object represents the new generation, which has
        only the results that it keeps. Nodes added at run time are left out: their creators add them again.
        The new generation has the owner of this object, if any.

        Args:
            nodes: The names of the nodes to rerun, None for all. Nodes that follow them rerun too, and so do
                nodes that have not completed or that have added nodes; all others keep their results. Unlike
                ``rerun``, this accepts nodes that have added nodes.
            idempotency_key: As in ``FlowProducer.submit``: a repeat with the same key and nodes is safe.
            generation: Only if this is the current generation, or if the key has already begun one.

        Raises:
            ConfigurationError: An argument is not valid, or ``nodes`` is empty. Nothing was changed.
            FlowConflict: The key has begun a generation with other nodes. Nothing was changed.
            NodeNotFound: The submitted flow has no node of this name. Nothing was changed.
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
        """Rerun nodes that have ended. A flow that has ended runs again.

        Afterwards they wait for a worker, or for dependencies that rerun too; their previous results are
        deleted. Rules and policies apply to the following nodes as in the first run. The cost grows with the
        number of rerun nodes, not with the flow.

        Args:
            node: The node, or an element of an array, ``clean[17]``. Only that element runs again; an array
                that has ended opens for it, also for elements that it had not run when it was stopped.
            nodes: Several, by name.
            pattern: Instead of names: every node that has ended and matches this shell pattern, such as
                ``clean-*``, and the filters below. Square brackets match a class of characters, and also
                themselves: ``part-[12]``, ``item[1]``, ``clean[*]``.
            state: Only nodes in this state: ``completed``, ``failed`` or ``skipped``.
            error: Only nodes with a failure reason that matches this shell pattern. Here, square brackets
                match only a class of characters.
            dependents: True: all following nodes that have begun rerun too; running ones are stopped. False:
                nodes that run or have ended continue with the old result. A following node that has not
                started (it waits for a worker or its next attempt, or was only fetched) waits until this node
                has ended. Then it starts over with the new result. So does the next attempt of a running
                node.
            idempotency_key: At most 256 characters. A repeat with the same key changes nothing, even after
                the nodes have ended again. Each node stores its last ten keys, an element its last one.
            generation: Only if this is the current generation.

        Returns:
            The names of the rerun nodes, without those that follow them.

        Raises:
            ConfigurationError: An argument is not valid. Nothing was changed.
            NodeNotFound, NodeNotEnded: The flow has no such node, or the node has not ended. Nothing was
                changed.
            NodeNotRepeatable: A node to rerun has added nodes to the flow, or its job was removed from the
                queue: ``restart`` the flow. Nothing was changed.
            FlowEnded, FlowIncomplete: The flow is being cancelled, or its submission is incomplete.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """

    async def retry_failures(
        self, group: str, *, limit: int = 1000, generation: int | None = None
    ) -> Sequence[str]:
        """Rerun the failed nodes of a group, oldest first, with the nodes that they held back.

        A repeat continues with the next nodes. Otherwise as ``rerun``.

        Args:
            group: A group of ``failures``.
            limit: The max number of failed nodes to rerun.
            generation: Only if this is the current generation.

        Returns:
            The names of the rerun nodes, without those that follow them, and without those that somebody else
            has rerun with success meanwhile. Empty if no failed node is in the group.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
            NodeNotEnded: Somebody else reruns one of them. Nothing was changed.
            NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded, FlowNotFound, FlowExpired: As ``rerun``.
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
        """End nodes as failed before they have ended; policies and rules decide what follows.

        A running node is stopped, and its result is refused. Nodes that have ended are unchanged, so a repeat
        is safe.

        Args:
            node: The node, or an element of an array, ``clean[17]``.
            nodes: Several, by name.
            pattern: As in ``rerun``, with the filter below.
            state: Only nodes in this state.
            reason: The text for status and errors.
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

        A node that has ended differently gets this result, and all following nodes that have begun rerun,
        even in a flow that has ended. A running node is stopped, and its own result is refused. Nodes that
        already have this result are unchanged, so a repeat is safe.

        Args:
            node: The node, or an element of an array, ``clean[17]``.
            nodes: Several, by name.
            pattern: As in ``rerun``, with the filters below.
            state: Only nodes in this state.
            error: Only nodes with such a failure reason, as in ``rerun``.
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
        """End nodes as skipped without running them; rules decide whether following nodes are skipped too.

        A retry runs them only with a changed specification. Nodes that are already skipped are unchanged.
        Otherwise as ``complete_node``.

        Args:
            node: The node, or an element of an array, ``clean[17]``.
            nodes: Several, by name.
            pattern: As in ``rerun``, with the filters below.
            state: Only nodes in this state.
            error: Only nodes with such a failure reason, as in ``rerun``.
            reason: Shown in the status.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were changed.

        Raises:
            ConfigurationError, NodeNotFound, NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded,
            FlowNotFound, FlowExpired: As ``rerun``.
        """

    async def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """Add nodes to a running or completed flow, which then runs again. Adds all or none.

        Adding the same nodes again changes nothing, so a repeat is safe. Returns the new state.

        Args:
            nodes: They may depend on nodes of the flow and on each other.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The nodes are not valid; nothing was added.
            NodeExists: The flow has another node of that name; nothing was added.
            FlowEnded: The flow has failed or was cancelled; nothing was added.
            FlowNotFound, FlowExpired: The flow no longer exists.
        """

class FlowProducer(SyncFacade):
    """Submits flows to one server and finds them by id.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
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
        """Submit a flow atomically: creates every job, and releases those without dependencies.

        Args:
            spec: 1 to 100,000 nodes.
            flow_id: The identity of the flow. An equal flow with the same id attaches to the existing one,
                even during another submission, so a repeat is always safe. None: a new id.
            on_existing: What to do if a flow with this id exists. ``attach``: attach to it unchanged; a
                different specification is refused. ``retry_failed``: rerun the nodes that did not complete. A
                different specification begins a new generation, which keeps the results of completed nodes.
                Excluded are nodes with a change in queue, job, data, dependencies, rule, fallbacks or
                ``must_pass``, and all nodes that follow them; see ``plan``. ``restart``: begin a new
                generation that keeps nothing, with the same or a different specification. A new generation
                cancels the previous one.
            idempotency_key: A token of the caller, such as the id of a click or a run, at most 256
                characters. A repeated restart with the same key and specification finds the generation that
                the first began. So a repeat is safe as long as that generation is stored; see
                ``Flow.history``. Without a key, each restart begins another generation, except that
                simultaneous restarts may share one. Requires ``flow_id``.
            owner: The owner of the flow. When the lease of the last owner expires, the flow is cancelled or
                continues, as the owner requests. A running flow gets an additional owner. A new generation
                has only the owner of its caller. See ``Owner``.
            require_workers: Refuse the flow unless live workers serve every queue and have a handler for
                every job, or ``attach`` finds that it has ended. By default a flow waits for its workers,
                unlike with the command line and the operators of Airflow and Dagster.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The flow is not valid; nothing was sent.
            QueueNotServed, HandlerNotFound: ``require_workers`` is set, and workers or handlers are missing;
                nothing was sent.
            FlowConflict: A different flow has this id, or a node's job already exists. Or a restart repeats a
                key with a different specification. Or the new generation has queues in several slots of a
                cluster, and the flow has queues in one slot. Nothing was changed.
            GenerationTaken: Other callers repeatedly began the next generation first; nothing was changed.
            TransportError: The server is unreachable or overloaded. Repeat with the same ``flow_id``.
        """

    def check_workers(self, jobs: FlowSpec | Mapping[str, Iterable[str]]) -> None:
        """Check that live workers can run jobs now; a Node worker is assumed to have every handler.

        Args:
            jobs: A flow, or job names by queue.

        Raises:
            QueueNotServed: ``exc.queues`` have no live worker.
            HandlerNotFound: Live workers have no handler for the jobs in ``exc.missing``, by queue.
        """

    def now(self) -> datetime:
        """Return the server's time, by which times of flows are set: UTC, within a few milliseconds."""

    def supervise(self, home: str) -> Sequence[str]:
        """``Flow.supervise`` for all flows of a home queue.

        Args:
            home: The home queue: ``flow.home``.

        Returns:
            The queues without a supervisor that the server does not permit this client to supervise.
        """

    def plan(self, spec: FlowSpec, *, flow_id: str) -> FlowPlan:
        """Explain what ``submit(spec, flow_id=flow_id, on_existing="retry_failed")`` would run and keep.

        Changes nothing. An equal specification repairs the current generation: nodes that failed, were
        cancelled, or were skipped because of others would run. All others stay unchanged, including nodes
        that have added nodes, the added nodes, and nodes skipped manually or by their handler. A running flow
        continues, and a completed flow stays unchanged.

        Raises:
            FlowNotFound: No flow has this id.
            FlowExpired, FlowConflict: The submission would be refused: the jobs to repair were removed, or
                the flow cannot continue with the queues of the new specification.
            InvalidFlow, ConfigurationError, EncodeError, PayloadTooLarge: As ``submit``.
        """

    def get(self, flow_id: str, *, owner: Owner | None = None) -> Flow:
        """Find the current generation of a flow by id.

        Args:
            flow_id: As for ``submit``.
            owner: The owner; it owns the flow from the first ``renew``, ``wait``, ``watch`` or ``result``.

        Raises:
            FlowNotFound: No flow has this id.
        """

    def statuses(self, flows: Iterable[FlowHandle]) -> Sequence[FlowStatus | None]:
        """Read the statuses of many flows, in this order, 250 per round trip; None for a missing flow.

        Each status is of the generation of its handle; ``superseded_by`` is a later generation.
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
        """List the flows that match all filters, newest first. A flow is listed until its retention ends.

        Args:
            state: Only flows in this state.
            label: Only flows with this label: key and value.
            since: Only flows submitted at this time or later; with a time zone.
            before: Continue after this flow, the last of the previous page.
            limit: The max number of flows, 1 to 10,000.

        Raises:
            ConfigurationError: A filter is not valid; nothing was sent.
        """

class AsyncFlowProducer(AsyncFacade):
    """Submits flows to one server and finds them by id, with awaitable calls, for one event loop.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
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
        """Submit a flow atomically: creates every job, and releases those without dependencies.

        Args:
            spec: 1 to 100,000 nodes.
            flow_id: The identity of the flow. An equal flow with the same id attaches to the existing one,
                even during another submission, so a repeat is always safe. None: a new id.
            on_existing: What to do if a flow with this id exists. ``attach``: attach to it unchanged; a
                different specification is refused. ``retry_failed``: rerun the nodes that did not complete. A
                different specification begins a new generation, which keeps the results of completed nodes.
                Excluded are nodes with a change in queue, job, data, dependencies, rule, fallbacks or
                ``must_pass``, and all nodes that follow them; see ``plan``. ``restart``: begin a new
                generation that keeps nothing, with the same or a different specification. A new generation
                cancels the previous one.
            idempotency_key: A token of the caller, such as the id of a click or a run, at most 256
                characters. A repeated restart with the same key and specification finds the generation that
                the first began. So a repeat is safe as long as that generation is stored; see
                ``Flow.history``. Without a key, each restart begins another generation, except that
                simultaneous restarts may share one. Requires ``flow_id``.
            owner: The owner of the flow. When the lease of the last owner expires, the flow is cancelled or
                continues, as the owner requests. A running flow gets an additional owner. A new generation
                has only the owner of its caller. See ``Owner``.
            require_workers: Refuse the flow unless live workers serve every queue and have a handler for
                every job, or ``attach`` finds that it has ended. By default a flow waits for its workers,
                unlike with the command line and the operators of Airflow and Dagster.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The flow is not valid; nothing was sent.
            QueueNotServed, HandlerNotFound: ``require_workers`` is set, and workers or handlers are missing;
                nothing was sent.
            FlowConflict: A different flow has this id, or a node's job already exists. Or a restart repeats a
                key with a different specification. Or the new generation has queues in several slots of a
                cluster, and the flow has queues in one slot. Nothing was changed.
            GenerationTaken: Other callers repeatedly began the next generation first; nothing was changed.
            TransportError: The server is unreachable or overloaded. Repeat with the same ``flow_id``.
        """

    async def check_workers(self, jobs: FlowSpec | Mapping[str, Iterable[str]]) -> None:
        """Check that live workers can run jobs now; a Node worker is assumed to have every handler.

        Args:
            jobs: A flow, or job names by queue.

        Raises:
            QueueNotServed: ``exc.queues`` have no live worker.
            HandlerNotFound: Live workers have no handler for the jobs in ``exc.missing``, by queue.
        """

    async def now(self) -> datetime:
        """Return the server's time, by which times of flows are set: UTC, within a few milliseconds."""

    async def supervise(self, home: str) -> Sequence[str]:
        """``Flow.supervise`` for all flows of a home queue.

        Args:
            home: The home queue: ``flow.home``.

        Returns:
            The queues without a supervisor that the server does not permit this client to supervise.
        """

    async def plan(self, spec: FlowSpec, *, flow_id: str) -> FlowPlan:
        """Explain what ``submit(spec, flow_id=flow_id, on_existing="retry_failed")`` would run and keep.

        Changes nothing. An equal specification repairs the current generation: nodes that failed, were
        cancelled, or were skipped because of others would run. All others stay unchanged, including nodes
        that have added nodes, the added nodes, and nodes skipped manually or by their handler. A running flow
        continues, and a completed flow stays unchanged.

        Raises:
            FlowNotFound: No flow has this id.
            FlowExpired, FlowConflict: The submission would be refused: the jobs to repair were removed, or
                the flow cannot continue with the queues of the new specification.
            InvalidFlow, ConfigurationError, EncodeError, PayloadTooLarge: As ``submit``.
        """

    async def get(self, flow_id: str, *, owner: Owner | None = None) -> AsyncFlow:
        """Find the current generation of a flow by id.

        Args:
            flow_id: As for ``submit``.
            owner: The owner; it owns the flow from the first ``renew``, ``wait``, ``watch`` or ``result``.

        Raises:
            FlowNotFound: No flow has this id.
        """

    async def statuses(self, flows: Iterable[FlowHandle]) -> Sequence[FlowStatus | None]:
        """Read the statuses of many flows, in this order, 250 per round trip; None for a missing flow.

        Each status is of the generation of its handle; ``superseded_by`` is a later generation.
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
        """List the flows that match all filters, newest first. A flow is listed until its retention ends.

        Args:
            state: Only flows in this state.
            label: Only flows with this label: key and value.
            since: Only flows submitted at this time or later; with a time zone.
            before: Continue after this flow, the last of the previous page.
            limit: The max number of flows, 1 to 10,000.

        Raises:
            ConfigurationError: A filter is not valid; nothing was sent.
        """
