"""Calls that claim a flow id for a home queue: plain commands, each with one key, in the slot of that key."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys, flow_home, flow_homes

CLAIM_MS: Final = 15 * 60_000


def claim(home: QueueKeys, flow_id: str) -> Call[None]:
    """Claim a flow id for a home queue, unless it is claimed already. Repeatable.

    The claim expires after a quarter of an hour, unless ``keep`` is called.
    """
    key = flow_home(home.prefix, flow_id)
    return command("SET", key, home.queue, "NX", "PX", CLAIM_MS, decode=replies.anything, repeatable=True)


def keep(prefix: str, flow_id: str) -> Call[None]:
    """Keep a claim as long as its flow exists. Repeatable."""
    return command("PERSIST", flow_home(prefix, flow_id), decode=replies.anything, repeatable=True)


def claimed(prefix: str, flow_id: str) -> Call[str | None]:
    """The home queue of a flow, or None."""
    return command("GET", flow_home(prefix, flow_id), decode=lambda reply: reply)


def unclaim(prefix: str, flow_id: str) -> Call[None]:
    """Free the id of a flow."""
    return command("UNLINK", flow_home(prefix, flow_id), decode=replies.anything)


def unclaim_after(prefix: str, flow_id: str, ms: int) -> Call[None]:
    """Free the id of a flow after ``ms``, unless it is about to be freed. Repeatable."""
    return command("PEXPIRE", flow_home(prefix, flow_id), ms, "NX", decode=replies.anything)


def is_home(home: QueueKeys) -> Call[bool]:
    """Whether the queue is the home of a flow."""
    return command("EXISTS", home.flows(), decode=bool)


def note_home(home: QueueKeys) -> Call[None]:
    """Add a queue to the home queues. Repeatable."""
    return command("SADD", flow_homes(home.prefix), home.queue, decode=replies.anything, repeatable=True)
