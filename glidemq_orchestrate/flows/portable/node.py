"""What workers do for nodes of portable flows: read inputs, and notify dependents in other queues.

The server notifies dependents in the queue of the node; those in other queues are notified here.
``advance.advance`` does what a kill left undone, and all of it for nodes with many dependents.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from glidemq_orchestrate.flows.dependencies import EAGER, ORDINARY, Policy
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.flows.node_table import Inputs
from glidemq_orchestrate.flows.portable import gates, node_jobs
from glidemq_orchestrate.flows.portable import record as records
from glidemq_orchestrate.flows.portable import table as tables
from glidemq_orchestrate.flows.portable.advance import advance
from glidemq_orchestrate.flows.trips import parts, send_all
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.changes import complete_child
from glidemq_orchestrate.wire import keys
from glidemq_orchestrate.wire.call import Op, ask, ask_all, members
from glidemq_orchestrate.wire.keys import QueueKeys, is_node_id


def inputs(queue: QueueKeys, job_id: str) -> Op[Inputs]:
    """Read the inputs of a node from its dependencies, in any slot."""
    found, removed, has_open = dict[str, str](), list[str](), False
    cursor = "0"
    while True:
        cursor, refs = yield from ask(gates.deps_page(queue, job_id, cursor))
        for part in parts(refs):
            places = [keys.read_ref(queue.prefix, ref) for ref in part if not keys.is_gate(ref)]
            rows = yield from ask_all([node_jobs.result(*place) for place in places])
            found.update({row.name: row.text for row in rows if row and row.text is not None})
            missing = [
                (place[1], row) for place, row in zip(places, rows, strict=True) if row and row.text is None
            ]
            removed += [job for job, row in missing if not row.is_open and is_node_id(job_id, job)]
            has_open = has_open or any(row.is_open for _, row in missing)
        if cursor == "0":
            return Inputs(found, removed, has_open)


def hold(queue: QueueKeys, job_id: str, flow_id: str, node: str) -> Op[bool]:
    """Put a fetched node behind the gate of the next round, since its dependencies rerun.

    Returns False, and does nothing, if its rule lets it run before all dependencies have ended. Otherwise the
    caller must then let the job wait for its dependencies. Idempotent.
    """
    home, policy = yield from _policy(queue, flow_id, node)
    if home is None or policy.rule in EAGER:
        return False
    record = yield from ask(records.record(home, flow_id))
    number = record.number + bool(record.note)
    yield from ask(gates.add_deps(queue, job_id, [gates.gate(queue, number)]))
    return True


def has_queue_timeout(queue: QueueKeys, flow_id: str, node: str) -> Op[bool]:
    """Whether a node fails if no worker starts it in time."""
    _, policy = yield from _policy(queue, flow_id, node)
    return bool(policy.queue_timeout_ms)


def _policy(queue: QueueKeys, flow_id: str, node: str) -> Op[tuple[QueueKeys | None, Policy]]:
    """The home of a flow, None if its id is unclaimed; and the policy of a node."""
    name = yield from ask(home_of(queue.prefix, flow_id))
    if name is None:
        return None, ORDINARY
    home = QueueKeys(queue.prefix, name)
    text = yield from ask(tables.policy(home, flow_id, node))
    return home, Policy.read(text) if text else ORDINARY


def carry(queue: QueueKeys, completed: Sequence[str], moved: Collection[str], clock: Clock) -> Op[None]:
    """Notify dependents of completed jobs in other queues; advance the flows where that is not enough."""
    dependents = yield from ask_all([members(queue.parents(job_id)) for job_id in completed])
    notifying = [
        complete_child(other, parent, f"{queue.base}:{job_id}")
        for job_id, refs in zip(completed, dependents, strict=True)
        for other, parent in (keys.read_ref(queue.prefix, ref) for ref in refs)
        if other != queue
    ]
    yield from send_all(notifying)
    for flow_id in moved:
        home = yield from ask(home_of(queue.prefix, flow_id))
        if home is not None:
            yield from advance(FlowRef(QueueKeys(queue.prefix, home), flow_id, "portable"), clock)


def removal_marks(queue: QueueKeys, nodes: Sequence[str]) -> Op[dict[str, str]]:
    """The nodes whose flows have ended, each with its argument for ``gmo_remove_jobs``."""
    owners = yield from ask_all([node_jobs.owner(queue, one) for one in nodes])
    marks: dict[str, str] = {}
    for flow_id in {*owners}:
        home = yield from ask(home_of(queue.prefix, flow_id))
        marks[flow_id] = "-"
        if home is not None:
            record = yield from ask(records.record(QueueKeys(queue.prefix, home), flow_id))
            marks[flow_id] = "!" if record.state.is_terminal else ""
    flows = dict(zip(nodes, owners, strict=True))
    return {job_id: marks[flow_id] for job_id, flow_id in flows.items() if marks[flow_id]}
