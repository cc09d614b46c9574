"""Builders of what says whose a flow id is: plain commands, each of one key, in whatever slot that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command
from glidemq_orchestrate.keys import QueueKeys, flow_home, flow_homes

CLAIM_MS: Final = 15 * 60_000


def claim(home: QueueKeys, flow_id: str) -> Call[None]:
    """Say which queue is the home of a flow, unless that is said already. Repeatable.

    That holds for a quarter of an hour, or until ``keep``.
    """
    key = flow_home(home.prefix, flow_id)
    return command("SET", key, home.queue, "NX", "PX", CLAIM_MS, decode=replies.anything, repeatable=True)


def keep(prefix: str, flow_id: str) -> Call[None]:
    """Let a claim hold as long as its flow is there. Repeatable."""
    return command("PERSIST", flow_home(prefix, flow_id), decode=replies.anything, repeatable=True)


def claimed(prefix: str, flow_id: str) -> Call[str | None]:
    """The home queue of a flow, or None."""
    return command("GET", flow_home(prefix, flow_id), decode=lambda reply: reply)


def unclaim(prefix: str, flow_id: str) -> Call[None]:
    """Free the id of a flow."""
    return command("UNLINK", flow_home(prefix, flow_id), decode=replies.anything)


def unclaim_after(prefix: str, flow_id: str, ms: int) -> Call[None]:
    """Free the id of a flow after so long."""
    return command("PEXPIRE", flow_home(prefix, flow_id), ms, decode=replies.anything)


@dataclass(frozen=True, slots=True)
class Found:
    """A flow that is there: the path by which it went, ``staged`` or ``portable``, and what it is."""

    path: str
    digest: str


def found(home: QueueKeys, flow_id: str) -> Call[Found | None]:
    """What the record of a flow says; None without one."""

    def decode(reply: Any) -> Found | None:
        digest, told = reply
        return Found("portable" if told == "portable" else "staged", digest) if digest else None

    return command("HMGET", home.flow(flow_id), "digest", "path", decode=decode)


def is_home(home: QueueKeys) -> Call[bool]:
    """Whether the queue is the home of a flow."""
    return command("EXISTS", home.flows(), decode=bool)


def note_home(home: QueueKeys) -> Call[None]:
    """List a queue among those that are the home of a flow. Repeatable."""
    return command("SADD", flow_homes(home.prefix), home.queue, decode=replies.anything, repeatable=True)
