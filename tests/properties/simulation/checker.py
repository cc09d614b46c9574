"""What must hold when nothing breaks any more and every flow has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from glidemq_orchestrate import ArrayNode, FlowNode
from glidemq_orchestrate.errors import FlowNotFound
from glidemq_orchestrate.flows import backend, outcome
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.elements import array_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import find_ref
from glidemq_orchestrate.flows.portable import records
from glidemq_orchestrate.flows.status import FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys
from tests.chaos.leftovers import leftovers
from tests.properties.simulation.arrays import as_run
from tests.properties.simulation.expiry import Expiry
from tests.properties.simulation.ledger import FLOW, PREFIX, VANISHED, ServerLedger
from tests.properties.simulation.limits import LATENESS_MS, QUEUE_TIMEOUT, Limits, in_ms
from tests.properties.simulation.plan import JOB, Plan, fate, node_data
from tests.properties.simulation.scheduler import Scheduler
from tests.properties.simulation.users import ADDED, Users
from tests.rule_oracle import decisions, has_failed
from tests.server.lua.invariants import Scan
from tests.server.lua.keyspace import dump

_LEFT: Final = (
    "open", "owners", "ready", "roots", "again", "giving", "staying", "passed", "blocked", "notifying",
    "growing",
)  # fmt: skip


def possible_nodes(plan: Plan) -> dict[str, FlowNode]:
    """The nodes of a flow by name, and those that may be added to it."""
    nodes = {node.name: node for node in plan.spec.nodes}
    for node in plan.spec.nodes:
        assert isinstance(node.data, dict)
        if node.data["grows"]:
            name = f"{node.name}-x"
            nodes[name] = FlowNode(name, queue=node.queue, job=JOB, data=node_data(), after=[node.name])
    first = plan.spec.nodes[0]
    if any(what == "extend" for _, what in plan.steps):
        nodes[ADDED] = FlowNode(
            ADDED, queue=first.queue, job=JOB, data=node_data(), after=[first.name], rule="all_done"
        )
    return nodes


class Checker:
    """Compares the end of a history with what its plan allows."""

    def __init__(self, plan: Plan, scheduler: Scheduler, ledger: ServerLedger, users: Users) -> None:
        self.plan, self.scheduler, self.ledger, self.users = plan, scheduler, ledger, users
        self.path = plan.reach.path(PREFIX, check_flow(plan.spec).queues)
        self.client = scheduler.store.client
        self.expiry = Expiry(plan, scheduler, self._ref, self._flow_problems)

    @property
    def home(self) -> QueueKeys:
        """The queue of the record."""
        return self.ledger.home

    def _ref(self) -> FlowRef:
        """Where the current generation is."""
        return FlowRef(self.home, self.ledger.stored, self.path)

    def has_ended(self) -> bool:
        """Whether the flow has ended, or there is none."""
        if self.path == "staged":
            state = self.client.hget(self.home.flow(self.ledger.stored), "state")
            return self.users.is_gone if state is None else FlowState(state).is_terminal
        record = self.scheduler.run(ask(records.record(self.home, self.ledger.stored)))
        is_listed = self.client.zscore(self.home.key("gmo:portable"), self.ledger.stored) is not None
        return bool(record.end) and not is_listed and not record.note if record.fields else self.users.is_gone

    def has_staged(self) -> bool:
        """Whether something is left that was staged by somebody who has given up: nodes, or a generation."""
        listed = set(self.client.zrange(self.home.key("gmo:portable"), 0, -1))
        return bool(self.client.keys("*:gmo:grow:*") or listed - {self.ledger.stored})

    def has_entries(self) -> bool:
        """Whether a worker has not looked yet at an entry of a job that has ended; none may hold one."""
        streams = [QueueKeys(PREFIX, name).key("stream") for name in self.plan.queues]
        held = (self.client.xpending(one, GROUP)["pending"] for one in streams)
        return any(self.client.xlen(one) > some for one, some in zip(streams, held, strict=True))

    def has_due(self) -> bool:
        """Whether the time of a node has passed, and nobody has taken note; or a node was seen to wait."""
        late = (self.client.zcount(key, "-inf", self.scheduler.now) for key in self.client.keys("*:gmo:due"))
        return any(late) or bool(self.client.keys("*:gmo:awaiting"))

    def problems(self) -> Iterator[str]:
        """Everything that is not as it must be."""
        yield from self._leftovers()
        if self.expiry.is_gone:
            return
        try:
            ref = self.scheduler.run(find_ref(PREFIX, FLOW))
        except FlowNotFound:
            if self.users.is_submitted or not self.users.is_gone:
                yield "the flow was submitted, and there is none"
            yield from self._remains()
            return
        if ref.path != self.path:
            yield f"the flow took the path {ref.path}"
        if self.expiry.is_expired:
            yield from self.expiry.tombstone_problems()
            return
        if self.users.is_told_expired:
            yield "somebody was told that the jobs of the flow were removed, and they are there"
        yield from self._flow_problems(ref)
        yield from self._listing(self.scheduler.run(backend.backend_of(ref).status(ref)).state)

    def _flow_problems(self, ref: FlowRef) -> Iterator[str]:
        status: FlowStatus = self.scheduler.run(backend.backend_of(ref).status(ref))
        nodes: list[NodeStatus] = self.scheduler.run(backend.backend_of(ref).nodes(ref))
        found = {node.name: node for node in nodes}
        if not status.state.is_terminal:
            yield f"the flow is {status.state}"
        counts = Counter(str(node.state) for node in nodes)
        if (status.total, status.completed, status.failed, status.skipped) != (
            len(nodes), counts["completed"], counts["failed"], counts["skipped"]
        ):  # fmt: skip
            yield f"the record counts {status}, the nodes {dict(counts)}"
        if set(counts) - {"completed", "failed", "skipped"}:
            yield f"nodes have not ended: {dict(counts)}"
            return
        yield from self._membership(found)
        yield from self._own_ends(found)
        yield from self._results(ref, found)
        yield from self._verdicts(status, found)
        yield from self._limits.problems(status, found)

    @property
    def _limits(self) -> Limits:
        return Limits(self.plan, self.ledger, self.scheduler.disturbed_ms)

    def _membership(self, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        """The nodes of the specification, and those that completed nodes have added."""
        wanted = {node.name for node in self.plan.spec.nodes}
        wanted |= {
            f"{name}-x"
            for name, node in found.items()
            if node.state == "completed" and f"{name}-x" in self.ledger.nodes
        }
        if self.users.is_extended:
            wanted.add(ADDED)
        if wanted - set(found) or (set(found) - wanted - {ADDED} and not self.ledger.was_cancelled):
            yield f"the flow has the nodes {sorted(found)}, not {sorted(wanted)}"

    def _own_ends(self, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        """A node ends as its last accepted attempt says, or for the reason that it did not run."""
        spec = self.plan.spec
        can_be_cancelled = self.ledger.was_cancelled or spec.fail_fast or spec.deadline is not None
        for name, node in found.items():
            seen = self.ledger.accepted(name)
            if node.reason.startswith(("upstream ", "cancelled: ", QUEUE_TIMEOUT)) or (
                f": {node.reason}".endswith(": revoked")
                and can_be_cancelled  # of an array: "1 of 3 ...: revoked"
            ):
                if node.reason.startswith("cancelled: ") and not can_be_cancelled:
                    yield f"{name} was cancelled, and nobody did that: {node.reason}"
                continue
            if seen is None or seen["kind"] != node.state:
                yield f"{name} is {node.state} ({node.reason}), but what was accepted is {seen}"
            elif seen["kind"] != "completed" and seen["text"] != node.reason:
                yield f"{name} is {node.state} for {node.reason!r}, but what was accepted is {seen}"

    def _results(self, ref: FlowRef, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        given = self.scheduler.run(outcome.results(ref))
        results = {name: as_run(name, result) for name, result in given.items()}
        completed = [name for name, node in found.items() if node.state == "completed"]
        wanted = {name: (self.ledger.accepted(name) or {}).get("run") for name in completed}
        if results != wanted:
            yield f"the results are {results}, not {wanted}"
        for name in completed:
            if isinstance(self.ledger.nodes[name], ArrayNode):
                array = self.scheduler.run(array_of(ref, name))
                yield from self.scheduler.run(self.ledger.elements.result_problems(array, name))

    def _verdicts(self, status: FlowStatus, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        """The flow and its nodes end as rules and policies say."""
        spec, ledger = self.plan.spec, self.ledger
        ends = {name: str(node.state) for name, node in found.items() if name in ledger.nodes}
        if status.state == "cancelled":
            yield from self._cancelled(status)
            return
        state = "failed" if has_failed(ledger.nodes, ends) else "completed"
        if ledger.was_cancelled or spec.fail_fast or self._limits.was_stopped(status):
            if status.state == "completed" and state == "failed":
                yield f"the flow is completed, its nodes {ends}"
            return
        if state != status.state:
            yield f"the flow is {status.state}, but its nodes make it {state}: {ends}"
        if not ledger.is_loose:
            yield from self._rules(found, ends)

    def _rules(self, found: Mapping[str, NodeStatus], ends: Mapping[str, str]) -> Iterator[str]:
        """Nodes end as their rules say, and as planned if they run, unless a repeat may end differently."""
        ledger, planned = self.ledger, {node.name: fate(node) for node in self.plan.spec.nodes}
        is_repeated = ledger.round and (self.plan.heals or self._limits.may_end_differently)
        may_differ = bool(ledger.changes or is_repeated)
        for name, end in ends.items():
            is_late, accepted = found[name].reason.startswith(QUEUE_TIMEOUT), ledger.accepted(name)
            if may_differ and (is_late or (accepted is not None and accepted["kind"] == end)):
                continue
            allowed = decisions(ledger.nodes[name], {one: {end} for one, end in ends.items()}, ledger.nodes)
            if "run" in allowed and not may_differ:
                allowed.add("failed" if is_late else planned.get(name, "completed"))
            if end not in allowed:
                yield f"{name} ({ledger.nodes[name].rule}) is {end}, not {allowed}: {ends}"

    def _cancelled(self, status: FlowStatus) -> Iterator[str]:
        """Somebody did that; or its owner was silent for as long as the lease lasts, and had chosen so."""
        owner, heard = self.plan.owner, self.ledger.heard
        if not self.ledger.was_cancelled:
            yield "the flow was cancelled, and nobody did that"
        if not status.reason.startswith(VANISHED):
            return
        if owner is None or owner.on_expiry != "cancel":
            yield f"the flow was cancelled for its owner, {owner}"
        elif in_ms(status.finished_at) < heard + owner.lease_ms:
            yield f"the flow was cancelled by {status.finished_at}, its owner was heard of at {heard}"

    def _listing(self, state: str) -> Iterator[str]:
        """The flow is listed under its state, and nowhere else."""
        index, stored = self.home.flows(), self.ledger.stored
        listed = [one for one in FlowState if self.client.zscore(f"{index}:state:{one}", stored) is not None]
        if listed != [state] or self.client.zscore(index, stored) is None:
            yield f"the flow is {state}, and listed as {listed}"
        if others := set(self.client.zrange(index, 0, -1)) - {stored}:
            yield f"generations that were superseded are listed: {others}"

    # --- what must not be left ---

    def _leftovers(self) -> Iterator[str]:
        yield from leftovers(self.client, self.plan.queues)
        found = dump(self.client)
        for name in self.plan.queues:
            queue = QueueKeys(PREFIX, name)
            due = self.scheduler.now - LATENESS_MS[self.plan.path]
            yield from (f"queue {name}: {text}" for text in self._queue_problems(found, queue, due))
        if self.path == "staged" and (left := found.get(self.home.key("gmo:owners"))):
            yield f"the flow has ended, and leases are left: {left}"
        for table in _LEFT:
            if left := found.get(f"{self.home.flow(self.ledger.stored)}:{table}"):
                yield f"the flow has ended, and its {table} are {left}"

    @staticmethod
    def _queue_problems(found: Mapping[str, Any], queue: QueueKeys, now: int) -> Iterator[str]:
        scan = Scan(dict(found), queue.base)
        if "stream" not in scan.keys:
            yield "has no stream"
            return
        # Nodes that are ended without a run emit an event, and are not in the metrics of runs.
        yield from (problem for problem in scan.problems() if not problem.startswith("metrics:"))
        stream = scan.keys["stream"]
        if stream["entries"] or stream["pending"]["workers"]:
            yield f"its stream is {stream}"
        for key in ("scheduled", "lifo", "priority", "gmo:list-held", "gmo:awaiting"):
            if left := scan.keys.get(key):
                yield f"{key} is {left}"
        # The time of a node that has ended goes when it is due.
        if left := {one: at for one, at in scan.keys.get("gmo:due", {}).items() if at <= now}:
            yield f"gmo:due is {left}"

    def _remains(self) -> Iterator[str]:
        """An abandoned submission leaves nothing."""
        if jobs := self.client.keys("*:job:*") + self.client.keys("*:gmo:flow*"):
            yield f"the abandoned submission has left {jobs}"
