"""Calls that list and sweep flows; the contracts are in ``lua/glidemq_orchestrate/functions``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._protocol.flows.flow import read_status
from glidemq_orchestrate.flows.spec import FlowStatus
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys, flow_homes

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Filter:
    """Which flows to list; empty fields do not filter. ``since_ms`` is the oldest time of creation."""

    state: str = ""
    label: tuple[str, str] | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class IndexPosition:
    """A place in a list from new to old: creation time in ms and id of the flow before it; '': the start."""

    time: str = ""
    flow_id: str = ""


def homes(prefix: str) -> Call[list[str]]:
    """The home queues."""
    return command("SMEMBERS", flow_homes(prefix), decode=list)


def list_flows(
    home: QueueKeys, wanted: Filter, after: IndexPosition, count: int
) -> Call[tuple[IndexPosition | None, list[FlowStatus]]]:
    """The next position (None at the end), and a page of the flows of a home queue, newest first."""
    words: dict[str, str] = {}
    if wanted.state:
        words["state"] = wanted.state
    if wanted.label is not None:
        words["label"] = "=".join(wanted.label)
    if wanted.since_ms is not None:
        words["since"] = str(wanted.since_ms)
    if after.time:
        words |= {"time": after.time, "id": after.flow_id}

    def decode(reply: Any) -> tuple[IndexPosition | None, list[FlowStatus]]:
        time, flow_id, *rest = reply
        rows = zip(rest[::2], rest[1::2], strict=True)
        found = [read_status(home, replies.text(name), replies.fields(fields)) for name, fields in rows]
        return (IndexPosition(replies.text(time), replies.text(flow_id)) if time else None), found

    args = (0, json.dumps(words), min(count, PAGE))
    return function("gmo_list_flows", [home.flows()], args, decode)


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a slice of a sweep.

    Attributes:
        is_busy: There may be more to do.
        removed: The id of a flow of which nothing, or only its tombstone, is left; '' for none.
        tombstone_ms: How long its tombstone stays; 0 for none.
    """

    is_busy: bool
    removed: str
    tombstone_ms: int


def sweep(home: QueueKeys, *, abandoned_before_ms: int, tombstone_ms: int, now_ms: int) -> Call[Swept]:
    """Remove a slice of what is due. Repeatable."""
    args = (now_ms, abandoned_before_ms, tombstone_ms)

    def decode(reply: Any) -> Swept:
        busy, removed, ms = (reply, "", 0) if isinstance(reply, int) else reply
        return Swept(busy == 1, replies.text(removed), replies.integer(ms))

    return function("gmo_sweep", [home.flows()], args, decode)


def forget_home(queue: QueueKeys) -> Call[None]:
    """Remove a queue from the home queues. Repeatable."""
    return command("SREM", flow_homes(queue.prefix), queue.queue, decode=replies.anything)
