"""Calls about the generations of a flow; ``parts/generations.lua`` says how they are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

_ASKED: Final = "\n"  # no request has a control character


@dataclass(frozen=True, slots=True)
class Found:
    """A generation of an existing flow.

    Attributes:
        stored_as: The id under which it is stored.
        path: The name of its way, as it is stored.
        digest: The fingerprint of its specification.
        request: The token of whoever asked for it, or ''; as it is stored, see ``request_for``.
        how: ``restart`` or ``retry_failed``; '' for the first generation.
    """

    stored_as: str
    path: str
    digest: str
    request: str = ""
    how: str = ""

    @property
    def requester(self) -> str:
        """The token of whoever asked for it, without what was asked."""
        return read_request(self.request)


def request_for(request: str, nodes: Collection[str] | None) -> str:
    """A request as it is stored: with a fingerprint of the nodes from which on the flow is to run again.

    A request for all of them is stored as it is.
    """
    if not request or nodes is None:
        return request
    fingerprint = hashlib.sha256(json.dumps(sorted(nodes)).encode(errors="replace")).hexdigest()[:16]
    return f"{request}{_ASKED}{fingerprint}"


def read_request(stored: str) -> str:
    """The token of whoever asked, as they gave it."""
    return stored.partition(_ASKED)[0]


def first(home: QueueKeys, flow_id: str) -> Call[Found | None]:
    """A flow that has one generation only, from its record; None without a record."""

    def decode(reply: Any) -> Found | None:
        digest, path, request = reply
        return Found(flow_id, str(path or ""), digest, request or "") if digest else None

    return command("HMGET", home.flow(flow_id), "digest", "path", "request", decode=decode)


def current(home: QueueKeys, flow_id: str) -> Call[Found | None]:
    """The current generation of a flow that has several; None for any other flow."""

    def decode(reply: Any) -> Found | None:
        found = read_entries(reply)
        return found[0] if found else None

    return command("XREVRANGE", home.generations(flow_id), "+", "-", "COUNT", 1, decode=decode)


def every(home: QueueKeys, flow_id: str) -> Call[list[Found]]:
    """The generations of a flow that has several, the oldest that is kept first; else none."""
    return command("XRANGE", home.generations(flow_id), "-", "+", decode=read_entries)


@dataclass(frozen=True, slots=True)
class Before:
    """The generation whose place another one takes.

    Attributes:
        stored_as: The id under which it is stored.
        how: How the new one came: ``restart`` or ``retry_failed``.
        extensions: How often it may have been extended by then; '' for any number.
    """

    stored_as: str
    how: str
    extensions: str = ""


def begin(home: QueueKeys, before: Before, new: str, digest: str, now_ms: int) -> Call[FlowState]:
    """Start a staged generation in the place of the current one; returns its state. Repeatable."""
    keys = [home.generations(new), home.flow(before.stored_as), home.flow(new)]
    args = (now_ms, before.stored_as, new, digest, before.how, before.extensions)
    return function("gmo_begin_generation", keys, args, FlowState, repeatable=True)


def is_expired(home: QueueKeys, stored: str) -> Call[bool]:
    """Whether the jobs of a generation were removed, or are being removed."""
    return command("HEXISTS", home.flow(stored), "expired_at", decode=bool)


def read_entries(reply: Any) -> list[Found]:
    """The generations that entries of a stream of generations name."""
    rest = ("digest", "request", "how")
    return [
        Found(fields["id"], str(fields.get("path") or ""), *(fields.get(name, "") for name in rest))
        for fields in replies.entries(reply)
        if fields.get("id")
    ]
