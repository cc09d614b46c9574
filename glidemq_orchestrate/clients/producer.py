"""FlowProducer and AsyncFlowProducer: submit flows, find them again, and control them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from glidemq_orchestrate import telemetry
from glidemq_orchestrate._ops.flows import backend, generations, index
from glidemq_orchestrate._ops.flows import nodes as single
from glidemq_orchestrate._ops.flows import watch as watching
from glidemq_orchestrate._ops.flows.backend import Reach, backend_of
from glidemq_orchestrate._ops.flows.index import Label
from glidemq_orchestrate._ops.flows.staged import FlowRef, OnExisting
from glidemq_orchestrate._ops.worker import workers
from glidemq_orchestrate.arguments import explain_methods
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.flows.change import FlowChange, NodeChange
from glidemq_orchestrate.flows.checked import CheckedFlow, check_flow
from glidemq_orchestrate.flows.plan import FlowPlan
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowSpec, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.keys import check_flow_id
from glidemq_orchestrate.names import REQUEST, short_reason

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
        request: str = "",
        require_workers: bool = False,
    ) -> Flow:
        """Submit a flow, all or nothing: every job is created, and those without dependencies may run.

        Args:
            spec: 1 to 100,000 nodes.
            flow_id: The identity of the flow. The same id and an equal flow attach to the existing one, even
                while another submission is under way; so a repeat is always safe. Left out: a new id.
            on_existing: What to do when there is a flow of this id. ``attach``: join it as it is; another
                specification is refused. ``retry_failed``: run again what did not complete. With another
                specification this begins a new generation of the flow that keeps the results of the nodes
                that have completed, and that have not changed in queue, job, data, dependencies, rule or
                fallbacks, nor follow one that has; see ``plan``. ``restart``: a new generation that keeps
                nothing, with the same or another specification. A new generation cancels the one before.
            request: Whoever asks, such as the id of a click or of a run, at most 256 characters. A restart
                with the request of an earlier one finds the generation that that one began, so it is safe to
                repeat; without a request each restart begins another.
            require_workers: Refuse unless live workers serve every queue and have a handler for every job.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: The flow cannot run as written; nothing was sent.
            QueueNotServed, HandlerNotFound: ``require_workers``, and some are missing; nothing was sent.
            FlowConflict: Another flow has this id, or a job of a node exists already; nothing was changed.
                Also where a new generation was asked for with queues in several slots of a cluster, and those
                of the flow are in one.
            GenerationTaken: Other callers kept beginning generations; nothing was changed.
            TransportError: The server is unreachable or overloaded. Repeat with the same ``flow_id``.
        """
        flow, name = check_flow(spec), check_flow_id(flow_id or uuid4().hex)
        if require_workers:
            self._run(workers.require(self._prefix, _jobs(flow), self._now()))
        with telemetry.adding(flow.home, flow.name, len(flow.nodes)) as trace:
            flow = replace(flow, trace=trace, request=_request(request))
            reach = Reach(self._settings.kind == "cluster")
            made = backend.submit(self._prefix, flow, name, on_existing, self._clock, reach=reach)
            return Flow(self, self._run(made))

    def plan(self, spec: FlowSpec, *, flow_id: str) -> FlowPlan:
        """What ``submit(spec, flow_id=flow_id, on_existing="retry_failed")`` would run and keep, and why.

        Changes nothing.

        Raises:
            FlowNotFound: There is no flow with this id.
            InvalidFlow, ConfigurationError, EncodeError, PayloadTooLarge: As ``submit``.
        """
        return self._run(generations.plan(self._prefix, check_flow_id(flow_id), check_flow(spec)))

    def get(self, flow_id: str) -> Flow:
        """Find a flow by its id: its current generation.

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
        return self._run(
            index.list_flows(self._prefix, state=state, label=label, since=since, before=before, limit=limit)
        )


