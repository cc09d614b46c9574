"""What FlowProducer and AsyncFlowProducer do: submit flows and find them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol
from uuid import uuid4

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.attempts import client_supervision as tending
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.clients.operations.changing import FlowOperations
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import CheckedFlow, check_flow
from glidemq_orchestrate.flows.generation import FlowRef, OnExisting
from glidemq_orchestrate.flows.index import Label, find_ref, flow_statuses, list_flows
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.ownership import Ownership, Renewals
from glidemq_orchestrate.flows.plan import FlowPlan, plan_submission
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import check_request
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys, check_flow_id, check_queue_name
from glidemq_orchestrate.wire.stored import as_time


class FlowHandle(Protocol):
    """A ``Flow`` or an ``AsyncFlow``."""

    @property
    def _ref(self) -> FlowRef: ...


class ProducerOperations:
    """What can be done with the flows of a server, each written once for both clients."""

    def __init__(self, prefix: str, clock: Clock, reach: Reach) -> None:
        self._prefix, self._clock, self._reach = prefix, clock, reach
        self._renewals = Renewals()

    def _owned_by(self, owner: Owner | None) -> Ownership | None:
        return None if owner is None else Ownership(owner, self._renewals)

    def submit(  # noqa: PLR0913  what is submitted, and how
        self,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        on_existing: OnExisting = "attach",
        idempotency_key: str = "",
        owner: Owner | None = None,
        require_workers: bool = False,
    ) -> Op[FlowOperations]:
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
        flow, name = check_flow(spec), _name(flow_id, idempotency_key)
        if require_workers:
            yield from workers.require(self._prefix, _jobs(flow), self._clock.now_ms())
        with telemetry.adding(flow.home, flow.name, len(flow.nodes)) as trace:
            flow = replace(flow, trace=trace, request=check_request(idempotency_key), owner=owner)
            owned, reach = self._owned_by(owner), self._reach
            ref = yield from submit_flow(
                self._prefix, flow, name, on_existing, self._clock, reach=reach, owned=owned
            )
            return FlowOperations(ref, self._clock, owned)

    def check_workers(self, jobs: FlowSpec | Mapping[str, Iterable[str]]) -> Op[None]:
        """Look whether live workers can run jobs now; a worker of Node.js is assumed to have every handler.

        Args:
            jobs: A flow, or the names of jobs by queue.

        Raises:
            QueueNotServed: Queues have no live worker: ``exc.queues``.
            HandlerNotFound: No live worker of a queue has a handler for a job: ``exc.missing``, by queue.
        """
        yield from workers.require(self._prefix, _by_queue(jobs), self._clock.now_ms())

    def now(self) -> Op[datetime]:
        """The server's time, by which the times of flows go; to some milliseconds, UTC."""
        yield from ()  # without a call to the server
        return as_time(self._clock.now_ms())

    def supervise(self, home: str) -> Op[Sequence[str]]:
        """``Flow.supervise`` for all flows of a home queue.

        Args:
            home: The queue of most nodes of these flows; ``flow.home`` is its name.

        Returns:
            The queues that nobody supervises, and that the server does not let this client supervise.
        """
        keys = QueueKeys(self._prefix, check_queue_name(home))
        return (yield from tending.once(tending.for_home(keys, self._clock)))

    def plan(self, spec: FlowSpec, *, flow_id: str) -> Op[FlowPlan]:
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
        name, flow = check_flow_id(flow_id), check_flow(spec)
        return plan_submission(self._prefix, name, flow, self._reach)

    def get(self, flow_id: str, *, owner: Owner | None = None) -> Op[FlowOperations]:
        """Find a flow by its id: its current generation.

        Args:
            flow_id: As for ``submit``.
            owner: The owner: it owns the flow from the first ``renew``, ``wait``, ``watch`` or ``result`` on.

        Raises:
            FlowNotFound: There is none with this id.
        """
        found = yield from find_ref(self._prefix, check_flow_id(flow_id))
        return FlowOperations(found, self._clock, self._owned_by(owner))

    def statuses(self, flows: Iterable[FlowHandle]) -> Op[Sequence[FlowStatus | None]]:
        """The status of each of many flows, in this order, 250 in a trip; None for one that is gone.

        Each is that of the generation that the handle stands for; ``superseded_by`` is a later one.
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
        return list_flows(self._prefix, state=state, label=label, since=since, before=before, limit=limit)


def _name(flow_id: str | None, idempotency_key: str) -> str:
    """The id for a submission: a new one if none is given.

    Raises:
        ConfigurationError: It is not valid, or there is a key and none.
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
    """The job names of a flow by queue: what live workers must be able to run."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for node in flow.nodes:
        jobs[node.queue].add(node.job)
    return jobs
