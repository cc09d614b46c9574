"""Submits a portable flow: stages it, makes its generation the current one, and advances it."""

from __future__ import annotations

import json

from glidemq_orchestrate.errors import GenerationTaken, InvalidFlow
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation import Before, FlowRef
from glidemq_orchestrate.flows.portable import succession
from glidemq_orchestrate.flows.portable.advance import advance
from glidemq_orchestrate.flows.portable.changes import retry_failed
from glidemq_orchestrate.flows.portable.staging import stage
from glidemq_orchestrate.flows.status import FlowState, OnExisting
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.texts import shown
from glidemq_orchestrate.wire.call import Op


def submit(ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
    """Write a flow node by node and start it, or attach to the equal flow that exists. Idempotent.

    Raises:
        InvalidFlow: A node has an ordering key, or is an array. Nothing is left behind.
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
        FlowIncomplete: Other clients repeatedly aborted the submission.
    """
    _refuse_arrays(flow)
    _refuse_ordering(flow)
    yield from stage(ref, flow, clock)
    state = yield from advance(ref, clock)
    if on_existing == "retry_failed" and state is not FlowState.COMPLETED:
        yield from retry_failed(ref, clock, flow.owner)


def begin(ref: FlowRef, flow: CheckedFlow, before: Before, clock: Clock) -> Op[None]:
    """Write a generation and start it in place of the current one. Idempotent.

    Raises:
        InvalidFlow: A node has an ordering key, or is an array. Nothing is left behind.
        GenerationTaken: Another generation has begun. The staged nodes are removed.
        FlowConflict, FlowIncomplete: See ``submit``.
    """
    _refuse_arrays(flow)
    _refuse_ordering(flow)
    yield from stage(ref, flow, clock, before)
    if not (yield from succession.decide(ref)):
        raise GenerationTaken(f"another generation of flow {ref.public_id} began")
    yield from advance(ref, clock)


def _refuse_arrays(flow: CheckedFlow) -> None:
    """Refuse array nodes: a server function hands out their elements, and settles the flow in its slot."""
    for node in flow.nodes:
        if node.array is not None:
            queues = ", ".join(map(shown, flow.queues))
            raise InvalidFlow(
                f"node {shown(node.name)} is an array, which needs all queues of the flow in one slot of the "
                f"cluster, and server functions; this flow has {queues}. Fix: put its nodes into one queue"
            )


def _refuse_ordering(flow: CheckedFlow) -> None:
    """Refuse ordering keys: their jobs would deadlock.

    The server numbers a job when it is created, and here dependents are created first: they would have to run
    before their dependencies. And the key never moves past a node that ends without having run.
    """
    for node in flow.nodes:
        if node.is_placed and "ordering" in json.loads(node.options):
            queues = ", ".join(map(shown, flow.queues))
            raise InvalidFlow(
                f"node {shown(node.name)} has an ordering key, which needs all queues of the flow in one "
                f"slot of the cluster, and this flow has {queues}. Fix: put its nodes into one queue, or "
                "leave the ordering out"
            )
