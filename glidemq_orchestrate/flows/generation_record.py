"""Calls for the generations of a flow; ``parts/generations.lua`` describes how they are stored."""

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

_SEPARATOR: Final = "\n"  # requests contain no control characters


@dataclass(frozen=True, slots=True)
class Found:
    """A generation of an existing flow.

    Attributes:
        stored_as: The id under which it is stored.
        path: The stored name of its path.
        digest: The fingerprint of its specification.
        request: Its stored idempotency key, or ''; see ``request_for``.
        how: ``restart`` or ``retry_failed``; '' for the first generation.
    """

    stored_as: str
    path: str
    digest: str
    request: str = ""
    how: str = ""

    @property
    def requester(self) -> str:
        """Its idempotency key, without the fingerprint of the nodes."""
        return read_request(self.request)


def request_for(request: str, nodes: Collection[str] | None) -> str:
    """The stored form of an idempotency key: with a fingerprint of the nodes from which on the flow reruns.

    For a rerun of the whole flow it is the key itself.
    """
    if not request or nodes is None:
        return request
    fingerprint = hashlib.sha256(json.dumps(sorted(nodes)).encode(errors="replace")).hexdigest()[:16]
    return f"{request}{_SEPARATOR}{fingerprint}"


def read_request(stored: str) -> str:
    """The idempotency key as the caller passed it."""
    return stored.partition(_SEPARATOR)[0]


def first(home: QueueKeys, flow_id: str) -> Call[Found | None]:
    """The only generation of a flow, from its record; None without a record."""

    def decode(reply: Any) -> Found | None:
        digest, path, request = reply
        return Found(flow_id, str(path or ""), digest, request or "") if digest else None

    return command("HMGET", home.flow(flow_id), "digest", "path", "request", decode=decode)


def current(home: QueueKeys, flow_id: str) -> Call[Found | None]:
    """The current generation of a flow with several; None for any other flow."""

    def decode(reply: Any) -> Found | None:
        found = read_entries(reply)
        return found[0] if found else None

    return command("XREVRANGE", home.generations(flow_id), "+", "-", "COUNT", 1, decode=decode)


def every(home: QueueKeys, flow_id: str) -> Call[list[Found]]:
    """The recorded generations of a flow with several, oldest first; otherwise none."""
    return command("XRANGE", home.generations(flow_id), "-", "+", decode=read_entries)


@dataclass(frozen=True, slots=True)
class Before:
    """A generation to be superseded.

    Attributes:
        stored_as: The id under which it is stored.
        how: Why the next one begins: ``restart`` or ``retry_failed``.
        extensions: The number of extensions that it must have by then; '' for any number.
    """

    stored_as: str
    how: str
    extensions: str = ""


def begin(home: QueueKeys, before: Before, new: str, digest: str, now_ms: int) -> Call[FlowState]:
    """Start a staged generation in place of the current one; returns its state. Idempotent."""
    keys = [home.generations(new), home.flow(before.stored_as), home.flow(new)]
    args = (now_ms, before.stored_as, new, digest, before.how, before.extensions)
    return function("gmo_begin_generation", keys, args, FlowState, repeatable=True)


def is_expired(home: QueueKeys, stored: str) -> Call[bool]:
    """Whether the jobs of a generation were or are being removed."""
    return command("HEXISTS", home.flow(stored), "expired_at", decode=bool)


def read_entries(reply: Any) -> list[Found]:
    """The generations in the entries of a generations stream."""
    rest = ("digest", "request", "how")
    return [
        Found(fields["id"], str(fields.get("path") or ""), *(fields.get(name, "") for name in rest))
        for fields in replies.entries(reply)
        if fields.get("id")
    ]
