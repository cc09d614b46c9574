"""What Flow and AsyncFlow do: change a flow, and run it or nodes of it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import uuid4

from glidemq_orchestrate.clients.operations.reading import ReadingOperations
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.generation import note_flow
from glidemq_orchestrate.flows.node_table import Change
from glidemq_orchestrate.flows.nodes import check_dependents, selection, starts
from glidemq_orchestrate.flows.ownership import change_and_own, owner_of
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.flows.submission import fenced, restart_flow
from glidemq_orchestrate.foundation.names import NOTE, check_request, short_reason
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import JsonLike, encode


class FlowOperations(ReadingOperations):
    """What can be done with a flow, each written once for both clients."""

    def cancel(self, reason: str = "", *, generation: int | None = None) -> Op[FlowState]:
        """End every node that has not ended; running handlers are stopped. Returns the state before.

        Args:
            reason: What status and errors say.
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """
        yield from fenced(self.ref, generation)
        return (yield from self._backend.cancel(self.ref, short_reason(reason), self.clock))

    def renew(self) -> Op[FlowState]:
        """Renew the lease of the owner with which the flow was submitted or found. Returns the state.

        ``wait``, ``watch`` and ``result`` do so by themselves. An owner whose lease has ended owns a flow
        that still runs again.

        Raises:
            ConfigurationError: There is no owner here.
            Superseded, FlowNotFound: The flow cannot be owned any more.
        """
        if self.owned is None:
            raise ConfigurationError("no owner was given: submit or get the flow with owner=Owner(...)")
        return self.owned.own(self.ref, self.clock)

    def note(self, text: str) -> Op[None]:
        """Keep a short text with this generation, for the submitter of the flow: ``FlowStatus.note``.

        The last one counts. It changes nothing else, in any state, and goes with the record of the
        generation. A repeat is safe.

        Args:
            text: At most 256 characters, none of them a control character.

        Raises:
            ConfigurationError: The text is not valid.
            FlowNotFound: The flow no longer exists.
        """
        return ask(note_flow(self.ref.home, self.ref.flow_id, NOTE.check(text)))

    def retry_failed(self, *, generation: int | None = None) -> Op[FlowState]:
        """Run again every node that did not complete; the others keep their results. Returns the new state.

        Nodes that were skipped by hand or by their handler stay skipped. A deadline starts over. Does nothing
        to a flow that runs or has completed. Repeatable.

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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change.rerun(
            check_request(idempotency_key) or uuid4().hex, dependents=check_dependents(dependents)
        )
        yield from fenced(self.ref, generation)
        return (yield from change_and_own(self.ref, picked, change, self.clock, self.owned))

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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state)
        change = Change("failed", uuid4().hex, f"cancelled: {short_reason(reason)}")
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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change("completed", uuid4().hex, encode(result, where="the result"))
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
        picked = selection(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change("skipped", uuid4().hex, short_reason(reason) or "skipped by hand")
        yield from fenced(self.ref, generation)
        return (yield from change_and_own(self.ref, picked, change, self.clock, self.owned))

    def extend(self, nodes: Iterable[FlowNode]) -> Op[FlowState]:
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
        return self._backend.extend(self.ref, nodes, self.clock)
