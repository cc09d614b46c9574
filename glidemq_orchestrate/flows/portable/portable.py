"""The portable path: flows whose queues are in several slots, and servers without our functions.

No call touches two slots, and none depends on a function of ours. A kill between two calls leaves either
nodes held back by gates (the next submission continues, or the sweep removes them), or a record that says
``running``: any later ``advance``, by any client, does what is missing. Nothing else carries a portable flow
across queues, so workers, waiting clients and supervisors all call it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import ConfigurationError, GenerationTaken, InvalidFlow, WaitTimeout
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation_record import Before
from glidemq_orchestrate.flows.portable import record as records
from glidemq_orchestrate.flows.portable import submit as portable_submit
from glidemq_orchestrate.flows.portable import succession
from glidemq_orchestrate.flows.portable.advance import advance
from glidemq_orchestrate.flows.portable.changes import retry_failed
from glidemq_orchestrate.flows.portable.reading import living, outcome, status, unsuperseded
from glidemq_orchestrate.flows.ref import FlowRef, OnExisting
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import shown
from glidemq_orchestrate.server.confirm import unconfirmed
from glidemq_orchestrate.wire.call import Op, ask

POLL_MS: Final = 500
MAX_REST_MS: Final = 2_000


def submit(ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
    """Write a flow node by node and start it, or attach to the equal flow that exists. Repeatable.

    Raises:
        InvalidFlow: A node has an ordering key. Nothing is left behind.
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
        FlowIncomplete: Other clients kept aborting the submission.
    """
    _refuse_ordering(flow)
    yield from portable_submit.stage(ref, flow, clock)
    state = yield from advance(ref, clock)
    if on_existing == "retry_failed" and state is not FlowState.COMPLETED:
        yield from retry_failed(ref, clock, flow.owner)


def begin(ref: FlowRef, flow: CheckedFlow, before: Before, clock: Clock) -> Op[None]:
    """Write a generation and start it in the place of the current one. Repeatable.

    Raises:
        InvalidFlow: A node has an ordering key. Nothing is left behind.
        GenerationTaken: Another generation has begun meanwhile. What was staged is removed.
        FlowConflict, FlowIncomplete: As ``submit``.
    """
    _refuse_ordering(flow)
    yield from portable_submit.stage(ref, flow, clock, before)
    if not (yield from succession.decide(ref)):
        raise GenerationTaken(f"another generation of flow {ref.public_id} began")
    yield from advance(ref, clock)


def _refuse_ordering(flow: CheckedFlow) -> None:
    """Refuse ordering keys: their jobs would wait for each other for ever.

    The server numbers a job when it is created, and here dependents are created first: they would be due
    before the nodes that they wait for. And a node that ends without having run is never passed over.
    """
    for node in flow.nodes:
        if node.is_placed and "ordering" in json.loads(node.options):
            queues = ", ".join(map(shown, flow.queues))
            raise InvalidFlow(
                f"node {shown(node.name)} has an ordering key, which needs all queues of the flow in one "
                f"slot of the cluster, and this flow has {queues}: put its nodes into one queue, or leave "
                f"the ordering out"
            )


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowOutcome]:
    """Advance the flow until it has ended: at each event of its home queue, and every half second.

    At most a third of the time goes into advancing, so that a large flow leaves the server to its workers.

    Raises:
        WaitTimeout: It has not ended in time.
        Superseded: Another generation has begun.
    """
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    position = yield from events.tail(ref.home)
    while True:
        began = clock.monotonic_ms()
        state = yield from unconfirmed(advance(ref, clock))
        yield from unsuperseded(ref)
        if state.is_terminal:
            break
        now = clock.monotonic_ms()
        if deadline is not None and now >= deadline:
            raise WaitTimeout(f"flow {ref.public_id} is still running")
        rested = now + min(2 * (now - began), MAX_REST_MS)
        until = max(rested, now + POLL_MS)
        if deadline is not None:
            rested, until = min(rested, deadline), min(until, deadline)
        position = yield from _rest(ref, position, rested, until, clock)
    return (yield from outcome(ref, (yield from status(ref))))


def _rest(ref: FlowRef, position: str, rested: int, until: int, clock: Clock) -> Op[str]:
    """Wait for an event, at least until ``rested`` unless the flow has ended; returns the new position."""
    while (left := until - clock.monotonic_ms()) > 0:
        found = yield from events.read(ref.home, position, left)
        position = found[-1].id if found else position
        has_ended = any(event.flow_id == ref.public_id and event.kind.startswith("flow.") for event in found)
        if has_ended or not found or clock.monotonic_ms() >= rested:
            break
        until = rested
    return position


def cancel(ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
    """End every node that has not ended. Returns the state before. Repeatable.

    Raises:
        Superseded: Another generation has begun; nothing was changed.
    """
    record = yield from unsuperseded(ref)
    if not record.state.is_terminal:
        # A flow that has not begun ends as soon as its submission, or a repeat of it, begins it.
        number, how = max(record.number, 0), FlowState.CANCELLED
        yield from ask(records.cancel(ref.home, ref.flow_id, number, how, reason))
        yield from advance(ref, clock)
    return record.state


def extend(ref: FlowRef, nodes: Iterable[FlowNode], clock: Clock) -> Op[FlowState]:
    """Refuse: a portable flow keeps the nodes that it was submitted with.

    Raises:
        ConfigurationError: Always, before anything is changed.
    """
    del nodes, clock
    yield from living(ref)
    raise ConfigurationError(
        f"flow {ref.public_id} cannot be extended: its queues are in several slots of a cluster, or the "
        "server lacks our functions. Submit the nodes as a flow of their own, "
        "or keep all queues of a flow in one slot"
    )