@explain_methods
class Flow:
    """A flow on the server. Holds no state of its own: every call asks the server."""

    def __init__(self, producer: FlowProducer, ref: FlowRef) -> None:
        self._ref, self._clock = ref, producer._clock  # noqa: SLF001  the flow's own producer
        self._backend = backend_of(ref)
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
            FlowNotFound: The flow no longer exists.
        """
        return self._run(single.named(self._ref, [name]))[0]

    def nodes(self) -> list[NodeStatus]:
        """Every node with its state, dependencies before dependents. Read in pages of some 200 nodes."""
        return self._run(self._backend.nodes(self._ref))

    def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """The results of the nodes that have completed so far, by node name.

        Args:
            names: Only of these nodes, such as those of a fan-in; the cost grows with their number, not with
                the flow. None: of all.

        Raises:
            NodeNotFound: The flow has no node of such a name.
        """
        if names is None:
            return self._run(self._backend.results(self._ref))
        return self._run(single.results(self._ref, names))

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
        return self._run(self._backend.wait(self._ref, limit, self._clock))

    def watch(
        self, *, after: str | None = None, timeout: timedelta | None = None
    ) -> Iterator[NodeChange | FlowChange]:
        """Yield the changes of the flow until it has ended; the last is a ``FlowChange``.

        Starts with every node that has left ``waiting-children``. No node is reported as started before the
        dependencies that its rule waits for are reported as ended. Every difference is reported once; a node
        that passes through several states between two reads is reported in the last of them, and no change is
        missed if events were trimmed unread.

        Args:
            after: Continue after the ``position`` of a change, also one read by another process: only the
                differences since then.
            timeout: Longest time to wait for the end, to the millisecond; None: for ever.

        Raises:
            ConfigurationError: ``after`` is not a position of this flow; raised immediately, the others while
                iterating.
            WaitTimeout: The flow has not ended in time. It continues; watch again after the last position.
            FlowNotFound, FlowExpired: The flow no longer exists.
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

    def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """End every node that has not ended; running handlers are asked to stop. Returns the state before.

        Args:
            reason: What status and errors say.
            generation: Cancel only if this is the current generation.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound: The flow no longer exists, or never had this generation.
        """
        self._run(generations.fenced(self._ref, generation))
        return self._run(self._backend.cancel(self._ref, short_reason(reason), self._clock))

    def history(self) -> Sequence[FlowStatus]:
        """The status of each generation, oldest first: the current one and at most 100 before it.

        ``superseded_by`` is set in all but the last.

        Raises:
            FlowNotFound: The flow no longer exists.
        """
        return self._run(generations.history(self._ref))

    def retry_failed(self) -> FlowState:
        """Run again every node that did not complete; the others keep their results. Returns the new state.

        Does nothing to a flow that runs or has completed. Repeatable.
        """
        return self._run(self._backend.retry_failed(self._ref, self._clock))

    def restart(self, *, request: str = "") -> FlowState:
        """Run all of it again, from the beginning, as a new generation. Returns the state of that one.

        A running flow is cancelled first. Afterwards this object stands for the new generation; no result of
        the one before is seen again. Nodes that running nodes had added are left out: they are added again.

        Args:
            request: As in ``FlowProducer.submit``: with the same one a repeat is safe.

        Raises:
            Superseded: Another generation has begun; nothing was changed.
            FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
        """
        self._ref = self._run(generations.restart(self._ref, _request(request), self._clock))
        return self.status().state

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


class AsyncFlowProducer(AsyncFacade):
    """``FlowProducer`` with awaitable calls; same arguments, same errors."""

    async def submit(
        self,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        on_existing: OnExisting = "attach",
        request: str = "",
        require_workers: bool = False,
    ) -> AsyncFlow:
        """See ``FlowProducer.submit``."""
        flow, name = check_flow(spec), check_flow_id(flow_id or uuid4().hex)
        if require_workers:
            await self._run(workers.require(self._prefix, _jobs(flow), await self._now()))
        with telemetry.adding(flow.home, flow.name, len(flow.nodes)) as trace:
            flow = replace(flow, trace=trace, request=_request(request))
            reach = Reach(self._settings.kind == "cluster")
            made = backend.submit(self._prefix, flow, name, on_existing, self._clock, reach=reach)
            return AsyncFlow(self, await self._run(made))

    async def plan(self, spec: FlowSpec, *, flow_id: str) -> FlowPlan:
        """See ``FlowProducer.plan``."""
        return await self._run(generations.plan(self._prefix, check_flow_id(flow_id), check_flow(spec)))

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


@explain_methods
class AsyncFlow:
    """``Flow`` with awaitable calls; same arguments, same errors."""

    def __init__(self, producer: AsyncFlowProducer, ref: FlowRef) -> None:
        self._ref, self._clock = ref, producer._clock  # noqa: SLF001  the flow's own producer
        self._backend = backend_of(ref)
        self._run = producer._run  # noqa: SLF001

    @property
    def id(self) -> str:
        """See ``Flow.id``."""
        return self._ref.public_id

    @property
    def generation(self) -> int:
        """See ``Flow.generation``."""
        return self._ref.generation

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

    async def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """See ``Flow.cancel``."""
        await self._run(generations.fenced(self._ref, generation))
        return await self._run(self._backend.cancel(self._ref, short_reason(reason), self._clock))

    async def history(self) -> Sequence[FlowStatus]:
        """See ``Flow.history``."""
        return await self._run(generations.history(self._ref))

    async def retry_failed(self) -> FlowState:
        """See ``Flow.retry_failed``."""
        return await self._run(self._backend.retry_failed(self._ref, self._clock))

    async def restart(self, *, request: str = "") -> FlowState:
        """See ``Flow.restart``."""
        self._ref = await self._run(generations.restart(self._ref, _request(request), self._clock))
        return (await self.status()).state

    async def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """See ``Flow.extend``."""
        return await self._run(self._backend.extend(self._ref, nodes, self._clock))


def _request(request: str) -> str:
    return REQUEST.check(request) if request else ""


def _jobs(flow: CheckedFlow) -> dict[str, set[str]]:
    """The job names of a flow by queue: what live workers must be able to run."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for node in flow.nodes:
        jobs[node.queue].add(node.job)
    return jobs
