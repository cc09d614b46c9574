"""Submits a flow: claims its id, chooses its path, and writes it, or joins an existing flow, or restarts it.

A further generation is staged like a separate flow, under an id with its number, and then supersedes the
current one in a single call. A kill before that call leaves staged nodes that cannot start: a repeat
continues with them, or else the sweep removes them. A kill after it leaves a flow that every supervisor of
the home queue advances. The portable path has several calls instead: see ``portable/succession.py``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    FlowConflict,
    FlowNotFound,
    GenerationTaken,
    GlideMQError,
    NodeNotFound,
    NodeNotRepeatable,
    OutcomeUnknown,
    StateError,
    Superseded,
    TransportError,
)
from glidemq_orchestrate.flows.backend import ONE_SERVER, Reach, backend_of, check_path, read_status, ref_of
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation import (
    Before,
    FlowRef,
    check_on_existing,
    every_generation,
    first_generation,
    no_flow,
    read_request,
    record_fields,
    request_for,
)
from glidemq_orchestrate.flows.home import choose_home, leave_homes, link_queues, release_id, take_id
from glidemq_orchestrate.flows.index import CurrentGeneration, find_flow
from glidemq_orchestrate.flows.nodes import split_name
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.ownership import Ownership
from glidemq_orchestrate.flows.placement import Spread, choose_shard, in_shard, read_spread
from glidemq_orchestrate.flows.plan import compared, explain_conflict
from glidemq_orchestrate.flows.status import FlowState, FlowStatus, OnExisting, raise_if_superseded
from glidemq_orchestrate.flows.stored_spec import read_flow
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys, generation_id

MAX_GENERATIONS: Final = 5
NO_SHARDS: Final[Spread] = MappingProxyType({})


def submit_flow(  # noqa: PLR0913  the flow, its id, its path and its owner
    prefix: str,
    flow: CheckedFlow,
    flow_id: str,
    on_existing: OnExisting,
    clock: Clock,
    *,
    reach: Reach = ONE_SERVER,
    owned: Ownership | None = None,
    spread: Spread = NO_SHARDS,
) -> Op[FlowRef]:
    """Write and start a flow on the path for its topology, and own it. Idempotent.

    ``spread``: the shards of its queues.

    If another generation supersedes the one to be joined, that generation is joined instead. If the server
    loses the flow before it is owned, all of this is repeated.

    Raises:
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
        Superseded: Other callers repeatedly began generations, or superseded a restart before it was owned.
        FlowNotFound: The server repeatedly lost the flow.
    """
    check_on_existing(on_existing)
    for _ in range(MAX_GENERATIONS):
        try:
            ref = yield from _begin_or_join(prefix, flow, flow_id, on_existing, clock, reach, spread)
        except Superseded as exc:
            gone: StateError = exc
            continue
        if owned is None:
            return ref
        try:
            yield from owned.own(ref, clock)
        except (FlowNotFound, Superseded) as exc:
            if on_existing == "restart" and isinstance(exc, Superseded):
                raise
            gone = exc
        else:
            return ref
    raise gone


def _begin_or_join(  # noqa: PLR0913, PLR0917  as submit
    prefix: str,
    given: CheckedFlow,
    flow_id: str,
    on_existing: OnExisting,
    clock: Clock,
    reach: Reach,
    spread: Spread,
) -> Op[FlowRef]:
    flow = in_shard(given, spread, (yield from choose_shard(prefix, flow_id, spread, clock)))
    home = QueueKeys(prefix, (yield from choose_home(prefix, flow, flow_id, clock)))
    try:
        found = yield from take_id(home, flow_id)
        place = CurrentGeneration(ref_of(home, found), found) if found else None
    except FlowConflict as exc:  # the existing flow has another home
        place = yield from _found(prefix, flow_id, exc)
    if place:  # it keeps its home, even if another queue has more nodes now
        home = place.ref.home
        flow = yield from _beside(given, spread, home)
    if place and (on_existing == "restart" or place.found.digest != flow.digest):
        if on_existing == "attach":
            raise (yield from explain_conflict(prefix, flow_id, flow))
        check_path(place.ref, flow, reach)
        yield from link_queues(home, flow.queues)
        return (yield from begin_next(place, flow, on_existing, clock))
    ref = place.ref if place else FlowRef(home, flow_id, reach.path(prefix, flow.queues))
    try:
        yield from link_queues(home, flow.queues)
        yield from backend_of(ref).submit(ref, flow, on_existing, clock)
    except NodeNotRepeatable:
        if place is None:
            raise
        return (yield from begin_next(place, flow, on_existing, clock, force=True))
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


def _beside(flow: CheckedFlow, spread: Spread, home: QueueKeys) -> Op[CheckedFlow]:
    """The flow in the shards of its home, of which this client may not know yet."""
    _, index = split_shard(home.queue)
    if index is not None and not spread:
        spread = yield from read_spread(home.prefix, flow.queues)
    return in_shard(flow, spread, index)


def _found(prefix: str, flow_id: str, otherwise: FlowConflict) -> Op[CurrentGeneration]:
    """The reference to a flow; if it has just been removed, raises ``otherwise``."""
    try:
        return (yield from find_flow(prefix, flow_id))
    except FlowNotFound:
        raise otherwise from None


MAX_TRIES: Final = 5


def begin_next(
    place: CurrentGeneration, flow: CheckedFlow, on_existing: OnExisting, clock: Clock, *, force: bool = False
) -> Op[FlowRef]:
    """Begin the next generation of a flow, unless it was begun before.

    A restart was begun before if a generation has the same request; a ``retry_failed``, if the current
    generation has the same specification. ``force``: begin a generation in any case, since the current one
    cannot be retried.

    Raises:
        FlowConflict: The request has begun a generation with another specification.
        GenerationTaken: Other callers repeatedly began generations.
    """
    first = place.ref
    for _ in range(MAX_TRIES):
        ref, found = place
        is_restart = on_existing == "restart"
        if (
            is_restart
            and flow.request
            and (known := (yield from _of_request(ref, flow.request, clock, flow)))
        ):
            return known
        with suppress(Superseded):  # since it was found
            is_equal = found.digest == flow.digest and not (force and ref == first)
            if is_equal and (not is_restart or (yield from _is_staging(ref))):
                yield from backend_of(ref).submit(ref, flow, "attach" if is_restart else on_existing, clock)
                return ref
            next_one = flow
            if not is_restart:
                kept = yield from compared(ref, flow)
                next_one = replace(flow, carried=kept.carried, edges_kept=kept.edges_kept)
            new = yield from _begin_after(ref, next_one, Before(ref.flow_id, on_existing), clock)
            if new is not None:
                return new
        place = yield from find_flow(ref.home.prefix, ref.public_id)
    raise _taken(place.ref)


def restart_flow(  # noqa: PLR0913  as the public method
    ref: FlowRef,
    request: str,
    clock: Clock,
    owner: Owner | None = None,
    *,
    again: Collection[str] | None = None,
    generation: int | None = None,
) -> Op[FlowRef]:
    """Begin the next generation with the nodes of the current one; returns its reference.

    Args:
        ref: The current generation.
        request: The idempotency key: one key begins only one generation.
        clock: The clock.
        owner: The owner of the new generation.
        again: Rerun only these nodes, all that follow them, and all that have not completed; None: all.
        generation: Refuse unless this is the current one or the request has begun one before.

    Raises:
        NodeNotFound: One of ``again`` is not a node of the specification.
        FlowConflict: The request has begun a generation with other nodes.
        Superseded: Another generation has begun.
        FlowNotFound, FlowExpired: The flow, or some of its jobs, no longer exist.
        GenerationTaken: Other callers repeatedly extended it.
    """
    check_generation(generation)
    stored_request = request_for(request, again)
    for _ in range(MAX_TRIES):
        if request and (known := (yield from _of_request(ref, stored_request, clock))):
            return known
        try:
            yield from fenced(ref, generation)
            new = yield from _restart_after(ref, stored_request, clock, owner, again)
        except Superseded:  # perhaps by the same request of another caller
            if request and (known := (yield from _of_request(ref, stored_request, clock))):
                return known
            raise
        if new is not None:
            return new
    raise _taken(ref)


def _restart_after(
    ref: FlowRef, request: str, clock: Clock, owner: Owner | None, again: Collection[str] | None
) -> Op[FlowRef | None]:
    """Begin the next generation as ``restart_flow`` does; None if the current one has changed meanwhile."""
    status = yield from _status(ref)
    raise_if_superseded(status)
    if status.state is FlowState.STAGING:  # none of it has run
        return ref
    stored = yield from read_flow(ref, clock)
    flow = replace(stored.flow, request=request, owner=owner)
    if again is not None:
        _check_names(ref, flow, again)
        kept = yield from compared(ref, flow, again)
        flow = replace(flow, carried=kept.carried, edges_kept=kept.edges_kept)
    before = Before(ref.flow_id, "restart", stored.extensions)
    return (yield from _begin_after(ref, flow, before, clock))


def _check_names(ref: FlowRef, flow: CheckedFlow, names: Iterable[str]) -> None:
    for name in names:
        if name not in flow.queue_of:
            array, _ = split_name(name) or ("", 0)
            if any(node.name == array and node.array for node in flow.nodes):
                raise NodeNotFound(
                    f"{name} is an element, and a restart reruns whole nodes. Fix: restart from {array}, or "
                    f"rerun the element in this generation: rerun({name!r})"
                )
            raise NodeNotFound(
                f"flow {ref.public_id} was submitted without a node {name}; a node added by another node "
                "reruns with that one"
            )


def _begin_after(ref: FlowRef, flow: CheckedFlow, before: Before, clock: Clock) -> Op[FlowRef | None]:
    """Stage the next generation and begin it; None if the current one has changed."""
    new = _next(ref, flow, before)
    try:
        yield from backend_of(ref).begin(new, flow, before, clock)
    except GenerationTaken:
        return None
    return new


def _taken(ref: FlowRef) -> GenerationTaken:
    return GenerationTaken(f"other callers repeatedly changed flow {ref.public_id}")


def _next(ref: FlowRef, flow: CheckedFlow, before: Before) -> FlowRef:
    """The reference to the next generation; a repeat with the same content gets the same."""
    origin = json.dumps([before.how, before.extensions, flow.request, flow.digest, sorted(flow.carried)])
    return replace(ref, flow_id=generation_id(ref.public_id, ref.generation + 1, origin))


def _of_request(
    ref: FlowRef, request: str, clock: Clock, flow: CheckedFlow | None = None
) -> Op[FlowRef | None]:
    """The newest generation with this request, advanced in case its caller has died.

    ``request``: in its stored form.

    Raises:
        FlowConflict: Its specification differs from ``flow``, or it reruns other nodes.
    """
    every = yield from ask(every_generation(ref.home, ref.public_id))
    if not every and (first := (yield from ask(first_generation(ref.home, ref.public_id)))):
        every = [first]
    for found in reversed(every):
        if found.requester == read_request(request):
            known = ref_of(ref.home, found)
            if found.request != request:
                raise FlowConflict(
                    f"request {found.requester} began generation {known.generation} of flow {ref.public_id} "
                    "to rerun other nodes. Fix: use another idempotency key to restart from these"
                )
            if flow is not None and found.digest not in ("", flow.digest):
                raise FlowConflict(
                    f"request {request} began generation {known.generation} of flow {ref.public_id} with "
                    "another specification. Fix: use another idempotency key to restart with this one"
                )
            backend = backend_of(known)
            if backend.is_carried:
                yield from backend.advance(known, clock)
            return known
    return None


def _is_staging(ref: FlowRef) -> Op[bool]:
    return (yield from _status(ref)).state is FlowState.STAGING


def _status(ref: FlowRef) -> Op[FlowStatus]:
    """The record of a generation, even before its first fields were written."""
    found = yield from ask(record_fields(ref.home, ref.flow_id))
    if not found:
        raise no_flow(ref)
    return read_status(ref.home, ref.flow_id, found)


def check_generation(generation: object) -> None:
    """Check the number of a generation.

    Raises:
        ConfigurationError: It is not an int or None.
    """
    if generation is not None and type(generation) is not int:
        raise ConfigurationError(f"generation must be int or None, got {described(generation)}")


def fenced(ref: FlowRef, generation: int | None) -> Op[None]:
    """Check that a change is meant for the current generation.

    Raises:
        ConfigurationError: It is not a number.
        Superseded: It is an older generation.
        FlowNotFound: There was never a generation with this number.
    """
    check_generation(generation)
    if generation is None or generation == ref.generation:
        return
    flow_id = ref.public_id
    current = (yield from find_flow(ref.home.prefix, flow_id)).ref.generation
    if not 0 <= generation <= current:
        raise FlowNotFound(
            f"flow {flow_id} has no generation {described(generation)}: the current one is {current}"
        )
    old = min(generation, ref.generation)
    raise Superseded(f"generation {old} of flow {flow_id} was superseded: {current} is the current one")
