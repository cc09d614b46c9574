"""The operations of Flow and AsyncFlow that change a flow, and rerun it or some of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import uuid4

from glidemq_orchestrate.clients.operations.flow_reading import ReadingOperations
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.generation import note_flow
from glidemq_orchestrate.flows.node_table import RequestedChange
from glidemq_orchestrate.flows.nodes import Selection, check_dependents, selection, starts
from glidemq_orchestrate.flows.ownership import change_and_own, owner_of
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.flows.submission import fenced, restart_flow
from glidemq_orchestrate.foundation.texts import short_reason
from glidemq_orchestrate.foundation.values import NOTE, check_request
from glidemq_orchestrate.queues import failure_groups, tracking
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import JsonLike, encode


class FlowOperations(ReadingOperations):
    """The operations on a flow, written once for both clients."""

    def cancel(self, reason: str = "", *, generation: int | None = None) -> Op[FlowState]:
        """End every node that has not ended, and stop running handlers. Returns the previous state.

        Args:
            reason: The text for status and errors.
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """
        yield from fenced(self.ref, generation)
        return (yield from self._backend.cancel(self.ref, short_reason(reason), self.clock))

    def renew(self) -> Op[FlowState]:
        """Renew the lease of the owner given to ``submit`` or ``get``. Returns the state of the flow.

        ``wait``, ``watch`` and ``result`` do so automatically. If the lease has ended and the flow still
        runs, the owner owns it again.

        Raises:
            ConfigurationError: This object has no owner.
            Superseded, FlowNotFound: The flow can no longer have an owner.
        """
        if self.owned is None:
            raise ConfigurationError("no owner was given: submit or get the flow with owner=Owner(...)")
        return self.owned.own(self.ref, self.clock)

    def note(self, text: str) -> Op[None]:
        """Store a short text in this generation for the submitter of the flow: ``FlowStatus.note``.

        A later note replaces it. It has no other effect, in any state, and is removed with the record of the
        generation. Safe to repeat.

        Args:
            text: At most 256 characters, none of them a control character.

        Raises:
            ConfigurationError: The text is not valid.
            FlowNotFound: The flow no longer exists.
        """
        return ask(note_flow(self.ref.home, self.ref.flow_id, NOTE.check(text)))

    def track(self) -> Op[None]:
        """Track the flow with its later generations: ``watch_tracked`` of its home queue reports changes.

        It stays tracked until ``untrack``. Repeatable.

        Raises:
            InvalidJob: The queue tracks 1,000 jobs and flows, which is the limit.
        """
        yield from tracking.track_flow(self.ref, self.clock.now_ms())

    def untrack(self) -> Op[None]:
        """Stop tracking the flow. Repeatable."""
        return tracking.untrack_flow(self.ref)

    def retry_failed(self, *, generation: int | None = None) -> Op[FlowState]:
        """Rerun every node that did not complete; the others keep their results. Returns the new state.

        Nodes skipped manually or by their handler stay skipped. The deadline starts over. A running or
        completed flow is unchanged. Repeatable.

        Args:
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        yield from fenced(self.ref, generation)
        return (yield from self._backend.retry_failed(self.ref, self.clock, owner_of(self.owned)))

    def restart(
        self, *, nodes: Iterable[str] | None = None, idempotency_key: str = "", generation: int | None = None
    ) -> Op[FlowState]:
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
        self.ref = yield from restart_flow(
            self.ref,
            check_request(idempotency_key),
            self.clock,
            owner_of(self.owned),
            again=starts(nodes),
            generation=generation,
        )
        return (yield from self.status()).state

    def rerun(  # noqa: PLR0913  the ways of choosing nodes
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
    ) -> Op[Sequence[str]]:
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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = RequestedChange.rerun(
            check_request(idempotency_key) or uuid4().hex, dependents=check_dependents(dependents)
        )
        yield from fenced(self.ref, generation)
        return (yield from change_and_own(self.ref, picked, change, self.clock, self.owned))

    def retry_failures(
        self, group: str, *, limit: int = 1000, generation: int | None = None
    ) -> Op[Sequence[str]]:
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
        yield from fenced(self.ref, generation)
        names = yield from failure_groups.failed_nodes(self.ref, group, limit)
        if not names:
            return []
        change = RequestedChange.rerun(uuid4().hex, dependents=True, only_failed=True)
        return (yield from change_and_own(self.ref, Selection(names), change, self.clock, self.owned))

    def cancel_node(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        generation: int | None = None,
    ) -> Op[Sequence[str]]:
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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state)
        change = RequestedChange("failed", uuid4().hex, f"cancelled: {short_reason(reason)}")
        yield from fenced(self.ref, generation)
        return (yield from change_and_own(self.ref, picked, change, self.clock, self.owned))

    def complete_node(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        result: JsonLike = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Op[Sequence[str]]:
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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = RequestedChange("completed", uuid4().hex, encode(result, where="the result"))
        yield from fenced(self.ref, generation)
        return (yield from change_and_own(self.ref, picked, change, self.clock, self.owned))

    def skip_node(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Op[Sequence[str]]:
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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = RequestedChange("skipped", uuid4().hex, short_reason(reason) or "skipped manually")
        yield from fenced(self.ref, generation)
        return (yield from change_and_own(self.ref, picked, change, self.clock, self.owned))

    def extend(self, nodes: Iterable[FlowNode]) -> Op[FlowState]:
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
        return self._backend.extend(self.ref, nodes, self.clock)
