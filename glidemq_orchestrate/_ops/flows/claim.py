"""The claim on a flow id: the queue that holds the record of the flow.

The claim is a separate key in its own slot, so no call writes it together with the record. A claim without a
record is left by a kill between the two, or belongs to a submission that is about to write its record: a
submission with the same home continues with it, one with another home takes it over, and every submission
confirms its claim before it starts its flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from glidemq_orchestrate._ops.flows import neighbours
from glidemq_orchestrate._protocol.flows import claim as calls
from glidemq_orchestrate._protocol.flows import generations
from glidemq_orchestrate._protocol.flows.generations import Found
from glidemq_orchestrate._protocol.flows.index import forget_home
from glidemq_orchestrate.errors import FlowConflict
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation

MAX_NAMED: Final = 5


def found(home: QueueKeys, flow_id: str) -> Op[Found | None]:
    """The current generation of a flow of this home; None if there is none."""
    public, _ = read_generation(flow_id)
    first, current = yield from ask_all([generations.first(home, public), generations.current(home, public)])
    return current or first


def take(home: QueueKeys, flow_id: str) -> Op[Found | None]:
    """Claim an id. Returns the existing flow, or None. Repeatable.

    Raises:
        FlowConflict: A flow with another home has the id.
    """
    owner, existing = yield from _claim(home, flow_id)
    if owner is not None and owner != home.queue:
        other = QueueKeys(home.prefix, owner)
        if (yield from found(other, flow_id)):
            raise conflict(flow_id)
        # The claim has no record: its submission ended half-way.
        yield from ask(calls.unclaim(home.prefix, flow_id))
        now, existing = yield from _claim(home, flow_id)
        if (yield from found(other, flow_id)):  # it was only slow
            yield from ask(calls.unclaim(home.prefix, flow_id))
            yield from ask(calls.claim(other, flow_id))
            raise conflict(flow_id)
        if now != home.queue:
            raise conflict(flow_id)
    return existing


def _claim(home: QueueKeys, flow_id: str) -> Op[tuple[str | None, Found | None]]:
    """Claim an id if it is free; returns the queue that has it, and the record in this home."""
    asking: list[Call[Any]] = [
        calls.claim(home, flow_id),
        calls.claimed(home.prefix, flow_id),
        generations.first(home, read_generation(flow_id)[0]),
        generations.current(home, flow_id),
    ]
    _, owner, first, current = yield from ask_all(asking)
    return owner, current or first


def confirm(home: QueueKeys, flow_id: str) -> Op[None]:
    """Claim an id again after its record was written.

    Raises:
        FlowConflict: Another submission has taken it over meanwhile.
    """
    owner, _ = yield from _claim(home, flow_id)
    if owner is None:  # it was freed between the two calls
        owner, _ = yield from _claim(home, flow_id)
    if owner != home.queue:
        raise conflict(flow_id)
    yield from ask(calls.keep(home.prefix, flow_id))


def hold(home: QueueKeys, flow_id: str) -> list[Call[None]]:
    """The calls that keep a claim for good, and make it again where the server has lost it meanwhile."""
    return [calls.claim(home, flow_id), calls.keep(home.prefix, flow_id)]


def release(home: QueueKeys, flow_id: str) -> Op[None]:
    """Free the id of a flow that has no record. Repeatable; does nothing if it has one."""
    if (yield from ask(calls.claimed(home.prefix, flow_id))) != home.queue:
        return
    if (yield from found(home, flow_id)) is not None:
        return
    yield from ask(calls.unclaim(home.prefix, flow_id))
    # A submission since the check has found the claim and relied on it.
    if (yield from found(home, flow_id)) is not None:
        yield from ask_all(hold(home, flow_id))


def leave(home: QueueKeys) -> Op[None]:
    """Take a queue off the list of homes, with its links, when it has no flows left. Repeatable."""
    if (yield from ask(calls.is_home(home))):
        return
    yield from neighbours.unlink(home)
    yield from ask(forget_home(home))
    if (yield from ask(calls.is_home(home))):
        yield from ask(calls.note_home(home))


def conflict(
    flow_id: str,
    differences: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    fields: Sequence[str] = (),
) -> FlowConflict:
    """The error for a flow whose id another flow has, and what is known of how they differ."""
    text = f"flow id {flow_id} belongs to another flow"
    if fields:
        text += f"; differs in: {', '.join(fields)}"
    if differences:
        named = [f"{name} ({', '.join(what)})" for name, what in islice(differences.items(), MAX_NAMED)]
        more = ["..."] if len(differences) > MAX_NAMED else []
        text += f"; nodes that differ: {', '.join([*named, *more])}"
    return FlowConflict(text, differences, fields)
