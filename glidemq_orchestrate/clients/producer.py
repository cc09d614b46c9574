"""FlowProducer and AsyncFlowProducer: submit flows, find them again, and hold on to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from glidemq_orchestrate import telemetry
from glidemq_orchestrate._ops.flows import backend, index
from glidemq_orchestrate._ops.flows import nodes as single
from glidemq_orchestrate._ops.flows import watch as watching
from glidemq_orchestrate._ops.flows.backend import Reach, backend_of
from glidemq_orchestrate._ops.flows.index import Label
from glidemq_orchestrate._ops.flows.staged import FlowRef, OnExisting
from glidemq_orchestrate._ops.worker import workers
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.flows.change import FlowChange, NodeChange
from glidemq_orchestrate.flows.checked import CheckedFlow, check_flow
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowSpec, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.keys import check_flow_id
from glidemq_orchestrate.names import short_reason

__all__ = ["AsyncFlow", "AsyncFlowProducer", "Flow", "FlowProducer"]


class FlowProducer(SyncFacade):
    """Submits flows to one server and finds them again.

    Args:
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        prefix: First part of every key.
        clock: For tests.
    """

    def submit(
        self,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        on_existing: OnExisting = "attach",
        require_workers: bool = False,
    ) -> Flow:
        """Submit a flow: afterwards every job exists and those without dependencies may run, or none does.

        Args:
            spec: 1 to 100,000 nodes.
            flow_id: Who the flow is. The same id and an equal flow attach to what is there, also while
                another submission is half-way; so a repeat is always safe. Left out: a new id.
            on_existing: What to do with an equal flow that has ended: ``attach`` to it as it is;
                ``retry_failed``: run again what did not complete; ``restart``: run all of it again.
            require_workers: Refuse unless live workers serve every queue and know every job.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The flow cannot run as written; nothing was sent.
            QueueNotServed, HandlerNotFound: ``require_workers`` and they are missing; nothing was sent.
            FlowConflict: Another flow has this id, or a job of a node exists already; nothing was changed.
            TransportError: No server, or it cannot take more. Repeat with the same ``flow_id``.
        """
        flow, name = check_flow(spec), check_flow_id(flow_id or uuid4().hex)
        if require_workers:
            self._run(workers.require(self._prefix, _jobs(flow), self._now()))
        with telemetry.adding(flow.home, flow.name, len(flow.nodes)) as trace:
            flow = replace(flow, trace=trace)
            reach = Reach(self._settings.kind == "cluster")
            made = backend.submit(self._prefix, flow, name, on_existing, self._clock, reach=reach)
            return Flow(self, self._run(made))

    def get(self, flow_id: str) -> Flow:
        """Find a flow by its id.

        Raises:
            FlowNotFound: There is none with this id.
        """
        return Flow(self, self._run(backend.find(self._prefix, check_flow_id(flow_id))))

    def list(
        self,
        *,
        state: FlowState | str | None = None,
        label: Label | None = None,
        since: datetime | None = None,
        before: FlowStatus | None = None,
        limit: int = 100,
    ) -> Sequence[FlowStatus]:
        """The newest flows that pass all filters, newest first. A flow is listed until its retention is over.

        Args:
            state: Only flows in this state.
            label: Only flows with this label: key and value.
            since: Only flows submitted at this time or later; with a time zone.
            before: Go on after this flow, the last of the page before.
            limit: Most flows to list, 1 to 10,000.

        Raises:
            ConfigurationError: A filter cannot be meant; nothing was sent.
        """
        return self._run(
            index.list_flows(self._prefix, state=state, label=label, since=since, before=before, limit=limit)
        )


class Flow:
    """A flow on the server. Holds no state of its own: every call asks."""

    def __init__(self, producer: FlowProducer, ref: FlowRef) -> None:
        self._ref, self._clock = ref, producer._clock  # noqa: SLF001  two halves of one thing
        self._backend = backend_of(ref)
        self._run = producer._run  # noqa: SLF001

    @property
    def id(self) -> str:
        """The id under which it can be found again."""
        return self._ref.flow_id

    @property
    def home(self) -> str:
        """The queue whose events tell of the flow."""
        return self._ref.home.queue

    def status(self) -> FlowStatus:
        """State and counts, in constant time.

        Raises:
            FlowNotFound: The flow is gone.
        """
        return self._run(self._backend.status(self._ref))

    def node(self, name: str) -> NodeStatus:
        """One node with its state.

        Raises:
            NodeNotFound: The flow has none of this name.
            FlowNotFound: The flow is gone.
        """
        return self._run(single.named(self._ref, [name]))[0]

    def nodes(self) -> list[NodeStatus]:
        """Every node with its state, dependencies before dependents. Read in pages of some 200 nodes."""
        return self._run(self._backend.nodes(self._ref))

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """The results of the nodes that have completed so far, by node name.

        Args:
            names: Only of these nodes, such as those of a fan-in; cost grows with their number, not with the
                flow. None: of all.

        Raises:
            NodeNotFound: The flow has no node of such a name.
        """
        if names is None:
            return self._run(self._backend.results(self._ref))
        return self._run(single.results(self._ref, names))

    def outcome(self) -> FlowOutcome:
        """Status, results and failures as they are now."""
        return self._run(self._backend.outcome(self._ref, self._run(self._backend.status(self._ref))))

    def wait(self, *, timeout: timedelta | None = None) -> FlowOutcome:
        """Wait until the flow has ended, whatever way; read the state from ``outcome.status``.

        Args:
            timeout: Longest time to wait, to the millisecond; None: for ever. The flow goes on after a
                time-out.

        Raises:
            WaitTimeout: It has not ended in time.
        """
        limit = None if timeout is None else milliseconds(timeout)
        return self._run(self._backend.wait(self._ref, limit, self._clock))

    def watch(
        self, *, after: str | None = None, timeout: timedelta | None = None
    ) -> Iterator[NodeChange | FlowChange]:
        """Tell what changes, until the flow has ended; the last is a ``FlowChange``.

        Begins with every node that has left ``waiting-children``. No node is told to have started before the
        dependencies that its rule waits for are told to have ended. Every difference is told once, though a
        node that goes through several states between two looks is told in the last of them, and events that
        nobody read are no loss.

        Args:
            after: Go on after the ``position`` of a change, also one told to another process: only what is
                different from what was told up to there.
            timeout: Longest time to wait for the end, to the millisecond; None: for ever.

        Raises:
            ConfigurationError: ``after`` is no position of this flow; raised at once, the others on the way.
            WaitTimeout: The flow has not ended in time. It goes on; so can watching, after the last position.
            FlowNotFound, FlowExpired: The flow is gone.
        """
        limit = None if timeout is None else milliseconds(timeout)
        return self._changes(watching.begin(self._ref, after, limit, self._clock))

    def _changes(self, watch: watching.Watch) -> Iterator[NodeChange | FlowChange]:
        while not watch.is_over:
            yield from self._run(watching.step(watch))

    def result(self, *, timeout: timedelta | None = None) -> Mapping[str, Json]:
        """Wait for the results of all nodes.

        Raises:
            FlowFailed: It failed; ``exc.failed`` lists the failed nodes, causes first.
            FlowCancelled: It was cancelled.
            WaitTimeout: It has not ended in time.
        """
        outcome = self.wait(timeout=timeout)
        backend.raise_unless_completed(outcome)
        return outcome.results

    def cancel(self, reason: str = "") -> FlowState:
        """End every node that has not ended; running handlers are told. Returns the state before."""
        return self._run(self._backend.cancel(self._ref, short_reason(reason), self._clock))

    def retry_failed(self) -> FlowState:
        """Run again what did not complete; completed nodes keep their results. Returns the new state.

        Does nothing to a flow that runs or has completed. Repeatable.
        """
        return self._run(self._backend.retry_failed(self._ref, self._clock))

    def restart(self) -> FlowState:
        """Run every node of a flow that has ended again, from the beginning. Returns the new state.

        Its results are forgotten, and nodes that running nodes had added are removed: they add them again.
        ``status().generation`` counts. Does nothing to a flow that runs; a repeat while it runs is safe.

        Raises:
            FlowNotFound, FlowExpired: The flow or its jobs are gone.
        """
        return self._run(self._backend.restart(self._ref, self._clock))

    def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """Add nodes to the flow while it runs, or after it has completed: then it runs again. All or none.

        The same nodes again change nothing, so a repeat is safe. Returns the state afterwards.

        Args:
            nodes: They may wait for nodes of the flow and for each other.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: They cannot be added as written; nothing was.
            NodeExists: The flow has another node of that name; nothing was added.
            FlowEnded: The flow has failed or was cancelled; nothing was added.
            FlowNotFound, FlowExpired: The flow is gone.
        """
        return self._run(self._backend.extend(self._ref, nodes, self._clock))


class AsyncFlowProducer(AsyncFacade):
    """``FlowProducer`` with awaitable calls; same arguments, same errors."""

    async def submit(
        self,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        on_existing: OnExisting = "attach",
        require_workers: bool = False,
    ) -> AsyncFlow:
        """See ``FlowProducer.submit``."""
        flow, name = check_flow(spec), check_flow_id(flow_id or uuid4().hex)
        if require_workers:
            await self._run(workers.require(self._prefix, _jobs(flow), await self._now()))
        with telemetry.adding(flow.home, flow.name, len(flow.nodes)) as trace:
            flow = replace(flow, trace=trace)
            reach = Reach(self._settings.kind == "cluster")
            made = backend.submit(self._prefix, flow, name, on_existing, self._clock, reach=reach)
            return AsyncFlow(self, await self._run(made))

    async def get(self, flow_id: str) -> AsyncFlow:
        """See ``FlowProducer.get``."""
        return AsyncFlow(self, await self._run(backend.find(self._prefix, check_flow_id(flow_id))))

    async def list(
        self,
        *,
        state: FlowState | str | None = None,
        label: Label | None = None,
        since: datetime | None = None,
        before: FlowStatus | None = None,
        limit: int = 100,
    ) -> Sequence[FlowStatus]:
        """See ``FlowProducer.list``."""
        return await self._run(
            index.list_flows(self._prefix, state=state, label=label, since=since, before=before, limit=limit)
        )


class AsyncFlow:
    """``Flow`` with awaitable calls; same arguments, same errors."""

    def __init__(self, producer: AsyncFlowProducer, ref: FlowRef) -> None:
        self._ref, self._clock = ref, producer._clock  # noqa: SLF001  two halves of one thing
        self._backend = backend_of(ref)
        self._run = producer._run  # noqa: SLF001

    @property
    def id(self) -> str:
        """See ``Flow.id``."""
        return self._ref.flow_id

    @property
    def home(self) -> str:
        """See ``Flow.home``."""
        return self._ref.home.queue

    async def status(self) -> FlowStatus:
        """See ``Flow.status``."""
        return await self._run(self._backend.status(self._ref))

    async def node(self, name: str) -> NodeStatus:
        """See ``Flow.node``."""
        return (await self._run(single.named(self._ref, [name])))[0]

    async def nodes(self) -> list[NodeStatus]:
        """See ``Flow.nodes``."""
        return await self._run(self._backend.nodes(self._ref))

    async def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """See ``Flow.results``."""
        if names is None:
            return await self._run(self._backend.results(self._ref))
        return await self._run(single.results(self._ref, names))

    async def outcome(self) -> FlowOutcome:
        """See ``Flow.outcome``."""
        return await self._run(
            self._backend.outcome(self._ref, await self._run(self._backend.status(self._ref)))
        )

    async def wait(self, *, timeout: timedelta | None = None) -> FlowOutcome:  # noqa: ASYNC109  the server waits
        """See ``Flow.wait``."""
        limit = None if timeout is None else milliseconds(timeout)
        return await self._run(self._backend.wait(self._ref, limit, self._clock))

    def watch(
        self, *, after: str | None = None, timeout: timedelta | None = None
    ) -> AsyncIterator[NodeChange | FlowChange]:
        """See ``Flow.watch``; for ``async for``."""
        limit = None if timeout is None else milliseconds(timeout)
        return self._changes(watching.begin(self._ref, after, limit, self._clock))

    async def _changes(self, watch: watching.Watch) -> AsyncIterator[NodeChange | FlowChange]:
        while not watch.is_over:
            for change in await self._run(watching.step(watch)):
                yield change

    async def result(self, *, timeout: timedelta | None = None) -> Mapping[str, Json]:  # noqa: ASYNC109  see wait
        """See ``Flow.result``."""
        outcome = await self.wait(timeout=timeout)
        backend.raise_unless_completed(outcome)
        return outcome.results

    async def cancel(self, reason: str = "") -> FlowState:
        """See ``Flow.cancel``."""
        return await self._run(self._backend.cancel(self._ref, short_reason(reason), self._clock))

    async def retry_failed(self) -> FlowState:
        """See ``Flow.retry_failed``."""
        return await self._run(self._backend.retry_failed(self._ref, self._clock))

    async def restart(self) -> FlowState:
        """See ``Flow.restart``."""
        return await self._run(self._backend.restart(self._ref, self._clock))

    async def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """See ``Flow.extend``."""
        return await self._run(self._backend.extend(self._ref, nodes, self._clock))


def _jobs(flow: CheckedFlow) -> dict[str, set[str]]:
    jobs: dict[str, set[str]] = defaultdict(set)
    for node in flow.nodes:
        jobs[node.queue].add(node.job)
    return jobs
