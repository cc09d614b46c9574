"""Submitting, watching and controlling flows.

A kill between any two steps leaves either staged nodes that cannot start (submit again with the same id to
continue), or a flow whose record lists the remaining work (``gmo:todo``), which every worker of the home
queue does from time to time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice
from typing import Any, Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import (
    FlowIncomplete,
    FlowNotFound,
    GlideMQError,
    ResultRemoved,
    TransportError,
    WaitTimeout,
)
from glidemq_orchestrate.flows import generation_record as generations
from glidemq_orchestrate.flows import home as claim
from glidemq_orchestrate.flows import node_status as node_calls
from glidemq_orchestrate.flows import owner as owner_calls
from glidemq_orchestrate.flows import record as flow_calls
from glidemq_orchestrate.flows import removed, staging
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation_record import Before
from glidemq_orchestrate.flows.home import hold, take
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.ref import BROKEN, FlowRef, OnExisting, raise_if_superseded
from glidemq_orchestrate.flows.spec import FlowOutcome, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.server.confirm import unconfirmed
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.keys import QueueKeys

REREAD_MS: Final = 5_000
SLICE: Final = 50
MAX_SLICES: Final = 20
CALLS_PER_TRIP: Final = 256
MAX_STAGINGS: Final = 3


def submit(ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
    """Write a flow whose id is claimed and let it run; or attach to the equal flow that exists already."""
    state, left = yield from _stage(ref, flow, clock)
    if state in BROKEN and on_existing == "retry_failed":
        state = yield from _retry(ref, clock, flow.owner, (yield from _needed(ref)))
        if state is FlowState.CANCELLED:
            # It was cancelled while it was being staged: no node ever ran, so it is staged again.
            yield from _discard(ref, flow.digest)
            state, left = yield from _stage(ref, flow, clock)
    if state is FlowState.RUNNING and left:
        yield from advance(ref, clock)


def begin(ref: FlowRef, flow: CheckedFlow, before: Before, clock: Clock) -> Op[None]:
    """Write a generation and start it in the place of the current one. Repeatable.

    Raises:
        GenerationTaken: Another generation has begun meanwhile. What was staged is removed.
    """
    _, left = yield from _stage(ref, flow, clock, before)
    if left:
        yield from advance(ref, clock)


Staged = tuple[FlowState, int]
"""The state of a flow, and how many nodes are left to be released; -1: unknown."""


def _stage(ref: FlowRef, flow: CheckedFlow, clock: Clock, before: Before | None = None) -> Op[Staged]:
    """Write all nodes and start the flow. Starts again if a sweep removed staged nodes as abandoned."""
    for stagings in count(1):
        reply = yield from _stage_once(ref, flow, clock, before)
        if not isinstance(reply, GlideMQError):
            return reply
        if isinstance(reply, FlowIncomplete) and stagings < MAX_STAGINGS:
            yield from take(ref.home, ref.flow_id)  # the sweep has also freed the id
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
    """Returns the state; or the first refusal, while everything else that was sent remains."""
    now_ms = clock.now_ms()
    chunks = staging.chunks(flow.nodes)
    stage = flow_calls.stage_flow(ref.home, ref.flow_id, flow, chunks, now_ms)
    trip: list[Call[Any]] = list(islice(stage, CALLS_PER_TRIP))
    # A single call is accepted or refused as a whole, so the start may follow in the same trip. Otherwise it
    # waits until every call was accepted: a node whose edges came in several calls must not start when some
    # of them were refused.
    starting = _starting(ref, flow, before, now_ms)
    if len(trip) == 1:
        trip += starting
        starting = []
    # On a cluster the claim is in another slot; it has been kept by the time the next trip starts.
    trip = [claim.note_home(ref.home), *hold(ref.home, ref.flow_id), *trip]
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
    start = flow_calls.start_flow(ref.home, ref.flow_id, flow.digest, now_ms)
    if before is not None:
        start = generations.begin(ref.home, before, ref.flow_id, flow.digest, now_ms)
    return [start, *[flow_calls.advance_flow(ref.home, ref.flow_id, now_ms)] * slices]


def _discard(ref: FlowRef, digest: str) -> Op[None]:
    """Remove what a submission has staged; only a flow with our digest that never started is touched."""
    while (yield from ask(flow_calls.discard_flow(ref.home, ref.flow_id, digest))):
        pass


def find(prefix: str, flow_id: str) -> Op[FlowRef]:
    """Where the generation is that is stored under this id."""
    home = yield from ask(flow_calls.flow_home_queue(prefix, flow_id))
    if home is None:
        raise FlowNotFound(f"no flow {flow_id} on this server")
    return FlowRef(QueueKeys(prefix, home), flow_id)


def status(ref: FlowRef) -> Op[FlowStatus]:
    """Read the record."""
    return (yield from ask(flow_calls.flow_status(ref.home, ref.flow_id)))


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Read every node, dependencies before dependents."""
    found: dict[str, tuple[float, NodeStatus]] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(node_calls.flow_nodes(ref.home, ref.flow_id, cursor))
        found.update((node.name, (rank, node)) for rank, node in page)
        if cursor == "0":
            return [node for _, node in sorted(found.values(), key=lambda item: item[0])]


