"""Stages the nodes of a flow, and starts it."""

from __future__ import annotations

from itertools import count, islice
from typing import Any, Final

from glidemq_orchestrate.errors import (
    FlowIncomplete,
    GlideMQError,
    TransportError,
)
from glidemq_orchestrate.flows import staging
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation import Before, FlowRef, OnExisting, begin_generation
from glidemq_orchestrate.flows.home import add_home, hold_claim, take_id
from glidemq_orchestrate.flows.staged import calls as staged_calls
from glidemq_orchestrate.flows.staged.advance import MAX_SLICES, SLICE, advance
from glidemq_orchestrate.flows.staged.changes import _needed, _retry
from glidemq_orchestrate.flows.status import BROKEN, FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_each

CALLS_PER_TRIP: Final = 256
MAX_STAGINGS: Final = 3


def submit(ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
    """Write and start a flow whose id is claimed, or attach to the equal flow that exists."""
    state, left = yield from _stage(ref, flow, clock)
    if state in BROKEN and on_existing == "retry_failed":
        state = yield from _retry(ref, clock, flow.owner, (yield from _needed(ref)))
        if state is FlowState.CANCELLED:
            # It was cancelled while being staged: no node ever ran, so it is staged again.
            yield from _discard(ref, flow.digest)
            state, left = yield from _stage(ref, flow, clock)
    if state is FlowState.RUNNING and left:
        yield from advance(ref, clock)


def begin(ref: FlowRef, flow: CheckedFlow, before: Before, clock: Clock) -> Op[None]:
    """Write a generation and start it in place of the current one. Idempotent.

    Raises:
        GenerationTaken: Another generation has begun. The staged nodes are removed.
    """
    _, left = yield from _stage(ref, flow, clock, before)
    if left:
        yield from advance(ref, clock)


Staged = tuple[FlowState, int]
"""The state of a flow, and how many nodes remain to be released; -1 if unknown."""


def _stage(ref: FlowRef, flow: CheckedFlow, clock: Clock, before: Before | None = None) -> Op[Staged]:
    """Write all nodes and start the flow. Starts over if a sweep removed staged nodes as abandoned."""
    for stagings in count(1):
        reply = yield from _stage_once(ref, flow, clock, before)
        if not isinstance(reply, GlideMQError):
            return reply
        if isinstance(reply, FlowIncomplete) and stagings < MAX_STAGINGS:
            yield from take_id(ref.home, ref.flow_id)  # the sweep has freed the id too
            continue
        try:
            yield from _discard(ref, flow.digest)
        except TransportError as exc:
            raise reply from exc
        raise reply
    raise AssertionError


def _stage_once(
    ref: FlowRef, flow: CheckedFlow, clock: Clock, before: Before | None
) -> Op[Staged | GlideMQError]:
    """Returns the state, or the first error; all other calls stay in effect."""
    now_ms = clock.now_ms()
    chunks = staging.chunks(flow.nodes)
    stage = staged_calls.stage_flow(ref.home, ref.flow_id, flow, chunks, now_ms)
    trip: list[Call[Any]] = list(islice(stage, CALLS_PER_TRIP))
    # A single call is accepted or refused as a whole, so the start may follow in the same trip. Otherwise it
    # waits until every call was accepted: a node with edges in several calls must not start if some of them
    # were refused.
    starting = _starting(ref, flow, before, now_ms)
    if len(trip) == 1:
        trip += starting
        starting = []
    # In a cluster the claim is in another slot; it is permanent by the time the next trip starts.
    trip = [add_home(ref.home), *hold_claim(ref.home, ref.flow_id), *trip]
    staged: Staged = (FlowState.STAGING, -1)
    while trip and staged[0] is FlowState.STAGING:
        for reply in (yield from ask_each(trip)):
            if isinstance(reply, GlideMQError):
                return reply
            if isinstance(reply, FlowState):
                staged = (reply, -1)
            elif isinstance(reply, int):
                staged = (staged[0], reply)
        trip = list(islice(stage, CALLS_PER_TRIP))
        if not trip:
            trip, starting = starting, []
    return staged


def _starting(ref: FlowRef, flow: CheckedFlow, before: Before | None, now_ms: int) -> list[Call[Any]]:
    """The calls that start a flow and release its nodes without dependencies, slice by slice."""
    roots = sum(1 for node in flow.nodes if not node.after)
    slices = min(max(roots - 1, 0) // SLICE + 1, MAX_SLICES)
    start = staged_calls.start_flow(ref.home, ref.flow_id, flow.digest, now_ms)
    if before is not None:
        start = begin_generation(ref.home, before, ref.flow_id, flow.digest, now_ms)
    return [start, *[staged_calls.advance_flow(ref.home, ref.flow_id, now_ms)] * slices]


def _discard(ref: FlowRef, digest: str) -> Op[None]:
    """Remove the staged nodes of a submission, but only of a flow with this digest that never started."""
    while (yield from ask(staged_calls.discard_flow(ref.home, ref.flow_id, digest))):
        pass
