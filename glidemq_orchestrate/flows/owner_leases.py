"""The leases of the owners of flows; ``parts/owners.lua`` says how they are stored."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number


def words(owner: Owner) -> tuple[Word, ...]:
    """An owner as server functions take it."""
    return (owner.name, owner.lease_ms, owner.on_expiry)


def lease(name: str, lease_ms: int) -> str:
    """The name of a lease."""
    return f"{lease_ms}:{name}"


def own(home: QueueKeys, flow_id: str, owner: Owner, now_ms: int) -> Call[FlowState]:
    """Add an owner to a flow, or renew it; returns the state of the flow. Idempotent.

    One that does not join is renewed if it owns the flow already.
    """
    args = (now_ms, flow_id, *words(owner), int(owner.joins))
    return function("gmo_own_flow", [home.flow(flow_id)], args, FlowState, repeatable=True)


def note(home: QueueKeys, flow_id: str, text: str) -> Call[int]:
    """Keep a text with a generation of a flow; the last one counts. Idempotent."""
    args = (0, flow_id, text)
    return function("gmo_note_flow", [home.flow(flow_id)], args, replies.integer, repeatable=True)


def owners(home: QueueKeys, flow_id: str) -> Call[list[str]]:
    """The names of the owners of a flow, sorted."""
    return command("HKEYS", f"{home.flow(flow_id)}:owners", decode=lambda names: sorted(filter(None, names)))


def renew(home: QueueKeys, owner: Owner, now_ms: int) -> Call[bool]:
    """Note that an owner lives, for all its flows; False if it has no lease there. Idempotent."""
    member = lease(owner.name, owner.lease_ms)
    return command("ZADD", _leases(home), "XX", "CH", now_ms, member, decode=bool, repeatable=True)


def begin(home: QueueKeys, owner: Owner, now_ms: int) -> Call[None]:
    """Begin the lease of an owner, or renew it: for flows that no server function looks after. Idempotent."""
    member = lease(owner.name, owner.lease_ms)
    return command("ZADD", _leases(home), "GT", now_ms, member, decode=replies.anything, repeatable=True)


def heard(home: QueueKeys, name: str) -> Call[int | None]:
    """When the owner of a lease was last heard of; None if there is no such lease."""
    return command("ZSCORE", _leases(home), name, decode=lambda reply: number(reply) if reply else None)


def silent(home: QueueKeys, before_ms: int, most: int) -> Call[list[str]]:
    """Leases of owners that were last heard of before a time."""
    limit = ("LIMIT", 0, most)
    return command("ZRANGEBYSCORE", _leases(home), "-inf", f"({before_ms}", *limit, decode=list)


def forget(home: QueueKeys, leases: Sequence[str]) -> Call[None]:
    """Forget leases."""
    return command("ZREM", _leases(home), *leases, decode=replies.anything)


def _leases(home: QueueKeys) -> str:
    return home.key("gmo:owners")
