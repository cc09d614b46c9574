"""Flow: one flow on the server, for synchronous code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from uuid import uuid4

from glidemq_orchestrate.attempts import client_supervision as tendings
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.flows import generations, owners
from glidemq_orchestrate.flows import nodes as single
from glidemq_orchestrate.flows import watch as watching
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.change import FlowChange, NodeChange
from glidemq_orchestrate.flows.choice import check_dependents, choice, starts
from glidemq_orchestrate.flows.node_change import Change
from glidemq_orchestrate.flows.owners import Ownership, owner_of
from glidemq_orchestrate.flows.ref import FlowRef, raise_unless_completed
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.flows.waits import Wait
from glidemq_orchestrate.foundation.arguments import explain_methods
from glidemq_orchestrate.foundation.names import NOTE, check_request, short_reason
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.queues import waits as waiting
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import Json, JsonLike, encode
from glidemq_orchestrate.wire.stored import as_time

__all__ = ["Flow"]


@explain_methods
class Flow:
    """A flow on the server. Holds nothing of its state: every call asks the server."""

    def __init__(self, producer: SyncFacade, ref: FlowRef, owned: Ownership | None = None) -> None:
        self._ref, self._clock = ref, producer._clock  # noqa: SLF001  the flow's own producer
        self._backend, self._owned = backend_of(ref), owned
        self._tending = tendings.for_flow(ref, self._clock)
        self._run = producer._run  # noqa: SLF001

    @property
    def id(self) -> str:
        """The id under which it can be found again."""
        return self._ref.public_id

    @property
    def generation(self) -> int:
        """Which run of the flow id this is: 0 for the first."""
        return self._ref.generation

    @property
    def home(self) -> str:
        """The queue that holds the flow and emits its events."""
        return self._ref.home.queue

    def now(self) -> datetime:
        """The server's time, by which the times of flows and nodes go; to some milliseconds, UTC."""
        return as_time(self._clock.now_ms())

    def status(self) -> FlowStatus:
        """State and counts, in constant time.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._run(self._backend.status(self._ref))

    def node(self, name: str) -> NodeStatus:
        """One node with its state.

        Raises:
            NodeNotFound: The flow has none of this name.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        return self._run(single.named(self._ref, [name]))[0]

    def nodes(self, names: Iterable[str] | None = None) -> list[NodeStatus]:
        """Every node with its state, dependencies before dependents. Read in pages of some 200 nodes.

        Args:
            names: Only these nodes, in this order; the cost grows with their number, not with the flow.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        if names is None:
            return self._run(self._backend.nodes(self._ref))
        return self._run(single.named(self._ref, names))

    def leaves(self) -> list[str]:
        """The names of the nodes that no other node waits for; much cheaper than ``nodes``.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        return self._run(single.leaves(self._ref))

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """The results of the nodes that have completed so far, by node name.

        Args:
            names: Only of these nodes, such as those of a fan-in; the cost grows with their number, not with
                the flow. None: of all.

        Raises:
            NodeNotFound: The flow has no node of such a name.
            Superseded, FlowNotFound, FlowExpired: As ``node``.
        """
        if names is None:
            return self._run(self._backend.results(self._ref))
        return self._run(single.results(self._ref, names))

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
        found = self.nodes() if nodes is None else nodes
        return self._run(waiting.waits(self._ref, found, self._clock.now_ms()))

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
        return self._run(single.logs(self._ref, after, limit))

    def outcome(self) -> FlowOutcome:
        """The current status, results and failures."""
        return self._run(self._backend.outcome(self._ref, self._run(self._backend.status(self._ref))))

    def wait(self, *, timeout: timedelta | None = None) -> FlowOutcome:
        """Wait until the flow has ended in any way; read the state from ``outcome.status``.

        Args:
            timeout: Longest time to wait, to the millisecond; None: for ever. The flow continues after a
                time-out.

        Raises:
            WaitTimeout: It has not ended in time.
        """
        limit = None if timeout is None else milliseconds(timeout)
        try:
            return self._run(tendings.wait(self._tending, self._waiting, limit))
        finally:
            self._resign()

    def _waiting(self, limit: int | None) -> Op[FlowOutcome]:
        if self._owned is not None:
            return self._owned.wait(self._ref, limit, self._clock)
        return self._backend.wait(self._ref, limit, self._clock)

    def _resign(self) -> None:
        """Let others supervise at once; the locks expire by themselves if that fails."""
        if self._tending.led:
            with suppress(GlideMQError):
                self._run(tendings.resign(self._tending))

    def supervise(self) -> None:
        """Look after the queues of the flow for a moment, where nobody supervises them.

        Flows with nodes that Node workers run need a supervisor. Workers of ours are that, and ``wait`` and
        ``watch`` while they last; for code that only reads the status now and then there is this call. It
        takes a trip to the server where somebody else supervises, else up to some seconds. Safe to repeat.
        Where the server refuses it, it does nothing.
        """
        self._run(tendings.once(self._tending))

    def is_supervised(self) -> bool:
        """Whether somebody supervises the home of the flow.

        That is a worker of one of its queues, whoever waits for it or watches it, or ``glidemq supervise``.
        Without one, what Node workers end does not reach the flow.
        """
        return self._run(tendings.is_supervised(self._ref))

    def watch(
        self, *, after: str | None = None, timeout: timedelta | None = None
    ) -> Iterator[NodeChange | FlowChange]:
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
        limit = None if timeout is None else milliseconds(timeout)
        batches = self._batches(watching.begin(self._ref, after, limit, self._clock), timedelta.max)
        return chain.from_iterable(batches)

    def watch_batches(
        self,
        *,
        after: str | None = None,
        timeout: timedelta | None = None,
        rest: timedelta = timedelta(seconds=5),
    ) -> Iterator[Sequence[NodeChange | FlowChange]]:
        """``watch`` in batches, as the changes are read together; the last one ends with a ``FlowChange``.

        For readers that look something up for each change, or that have other things to do meanwhile: an
        empty batch comes when nothing has changed for a while.

        Args:
            after: As in ``watch``: the ``position`` of the last change of a batch.
            timeout: As in ``watch``.
            rest: The time after which an empty batch comes.

        Raises:
            ConfigurationError, WaitTimeout, FlowNotFound, FlowExpired: As ``watch``.
        """
        limit = None if timeout is None else milliseconds(timeout)
        rest_ms = min(milliseconds(rest), watching.REST_MS)
        return self._batches(watching.begin(self._ref, after, limit, self._clock, rest_ms=rest_ms), rest)

    def _batches(self, watch: watching.Watch, rest: timedelta) -> Iterator[Sequence[NodeChange | FlowChange]]:
        quiet = watching.Quiet(self._clock, rest)
        try:
            while not watch.is_over:
                if self._owned is not None:
                    self._run(self._owned.renew_if_due(self._ref, self._clock))
                changes = self._run(tendings.step(self._tending, watch))
                if changes or quiet.is_over():
                    yield changes
                    quiet.begin()
        finally:
            self._resign()

    def result(self, *, timeout: timedelta | None = None) -> Mapping[str, Json]:
        """Wait for the results of all nodes.

        Raises:
            FlowFailed: It failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: It was cancelled.
            WaitTimeout: It has not ended in time.
        """
        outcome = self.wait(timeout=timeout)
        raise_unless_completed(outcome)
        return outcome.results

    def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """End every node that has not ended; running handlers are asked to stop. Returns the state before.

        Args:
            reason: What status and errors say.
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """
        self._run(generations.fenced(self._ref, generation))
        return self._run(self._backend.cancel(self._ref, short_reason(reason), self._clock))

    def renew(self) -> FlowState:
        """Renew the lease of the owner with which the flow was submitted or found. Returns the state.

        ``wait``, ``watch`` and ``result`` do so by themselves. An owner whose lease has lapsed owns a flow
        that still runs again.

        Raises:
            ConfigurationError: There is no owner here.
            Superseded, FlowNotFound: The flow cannot be owned any more.
        """
        if self._owned is None:
            raise ConfigurationError("no owner was given: submit or get the flow with owner=Owner(...)")
        return self._run(self._owned.own(self._ref, self._clock))

    def owners(self) -> Sequence[str]:
        """The names of those for whom the flow runs, sorted: its owners that are not known to have vanished.

        Empty when it has none, and when it has ended.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._run(self._backend.owners(self._ref))

    def note(self, text: str) -> None:
        """Keep a short text with this generation, for whoever submitted the flow: ``FlowStatus.note``.

        The last one counts. It changes nothing else, in any state, and goes with the record of the
        generation. A repeat is safe.

        Args:
            text: At most 256 characters, none of them a control character.

        Raises:
            ConfigurationError: The text is not valid.
            FlowNotFound: The flow no longer exists.
        """
        self._run(owners.note(self._ref, NOTE.check(text)))

    def history(self) -> Sequence[FlowStatus]:
        """The status of each generation that is kept, oldest first: of the last 100, and of some before them.

        ``superseded_by`` is set in all but the last. With a generation that is no longer kept, the request
        that began it is forgotten too.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._run(generations.history(self._ref))

    def retry_failed(self, *, generation: int | None = None) -> FlowState:
        """Run again every node that did not complete; the others keep their results. Returns the new state.

        Nodes that were skipped by hand or by their handler stay skipped. A deadline counts anew. Does nothing
        to a flow that runs or has completed. Repeatable.

        Args:
            generation: Only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        self._run(generations.fenced(self._ref, generation))
        return self._run(self._backend.retry_failed(self._ref, self._clock, owner_of(self._owned)))

    def restart(
        self, *, nodes: Iterable[str] | None = None, request: str = "", generation: int | None = None
    ) -> FlowState:
        """Run all of it again, or from some nodes on, as a new generation. Returns the state of that one.

        A running flow is cancelled first. Afterwards this object stands for the new generation; no result of
        the one before is seen again, but those that it keeps. Nodes that running nodes had added are left
        out: they are added again. The new generation has the owner of this object, and none if it has none.

        Args:
            nodes: Only these run again, by name, with all that follow them, what has not completed by now
                and what has added nodes; the others keep their results. Unlike ``rerun`` it takes nodes that
                have added nodes. None: all of the flow runs again.
            request: As in ``FlowProducer.submit``: with the same one a repeat for the same nodes is safe.
            generation: Only if this is the current generation, or if the request has begun one already.

        Raises:
            ConfigurationError: An argument is not valid, or ``nodes`` is empty. Nothing was changed.
            FlowConflict: The request has begun a generation for other nodes. Nothing was changed.
            NodeNotFound: The flow was submitted without a node of such a name. Nothing was changed.
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        self._ref = self._run(
            generations.restart(
                self._ref,
                check_request(request),
                self._clock,
                owner_of(self._owned),
                again=starts(nodes),
                generation=generation,
            )
        )
        return self.status().state

    def rerun(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        dependents: bool = True,
        request: str = "",
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
                and then begins anew with the new result. So does the next attempt of one that runs.
            request: Whoever asks, at most 256 characters: with the same request a repeat changes nothing,
                also after the nodes have ended again. The last ten requests of a node count.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that this request runs again, without what follows them.

        Raises:
            ConfigurationError: An argument is not valid. Nothing was changed.
            NodeNotFound, NodeNotEnded: One is not a node of the flow, or has not ended. Nothing was changed.
            NodeNotRepeatable: A node that would run again has added nodes to the flow, or its job was removed
                from the queue: ``restart`` the flow. Nothing was changed.
            FlowEnded, FlowIncomplete: The flow is being cancelled, or is not submitted completely.
            Superseded: Another generation has begun.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        picked = choice(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change.rerun(check_request(request) or uuid4().hex, dependents=check_dependents(dependents))
        self._run(generations.fenced(self._ref, generation))
        return self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

    def cancel_node(  # noqa: PLR0913  the ways of choosing nodes
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

        A worker that runs one is told to stop, and its result is refused. Changes nothing about nodes that
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
        picked = choice(node, nodes=nodes, pattern=pattern, state=state)
        change = Change("failed", uuid4().hex, f"cancelled: {short_reason(reason)}")
        self._run(generations.fenced(self._ref, generation))
        return self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

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
    ) -> Sequence[str]:
        """End nodes as completed with this result, without running them; nodes that follow go on with it.

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
        picked = choice(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change("completed", uuid4().hex, encode(result, where="the result"))
        self._run(generations.fenced(self._ref, generation))
        return self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

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
            reason: What the status says.
            generation: Only if this is the current generation.

        Returns:
            The names of the nodes that were changed.

        Raises:
            ConfigurationError, NodeNotFound, NodeNotRepeatable, FlowEnded, FlowIncomplete, Superseded,
            FlowNotFound, FlowExpired: As ``rerun``.
        """
        picked = choice(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change("skipped", uuid4().hex, short_reason(reason) or "skipped by hand")
        self._run(generations.fenced(self._ref, generation))
        return self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

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
        return self._run(self._backend.extend(self._ref, nodes, self._clock))
