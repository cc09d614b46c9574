"""What a worker does for a node of a portable flow: reads its inputs, and carries its end to other queues.

The server has told the dependents in the queue of the node. Those elsewhere are told here; what a kill leaves
undone, ``flow_portable.advance`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from glidemq_orchestrate._ops import flow_portable
from glidemq_orchestrate._ops.flow import FlowRef
from glidemq_orchestrate._ops.portable_table import parts
from glidemq_orchestrate._protocol import portable as calls
from glidemq_orchestrate._protocol.call import Op, ask, ask_all
from glidemq_orchestrate._protocol.job_changes import members
from glidemq_orchestrate._protocol.orchestrate import flow_home_queue
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import FlowNotFound
from glidemq_orchestrate.keys import QueueKeys


def inputs(queue: QueueKeys, job_id: str) -> Op[dict[str, str]]:
    """The stored results of the dependencies by node name, in whatever slot they are."""
    refs = yield from ask(members(queue.deps(job_id)))
    found: dict[str, str] = {}
    for part in parts(refs):
        places = [calls.read_ref(queue.prefix, ref) for ref in part]
        rows = yield from ask_all([calls.result(*place) for place in places])
        found.update(row for row in rows if row is not None)
    return found


def carry(queue: QueueKeys, completed: Sequence[str], failed: Collection[str], clock: Clock) -> Op[None]:
    """Tell dependents in other queues of completed jobs; end what cannot start in flows with failures."""
    told = yield from ask_all([members(queue.parents(job_id)) for job_id in completed])
    telling = [
        calls.complete_child(other, parent, f"{queue.base}:{job_id}")
        for job_id, refs in zip(completed, told, strict=True)
        for other, parent in (calls.read_ref(queue.prefix, ref) for ref in refs)
        if other != queue
    ]
    for part in parts(telling):
        yield from ask_all(part)
    for flow_id in failed:
        home = yield from ask(flow_home_queue(queue.prefix, flow_id))
        if home is not None:
            with suppress(FlowNotFound):
                yield from flow_portable.advance(FlowRef(QueueKeys(queue.prefix, home), flow_id), clock)
