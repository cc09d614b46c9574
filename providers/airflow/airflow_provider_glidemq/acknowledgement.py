"""Messages that a DAG run has: those of a trigger with ``until_run`` come again until it says so."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from glidemq_orchestrate.errors import JobNotFound


def acknowledge(events: Iterable[Any], *, glidemq_conn_id: str = DEFAULT_CONN_ID) -> int:
    """Remove the messages of asset events from their queues: a run has them. Returns how many were there.

    Call it in a task of the run, when what the messages ask for is done, or stands where it is not lost. They
    do not come again afterwards, and those that were not acknowledged do. Repeatable.

    Args:
        events: Of ``triggering_asset_events``, such as ``triggering_asset_events[orders]``; those of other
            triggers are passed over.
        glidemq_conn_id: The connection of the trigger.

    Raises:
        GlideMQError: The server cannot be reached; call it again.

    Example:
        >>> acknowledge(triggering_asset_events[orders])  # doctest: +SKIP
    """
    found: dict[str, dict[str, None]] = {}
    for event in events:
        extra = getattr(event, "extra", None) or {}
        payload = extra.get("payload")
        if isinstance(payload, dict) and {"queue", "messages"} <= payload.keys():
            ids = (str(message["id"]) for message in payload["messages"])
            found.setdefault(str(payload["queue"]), {}).update(dict.fromkeys(ids))
    removed = 0
    for name, ids_of_queue in found.items():
        with GlideMQHook(glidemq_conn_id).get_queue(name) as queue:
            for job_id in ids_of_queue:
                with suppress(JobNotFound):  # acknowledged before
                    queue.remove(job_id)
                    removed += 1
    return removed
