"""The operations of FlowProducer and AsyncFlowProducer: submit, plan, find and list flows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol
from uuid import uuid4

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.attempts import client_supervision, workers
from glidemq_orchestrate.clients.operations.flow import FlowOperations
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, WorkersMissing
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import CheckedFlow, check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import Label, find_ref, flow_statuses, list_flows
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.ownership import Ownership, Renewals
from glidemq_orchestrate.flows.plan import FlowPlan, plan_submission
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.flows.status import FlowState, FlowStatus, OnExisting
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.values import check_request
from glidemq_orchestrate.shards import KnownShards, Shards
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys, check_flow_id, check_queue_name
from glidemq_orchestrate.wire.stored import as_time


class FlowHandle(Protocol):
    """A ``Flow`` or an ``AsyncFlow``."""

    @property
    def _ref(self) -> FlowRef: ...


class ProducerOperations:
    """The operations on the flows of a server, written once for both clients."""

    def __init__(self, prefix: str, clock: Clock, reach: Reach, known: Callable[[], KnownShards]) -> None:
        self._prefix, self._clock, self._reach = prefix, clock, reach
        self._renewals, self._known = Renewals(), known

    def _owned_by(self, owner: Owner | None) -> Ownership | None:
        return None if owner is None else Ownership(owner, self._renewals)

    def submit(  # noqa: PLR0913  the flow, and the options of its submission
        self,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        on_existing: OnExisting = "attach",
        idempotency_key: str = "",
        owner: Owner | None = None,
        require_workers: bool = False,
    ) -> Op[FlowOperations]:
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
        flow, name = check_flow(spec), _name(flow_id, idempotency_key)
        if require_workers:
            try:
                yield from workers.require(self._prefix, _jobs(flow), self._clock.now_ms())
            except WorkersMissing:
                if on_existing != "attach" or not (yield from self._has_ended(name)):
                    raise
        with telemetry.adding(flow.home, flow.name, len(flow.nodes)) as trace:
            flow = replace(flow, trace=trace, request=check_request(idempotency_key), owner=owner)
            owned, reach = self._owned_by(owner), self._reach
            spread = yield from self._spread(flow)
            ref = yield from submit_flow(
                self._prefix, flow, name, on_existing, self._clock, reach=reach, owned=owned, spread=spread
            )
            return FlowOperations(ref, self._clock, owned)

    def _spread(self, flow: CheckedFlow) -> Op[Mapping[str, Shards]]:
        """The shards of the queues of a flow."""
        queues = [QueueKeys(self._prefix, queue) for queue in flow.queues]
        return (yield from self._known().of(queues, self._clock))

    def _has_ended(self, flow_id: str) -> Op[bool]:
        """Whether a flow with this id exists and has ended, so that joining it runs nothing."""
        try:
            ref = yield from find_ref(self._prefix, flow_id)
        except FlowNotFound:
            return False
        status = (yield from flow_statuses([ref]))[0]
        return status is not None and status.state.is_terminal

    def check_workers(self, jobs: FlowSpec | Mapping[str, Iterable[str]]) -> Op[None]:
        """Check that live workers can run jobs now; a Node worker is assumed to have every handler.

        Args:
            jobs: A flow, or job names by queue.

        Raises:
            QueueNotServed: ``exc.queues`` have no live worker.
            HandlerNotFound: Live workers have no handler for the jobs in ``exc.missing``, by queue.
        """
        yield from workers.require(self._prefix, _by_queue(jobs), self._clock.now_ms())

    def now(self) -> Op[datetime]:
        """Return the server's time, by which times of flows are set: UTC, within a few milliseconds."""
        yield from ()  # without a call to the server
        return as_time(self._clock.now_ms())

    def supervise(self, home: str) -> Op[Sequence[str]]:
        """``Flow.supervise`` for all flows of a home queue.

        Args:
            home: The home queue: ``flow.home``.

        Returns:
            The queues without a supervisor that the server does not permit this client to supervise.
        """
        keys = QueueKeys(self._prefix, check_queue_name(home))
        return (yield from client_supervision.once(client_supervision.for_home(keys, self._clock)))

    def plan(self, spec: FlowSpec, *, flow_id: str) -> Op[FlowPlan]:
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
        name, flow = check_flow_id(flow_id), check_flow(spec)
        spread = yield from self._spread(flow)
        return (yield from plan_submission(self._prefix, name, flow, self._reach, spread))

    def get(self, flow_id: str, *, owner: Owner | None = None) -> Op[FlowOperations]:
        """Find the current generation of a flow by id.

        Args:
            flow_id: As for ``submit``.
            owner: The owner; it owns the flow from the first ``renew``, ``wait``, ``watch`` or ``result``.

        Raises:
            FlowNotFound: No flow has this id.
        """
        found = yield from find_ref(self._prefix, check_flow_id(flow_id))
        return FlowOperations(found, self._clock, self._owned_by(owner))

    def statuses(self, flows: Iterable[FlowHandle]) -> Op[Sequence[FlowStatus | None]]:
        """Read the statuses of many flows, in this order, 250 per round trip; None for a missing flow.

        Each status is of the generation of its handle; ``superseded_by`` is a later generation.
        """
        refs = [flow._ref for flow in flows]  # noqa: SLF001  its own handles
        return flow_statuses(refs)

    def list(
        self,
        *,
        state: FlowState | str | None = None,
        label: Label | None = None,
        since: datetime | None = None,
        before: FlowStatus | None = None,
        limit: int = 100,
    ) -> Op[Sequence[FlowStatus]]:
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
        return list_flows(self._prefix, state=state, label=label, since=since, before=before, limit=limit)


def _name(flow_id: str | None, idempotency_key: str) -> str:
    """The flow id for a submission; a new one by default.

    Raises:
        ConfigurationError: The id is not valid, or there is a key without an id.
    """
    has_key = bool(check_request(idempotency_key))
    if flow_id is not None:
        return check_flow_id(flow_id)
    if has_key:
        raise ConfigurationError("idempotency_key needs a flow_id: a repeat would submit another flow")
    return uuid4().hex


def _by_queue(jobs: FlowSpec | Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    if isinstance(jobs, FlowSpec):
        return _jobs(check_flow(jobs))
    return {check_queue_name(queue): set(names) for queue, names in jobs.items()}


def _jobs(flow: CheckedFlow) -> dict[str, set[str]]:
    """The job names of a flow by queue, for the check of live workers."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for node in flow.nodes:
        jobs[node.queue].add(node.job)
    return jobs
