"""Whose a flow id is: which queue keeps the record of the flow.

The claim is a key of its own, in its own slot, so no call writes it together with the record. A claim
without a record is what a kill between the two has left, or a submission that is about to write its record:
whoever has the same home goes on with it, whoever has another home takes it over, and a submission asserts
its claim once more before it lets its flow start.
"""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate._protocol.call import Call, Op, ask, ask_all
from glidemq_orchestrate._protocol.flows import claim as calls
from glidemq_orchestrate._protocol.flows.claim import Found
from glidemq_orchestrate._protocol.flows.index import forget_home
from glidemq_orchestrate.errors import FlowConflict
from glidemq_orchestrate.keys import QueueKeys


def take(home: QueueKeys, flow_id: str) -> Op[Found | None]:
    """Claim an id. Answers the flow that is there, or None. Repeatable.

    Raises:
        FlowConflict: A flow with another home has the id.
    """
    owner, found = yield from _claim(home, flow_id)
    if owner is not None and owner != home.queue:
        other = QueueKeys(home.prefix, owner)
        if (yield from ask(calls.found(other, flow_id))):
            raise conflict(flow_id)
        # What claimed it has no record: it went away half-way.
        yield from ask(calls.unclaim(home.prefix, flow_id))
        now, found = yield from _claim(home, flow_id)
        if (yield from ask(calls.found(other, flow_id))):  # it was only slow
            yield from ask(calls.unclaim(home.prefix, flow_id))
            yield from ask(calls.claim(other, flow_id))
            raise conflict(flow_id)
        if now != home.queue:
            raise conflict(flow_id)
    return found


def _claim(home: QueueKeys, flow_id: str) -> Op[tuple[str | None, Found | None]]:
    asking: list[Call[Any]] = [
        calls.claim(home, flow_id),
        calls.claimed(home.prefix, flow_id),
        calls.found(home, flow_id),
    ]
    _, owner, found = yield from ask_all(asking)
    return owner, found


def confirm(home: QueueKeys, flow_id: str) -> Op[None]:
    """Claim an id again whose record is written by now.

    Raises:
        FlowConflict: Another submission has taken it over meanwhile.
    """
    owner, _ = yield from _claim(home, flow_id)
    if owner is None:  # it was freed between the two looks
        owner, _ = yield from _claim(home, flow_id)
    if owner != home.queue:
        raise conflict(flow_id)
    yield from ask(calls.keep(home.prefix, flow_id))


def release(home: QueueKeys, flow_id: str) -> Op[None]:
    """Free the id of a flow whose record is gone. Repeatable; does nothing to a flow that has a record."""
    if (yield from ask(calls.claimed(home.prefix, flow_id))) != home.queue:
        return
    if (yield from ask(calls.found(home, flow_id))) is not None:
        return
    yield from ask(calls.unclaim(home.prefix, flow_id))
    # Whoever has submitted it since the look found the claim and relied on it.
    if (yield from ask(calls.found(home, flow_id))) is not None:
        again: list[Call[Any]] = [calls.claim(home, flow_id), calls.keep(home.prefix, flow_id)]
        yield from ask_all(again)


def leave(home: QueueKeys) -> Op[None]:
    """Take a queue off the list of homes when it has no flows left. Repeatable."""
    if (yield from ask(calls.is_home(home))):
        return
    yield from ask(forget_home(home))
    if (yield from ask(calls.is_home(home))):
        yield from ask(calls.note_home(home))


def conflict(flow_id: str) -> FlowConflict:
    return FlowConflict(f"flow id {flow_id} belongs to another flow")
