"""Submits a flow: claims its id, chooses its path, and writes it, or joins an existing flow."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate.errors import (
    ConnectionFailed,
    FlowConflict,
    FlowNotFound,
    GlideMQError,
    NodeNotRepeatable,
    OutcomeUnknown,
    StateError,
    Superseded,
    TransportError,
)
from glidemq_orchestrate.flows import generations
from glidemq_orchestrate.flows.backend import ONE_SERVER, Reach, backend_of, may_begin, ref_of
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.compare import differences, fields
from glidemq_orchestrate.flows.generation import FlowRef, OnExisting, check_on_existing
from glidemq_orchestrate.flows.generations import CurrentGeneration, find_place
from glidemq_orchestrate.flows.home import (
    choose_home,
    id_conflict,
    leave_homes,
    link_queues,
    release_id,
    take_id,
)
from glidemq_orchestrate.flows.owners import Ownership
from glidemq_orchestrate.flows.status import BROKEN, FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys

MAX_GENERATIONS: Final = 5


def submit(  # noqa: PLR0913  a flow, its name, where it goes, and whose it is
    prefix: str,
    flow: CheckedFlow,
    flow_id: str,
    on_existing: OnExisting,
    clock: Clock,
    *,
    reach: Reach = ONE_SERVER,
    owned: Ownership | None = None,
) -> Op[FlowRef]:
    """Write and start a flow on the path for its topology, and own it. Idempotent.

    If another generation supersedes the one that it is about to join, it joins that. If the server loses the
    flow before it is owned, it starts over.

    Raises:
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
        Superseded: Others kept beginning generations, or superseded that of a restart before it was owned.
        FlowNotFound: The server kept losing the flow.
    """
    check_on_existing(on_existing)
    for _ in range(MAX_GENERATIONS):
        ref = yield from _begin_or_join(prefix, flow, flow_id, on_existing, clock, reach)
        if owned is None:
            return ref
        try:
            yield from owned.own(ref, clock)
        except (FlowNotFound, Superseded) as exc:
            if on_existing == "restart" and isinstance(exc, Superseded):
                raise
            gone: StateError = exc
        else:
            return ref
    raise gone


def _begin_or_join(  # noqa: PLR0913, PLR0917  as submit
    prefix: str, flow: CheckedFlow, flow_id: str, on_existing: OnExisting, clock: Clock, reach: Reach
) -> Op[FlowRef]:
    for _ in range(MAX_GENERATIONS):
        try:
            return (yield from _try(prefix, flow, flow_id, on_existing, clock, reach))
        except Superseded as exc:
            superseded = exc
    raise superseded


def _try(  # noqa: PLR0913, PLR0917  as submit
    prefix: str, flow: CheckedFlow, flow_id: str, on_existing: OnExisting, clock: Clock, reach: Reach
) -> Op[FlowRef]:
    home = QueueKeys(prefix, (yield from choose_home(prefix, flow, flow_id, clock)))
    try:
        found = yield from take_id(home, flow_id)
        place = CurrentGeneration(ref_of(home, found), found) if found else None
    except FlowConflict as exc:  # the existing flow has another home
        place = yield from _found(prefix, flow_id, exc)
    if place:  # it keeps its home, even if another queue has more nodes now
        home = place.ref.home
    if place and (on_existing == "restart" or place.found.digest != flow.digest):
        if on_existing == "attach" or not may_begin(place.ref, flow, reach):
            raise (yield from conflict(prefix, flow_id, flow))
        yield from link_queues(home, flow.queues)
        return (yield from generations.submit(place, flow, on_existing, clock))
    ref = place.ref if place else FlowRef(home, flow_id, reach.path(prefix, flow.queues))
    try:
        yield from link_queues(home, flow.queues)
        yield from backend_of(ref).submit(ref, flow, on_existing, clock)
    except NodeNotRepeatable:
        if place is None:
            raise
        return (yield from generations.submit(place, flow, on_existing, clock, force=True))
    except (ConnectionFailed, OutcomeUnknown):
        raise
    except GlideMQError as exc:
        try:
            yield from release_id(home, flow_id)
            yield from leave_homes(home)
        except TransportError as broken:
            raise exc from broken
        raise
    return ref


def is_lost(ref: FlowRef) -> Op[bool]:
    """Whether a failed flow cannot be retried, since jobs were removed with their data."""
    backend = backend_of(ref)
    has_failed = (yield from backend.status(ref)).state in BROKEN
    return has_failed and bool((yield from backend.lost(ref)))


def _found(prefix: str, flow_id: str, otherwise: FlowConflict) -> Op[CurrentGeneration]:
    """The reference to a flow; if it has just been removed, raises ``otherwise``."""
    try:
        return (yield from find_place(prefix, flow_id))
    except FlowNotFound:
        raise otherwise from None


def conflict(prefix: str, flow_id: str, flow: CheckedFlow) -> Op[FlowConflict]:
    """The error with the differences between the flow with this id and a specification."""
    try:
        ref = yield from find(prefix, flow_id)
        if (yield from backend_of(ref).status(ref)).state is FlowState.STAGING:
            return id_conflict(flow_id)
        return id_conflict(flow_id, (yield from differences(ref, flow)), (yield from fields(ref, flow)))
    except GlideMQError:  # for example, it was removed
        return id_conflict(flow_id)


def find(prefix: str, flow_id: str) -> Op[FlowRef]:
    """Find a flow by its id.

    Raises:
        FlowNotFound: There is no flow with this id.
    """
    return (yield from find_place(prefix, flow_id)).ref
