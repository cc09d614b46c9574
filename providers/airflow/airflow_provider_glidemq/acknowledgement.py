"""Acknowledges messages: a trigger with ``until_run`` repeats a message until a DAG run acknowledges it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from glidemq_orchestrate.errors import JobNotFound, JobStateConflict

if TYPE_CHECKING:
    from glidemq_orchestrate import Queue


def acknowledge(events: Iterable[Any], *, glidemq_conn_id: str = DEFAULT_CONN_ID) -> int:
    """Remove the messages of asset events from their queues. Returns how many were removed.

    Call it in a task of the run once the messages are processed or safely stored. A message that is not
    acknowledged is delivered again. A message that was added under the same id after the event is a new
    message, and stays. Repeatable.

    Args:
        events: Events from ``triggering_asset_events``, such as ``triggering_asset_events[orders]``; events
            of other triggers are ignored.
        glidemq_conn_id: The connection of the trigger.

    Raises:
        JobStateConflict: A message is a node of a flow that has not ended, and stays; the other messages are
            removed.
        GlideMQError: The server cannot be reached; call it again.

    Example:
        >>> acknowledge(triggering_asset_events[orders])  # doctest: +SKIP
    """
    found: dict[str, dict[str, _SeenMessages]] = {}
    for event in events:
        extra = getattr(event, "extra", None) or {}
        payload = extra.get("payload")
        if isinstance(payload, dict) and {"queue", "messages"} <= payload.keys():
            of_queue = found.setdefault(str(payload["queue"]), {})
            for message in payload["messages"]:
                seen = of_queue.setdefault(str(message["id"]), _SeenMessages())
                seen.add(message.get("added_at"), getattr(event, "timestamp", None))
    removed, conflicts = 0, list[JobStateConflict]()
    for name, of_queue in found.items():
        with GlideMQHook(glidemq_conn_id).get_queue(name) as queue:
            for job_id, seen in of_queue.items():
                try:
                    removed += _removed(queue, job_id, seen)
                except JobStateConflict as exc:
                    conflicts.append(exc)
    if conflicts:
        raise conflicts[0]
    return removed


@dataclass(slots=True)
class _SeenMessages:
    """The times that the events of a run contain for the messages with one id."""

    added: set[str] = field(default_factory=set)
    latest: datetime | None = None

    def add(self, added_at: str | None, at: datetime | None) -> None:
        """Record an event that has the message: when its job was added, and when the event was stored."""
        if added_at:
            self.added.add(added_at)
        self.latest = max(self.latest, at) if self.latest and at else self.latest or at

    def is_of(self, created_at: datetime | None) -> bool:
        """Whether a job that was added at this time is one of these messages.

        The times of jobs and of events come from different clocks, so they are compared only as a last
        resort.
        """
        if self.added:
            return created_at is not None and created_at.isoformat() in self.added
        return self.latest is None or created_at is None or created_at <= self.latest


def _removed(queue: Queue, job_id: str, seen: _SeenMessages) -> bool:
    """Remove a message, unless its id now belongs to a newer message."""
    with suppress(JobNotFound):  # acknowledged before
        if seen.is_of(queue.get_job(job_id).created_at):
            queue.remove(job_id)
            return True
    return False