def results(ref: FlowRef) -> Op[dict[str, Any]]:
    """Read the result of every completed node by name.

    Raises:
        ResultRemoved: Some were removed.
    """
    values, gone = yield from _results(ref)
    if gone:
        raise ResultRemoved(f"flow {ref.public_id}", gone)
    return values


def _results(ref: FlowRef) -> Op[tuple[dict[str, Any], list[str]]]:
    texts: dict[str, str] = {}
    gone: set[str] = set()
    cursor = "0"
    while True:
        cursor, page, some = yield from ask(node_calls.flow_results(ref.home, ref.flow_id, cursor))
        texts.update(page)
        gone.update(some)
        if cursor == "0":
            return node_calls.read_results(texts), sorted(gone)


def outcome(ref: FlowRef, ended: FlowStatus) -> Op[FlowOutcome]:
    """Read results and failures of a flow that has ended.

    Raises:
        ResultRemoved: It has completed, and results were removed.
    """
    values, gone = yield from _results(ref)
    if gone and ended.state is FlowState.COMPLETED:
        raise ResultRemoved(f"flow {ref.public_id}", gone)
    failed = []
    if ended.failed:
        broken = [node for node in (yield from nodes(ref)) if node.state == "failed"]
        broken.sort(key=lambda node: node.reason.startswith("upstream failed: "))
        failed = [node_calls.failed_node(node) for node in broken]
    return FlowOutcome(status=ended, results=values, failed=failed, removed=gone)


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowOutcome]:
    """Wait for the end of a flow: wakes on its event, and re-reads the record since events can be trimmed."""
    position = yield from events.tail(ref.home)
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    while True:
        current = yield from status(ref)
        raise_if_superseded(current)
        if current.state.is_terminal:
            return (yield from outcome(ref, current))
        # The flow's deadlines hold even if no worker or supervisor serves the home queue.
        expired, due = yield from unconfirmed(ask(flow_calls.expire_due(ref.home, clock.now_ms())))
        reread = clock.monotonic_ms() + (0 if expired else REREAD_MS)
        if due >= 0:
            reread = min(reread, clock.monotonic_ms() + due + 1 - clock.now_ms())
        if deadline is not None:
            reread = min(reread, deadline)
        position = yield from _until_event(ref, position, reread, clock)
        if deadline is not None and clock.monotonic_ms() >= deadline:
            raise WaitTimeout(
                f"flow {ref.public_id} is still {current.state}: "
                f"{current.completed} of {current.total} nodes completed"
            )


def _until_event(ref: FlowRef, position: str, until_ms: int, clock: Clock) -> Op[str]:
    while (left := until_ms - clock.monotonic_ms()) > 0:
        for event in (yield from events.read(ref.home, position, left)):
            position = event.id
            if event.flow_id == ref.public_id:
                return position
    return position


def cancel(ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
    """End every node that has not ended. Returns the state before."""
    before = yield from ask(flow_calls.cancel_flow(ref.home, ref.flow_id, reason, clock.now_ms()))
    if not before.is_terminal:
        yield from advance(ref, clock)
    return before


def own(ref: FlowRef, owner: Owner, clock: Clock) -> Op[FlowState]:
    """Add an owner to a flow, or renew it; an ended one is not changed. Returns the state. Repeatable."""
    return (yield from ask(owner_calls.own(ref.home, ref.flow_id, owner, clock.now_ms())))


def owners(ref: FlowRef) -> Op[list[str]]:
    """The names of the owners of a flow that has not ended, sorted."""
    state = yield from status(ref)
    return [] if state.state.is_terminal else (yield from ask(owner_calls.owners(ref.home, ref.flow_id)))


def retry_failed(ref: FlowRef, clock: Clock, owner: Owner | None = None) -> Op[FlowState]:
    """Run again every node that did not complete, for an owner. Returns the state afterwards.

    And those that had completed, whose results were removed and are needed.

    Raises:
        NodeNotRepeatable: A job that is needed was removed, and its data with it. Nothing was changed.
    """
    is_broken = (yield from status(ref)).state in BROKEN
    return (yield from _retry(ref, clock, owner, (yield from _needed(ref)) if is_broken else ()))


def _needed(ref: FlowRef) -> Op[list[str]]:
    """The refs of completed nodes that a retry runs again, as their results are gone."""
    found = yield from removed.look(ref.home, ref.flow_id)
    removed.refuse_lost(ref.public_id, found.lost)
    return found.needed


def _retry(ref: FlowRef, clock: Clock, owner: Owner | None, also: Sequence[str]) -> Op[FlowState]:
    state = yield from ask(flow_calls.retry_flow(ref.home, ref.flow_id, clock.now_ms(), owner, also))
    yield from advance(ref, clock)
    return state


def lost(ref: FlowRef) -> Op[list[str]]:
    """The jobs that a retry has to run, and of which nothing is left."""
    return (yield from removed.look(ref.home, ref.flow_id)).lost


def advance(ref: FlowRef, clock: Clock) -> Op[None]:
    """Do everything the flow still needs, slice by slice, several slices per trip if much is left."""
    left = 1
    while left:
        slices = min(max(left // SLICE, 1), MAX_SLICES)
        call = flow_calls.advance_flow(ref.home, ref.flow_id, clock.now_ms())
        left = (yield from ask_all([call] * slices))[-1] if slices > 1 else (yield from ask(call))
