"""What a worker does for a node of a portable flow: read its inputs, and notify dependents in other queues.

The server notifies dependents in the queue of the node; those in other queues are notified here. What a kill
leaves undone, and all of it for nodes with many dependents, ``advance.advance`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from glidemq_orchestrate._ops.flows.portable.advance import advance
from glidemq_orchestrate._ops.flows.portable.trips import parts, send_all
from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._protocol.call import Op, ask, ask_all
from glidemq_orchestrate._protocol.flows.claim import claimed
from glidemq_orchestrate._protocol.flows.portable import gates, node_jobs
from glidemq_orchestrate._protocol.queue.changes import members
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.keys import QueueKeys


def inputs(queue: QueueKeys, job_id: str) -> Op[tuple[dict[str, str], list[str]]]:
    """The stored results of the dependencies by node name, in any slot; and jobs whose results are gone."""
    found: dict[str, str] = {}
    removed: list[str] = []
    cursor = "0"
    while True:
        cursor, refs = yield from ask(gates.deps_page(queue, job_id, cursor))
        for part in parts(refs):
            places = [gates.read_ref(queue.prefix, ref) for ref in part if not gates.is_gate(ref)]
            rows = yield from ask_all([node_jobs.result(*place) for place in places])
            found.update({row.name: row.text for row in rows if row and row.text is not None})
            removed += [place[1] for place, row in zip(places, rows, strict=True) if row and row.text is None]
        if cursor == "0":
            return found, removed


def carry(queue: QueueKeys, completed: Sequence[str], moved: Collection[str], clock: Clock) -> Op[None]:
    """Notify dependents of completed jobs in other queues; advance the flows that need more than that."""
    dependents = yield from ask_all([members(queue.parents(job_id)) for job_id in completed])
    notifying = [
        gates.complete_child(other, parent, f"{queue.base}:{job_id}")
        for job_id, refs in zip(completed, dependents, strict=True)
        for other, parent in (gates.read_ref(queue.prefix, ref) for ref in refs)
        if other != queue
    ]
    yield from send_all(notifying)
    for flow_id in moved:
        home = yield from ask(claimed(queue.prefix, flow_id))
        if home is not None:
            yield from advance(FlowRef(QueueKeys(queue.prefix, home), flow_id, "portable"), clock)
