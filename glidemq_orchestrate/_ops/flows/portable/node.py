"""What a worker does for a node of a portable flow: reads its inputs, and carries its end to other queues.

The server has told the dependents in the queue of the node. Those elsewhere are told here; what a kill leaves
undone, and of nodes with many dependents all of it, ``advance.advance`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from glidemq_orchestrate._ops.flows.portable.advance import advance
from glidemq_orchestrate._ops.flows.portable.table import parts, send_all
from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._protocol.call import Op, ask, ask_all
from glidemq_orchestrate._protocol.flows import portable as calls
from glidemq_orchestrate._protocol.flows.claim import claimed
from glidemq_orchestrate._protocol.queue.changes import members
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.keys import QueueKeys


def inputs(queue: QueueKeys, job_id: str) -> Op[dict[str, str]]:
    """The stored results of the dependencies by node name, in whatever slot they are."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        cursor, refs = yield from ask(calls.deps_page(queue, job_id, cursor))
        for part in parts(refs):
            places = [calls.read_ref(queue.prefix, ref) for ref in part]
            rows = yield from ask_all([calls.result(*place) for place in places])
            found.update(row for row in rows if row is not None)
        if cursor == "0":
            return found


def carry(queue: QueueKeys, completed: Sequence[str], moved: Collection[str], clock: Clock) -> Op[None]:
    """Tell dependents in other queues of completed jobs; move on the flows that need more than that."""
    told = yield from ask_all([members(queue.parents(job_id)) for job_id in completed])
    telling = [
        calls.complete_child(other, parent, f"{queue.base}:{job_id}")
        for job_id, refs in zip(completed, told, strict=True)
        for other, parent in (calls.read_ref(queue.prefix, ref) for ref in refs)
        if other != queue
    ]
    yield from send_all(telling)
    for flow_id in moved:
        home = yield from ask(claimed(queue.prefix, flow_id))
        if home is not None:
            yield from advance(FlowRef(QueueKeys(queue.prefix, home), flow_id, "portable"), clock)
