"""Reading the events stream of a queue from a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from glidemq_orchestrate._protocol import glidemq
from glidemq_orchestrate._protocol.call import Op, ask
from glidemq_orchestrate.keys import QueueKeys

READ_COUNT = 100


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the events stream.

    Attributes:
        id: Its position; reading goes on after it.
        kind: ``added``, ``active``, ``completed``, ``failed``, ``retrying``, ``progress``,
            ``flow.completed``, ...
        job_id: The job; empty for events about a flow.
        flow_id: The flow, for ``flow.*`` events; else empty.
        fields: The other fields, all texts as stored.
    """

    id: str
    kind: str
    job_id: str
    flow_id: str
    fields: Mapping[str, str]

    @property
    def at(self) -> datetime:
        """When the server stored it."""
        return datetime.fromtimestamp(int(self.id.split("-", 1)[0]) / 1000, UTC)


def tail(queue: QueueKeys) -> Op[str]:
    """The position after the newest event."""
    return (yield from ask(glidemq.last_event(queue)))


def read(queue: QueueKeys, position: str, block_ms: int | None) -> Op[list[Event]]:
    """Up to 100 events after a position; waits at most ``block_ms`` for the first (None: not at all)."""
    wait = None if block_ms is None else max(block_ms, 1)  # BLOCK 0 would wait for ever
    streams = yield from ask(glidemq.read_events(queue, position, READ_COUNT, wait))
    return [_event(entry_id, fields) for entries in streams.values() for entry_id, fields in entries]


def _event(entry_id: str, fields: Mapping[str, str]) -> Event:
    rest = {name: value for name, value in fields.items() if name not in ("event", "jobId", "flowId")}
    return Event(entry_id, fields.get("event", ""), fields.get("jobId", ""), fields.get("flowId", ""), rest)
