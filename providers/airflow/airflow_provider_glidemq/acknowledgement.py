"""Messages that a DAG run has: those of a trigger with ``until_run`` come again until it says so."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from glidemq_orchestrate.errors import JobNotFound, JobStateConflict

if TYPE_CHECKING:
    from glidemq_orchestrate import Queue


def acknowledge(events: Iterable[Any], *, glidemq_conn_id: str = DEFAULT_CONN_ID) -> int:
    """Remove the messages of asset events from their queues: a run has them. Returns how many were there.

    Call it in a task of the run, when what the messages ask for is done, or stands where it is not lost. They
    do not come again afterwards, and those that were not acknowledged do. A message that was added under the
    same id after its event is another one, and stays. Repeatable.

    Args:
        events: Of ``triggering_asset_events``, such as ``triggering_asset_events[orders]``; those of other
            triggers are passed over.
        glidemq_conn_id: The connection of the trigger.

    Raises:
        JobStateConflict: A message is a node of a flow that has not ended, and stays; the others were
            removed.
        GlideMQError: The server cannot be reached; call it again.

    Example:
        >>> acknowledge(triggering_asset_events[orders])  # doctest: +SKIP
    """
    found: dict[str, dict[str, datetime | None]] = {}
    for event in events:
        extra = getattr(event, "extra", None) or {}
        payload = extra.get("payload")
        if isinstance(payload, dict) and {"queue", "messages"} <= payload.keys():
            ids, at = found.setdefault(str(payload["queue"]), {}), getattr(event, "timestamp", None)
            for message in payload["messages"]:
                known = ids.get(str(message["id"]))
                ids[str(message["id"])] = max(known, at) if known and at else known or at
    removed, conflicts = 0, list[JobStateConflict]()
    for name, ids in found.items():
        with GlideMQHook(glidemq_conn_id).get_queue(name) as queue:
            for job_id, at in ids.items():
                try:
                    removed += _removed(queue, job_id, at)
                except JobStateConflict as exc:
                    conflicts.append(exc)
    if conflicts:
        raise conflicts[0]
    return removed


def _removed(queue: Queue, job_id: str, at: datetime | None) -> bool:
    """Remove a message, unless it was added after the time of its event: it is another one then."""
    with suppress(JobNotFound):  # acknowledged before
        added_at = queue.get_job(job_id).created_at
        if at is None or added_at is None or added_at <= at:
            queue.remove(job_id)
            return True
    return False
