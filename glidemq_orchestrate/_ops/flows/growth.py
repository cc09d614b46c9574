"""Adding nodes to a flow: by one of its nodes, and from outside.

A kill between any two steps leaves staged nodes that cannot start and are not counted. The next attempt of
the node removes them, a repeat of the extension continues with them, otherwise the sweep finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

from glidemq_orchestrate._ops.flows import neighbours
from glidemq_orchestrate._ops.flows import staged as flow
from glidemq_orchestrate._ops.flows.staged import CALLS_PER_TRIP, MAX_STAGINGS, FlowRef
from glidemq_orchestrate._protocol.flows import growth as calls
from glidemq_orchestrate._protocol.flows.nodes import flow_nodes
from glidemq_orchestrate.errors import (
    FlowIncomplete,
    GlideMQError,
    InvalidFlow,
    TransportError,
    UnknownDependency,
)
from glidemq_orchestrate.flows.growth import CheckedGrowth, KnownNode, check_growth, check_place
from glidemq_orchestrate.flows.spec import FlowNode, FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
_NAMES_PER_CALL: Final = 500


def add_nodes(
    prefix: str, attempt: Attempt, nodes: Iterable[FlowNode], before: Sequence[str], clock: Clock
) -> Op[None]:
    """Stage nodes that join the flow of an attempt together with its completion.

    Added nodes that wait for nothing wait for the node of the attempt. May be called several times in an
    attempt: each call is all or nothing, and the same call again changes nothing. Later calls may name nodes
    of earlier ones.

    Raises:
        InvalidFlow, CycleError, DuplicateNode, UnknownDependency, FlowTooLarge, ConfigurationError,
        EncodeError, PayloadTooLarge: They cannot be added as written; nothing was added.
        NodeExists: The flow has a node of that name, or another attempt is adding one; nothing was added.
        LeaseLost: The attempt no longer owns its job.
    """
    if attempt.flow_id is None or attempt.node is None:
        raise InvalidFlow(f"job {attempt.job_id} is not a node of a flow, so it cannot add nodes to one")
    growth = check_growth(nodes, before=before, grower=attempt.node)
    ref = yield from flow.find(prefix, attempt.stored_flow)
    names = {attempt.node, *growth.outside, *growth.before}
    known = yield from _known(ref, sorted(names), attempt.job_id)
    if attempt.node not in known:
        raise InvalidFlow(f"flow {ref.public_id} no longer has a node {attempt.node}")
    check_place(growth, known, (yield from flow.status(ref)), attempt.node)
    placed = growth.placed(known, known[attempt.node].rank)
    yield from neighbours.link(ref.home, (node.queue for node in placed.nodes))
    stagings = 0
    while True:
        staged = calls.grow(ref.home, attempt, placed, known, clock.now_ms())
        words, refused = yield from _send(list(staged))
        if 0 in words:
            continue  # leftovers of an earlier attempt are being removed, a slice per call
        stagings += 1
        if refused is None:
            return
        if not isinstance(refused, FlowIncomplete) or stagings == MAX_STAGINGS:
            raise refused


def extend(ref: FlowRef, nodes: Iterable[FlowNode], clock: Clock) -> Op[FlowState]:
    """Add nodes to a running or completed flow, all or none. The same call again changes nothing."""
    growth = check_growth(nodes)
    status = yield from flow.status(ref)
    known = yield from _known(ref, sorted(growth.outside), calls.extension_id(growth))
    try:
        check_place(growth, known, status, None)
    except UnknownDependency:
        yield from ask(flow_nodes(ref.home, ref.flow_id, "0"))  # refused if its nodes were removed
        raise
    placed = growth.placed(known, status.total)
    yield from neighbours.link(ref.home, (node.queue for node in placed.nodes))
    for stagings in range(1, MAX_STAGINGS + 1):
        staged = calls.extend(ref.home, ref.flow_id, placed, known, clock.now_ms())
        states, refused = yield from _send(list(staged))
        if refused is None:
            yield from flow.advance(ref, clock)
            return states[-1]
        if not isinstance(refused, FlowIncomplete) or stagings == MAX_STAGINGS:
            yield from _drop(ref, growth, refused)
            raise refused
    raise AssertionError


def _known(ref: FlowRef, names: Sequence[str], growth_id: str) -> Op[dict[str, KnownNode]]:
    """The nodes of these names in the flow and in the growth itself, with their states."""
    pages = [names[at : at + _NAMES_PER_CALL] for at in range(0, len(names), _NAMES_PER_CALL)]
    found: dict[str, KnownNode] = {}
    for part in (yield from ask_all([calls.staged_nodes(ref.home, growth_id, page) for page in pages])):
        found |= part
    for part in (yield from ask_all([calls.known_nodes(ref.home, ref.flow_id, page) for page in pages])):
        found |= part
    nodes = list(found.values())
    states = yield from ask_all(
        [calls.job_state(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in nodes]
    )
    return {node.name: replace(node, state=state) for node, state in zip(nodes, states, strict=True)}


def _send(staged: Iterable[Call[T]]) -> Op[tuple[list[T], GlideMQError | None]]:
    """Send all chunks; returns the replies, and the first refusal."""
    rest, accepted = iter(staged), []
    refused: GlideMQError | None = None
    while refused is None and (trip := list(islice(rest, CALLS_PER_TRIP))):
        for reply in (yield from ask_each(trip)):
            if isinstance(reply, GlideMQError):
                refused = refused or reply
            else:
                accepted.append(reply)
    return accepted, refused


def _drop(ref: FlowRef, growth: CheckedGrowth, refused: GlideMQError) -> Op[None]:
    try:
        while (yield from ask(calls.drop_growth(ref.home, ref.flow_id, calls.extension_id(growth)))):
            pass
    except TransportError as exc:
        raise refused from exc
