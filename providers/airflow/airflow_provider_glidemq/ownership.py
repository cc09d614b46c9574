"""The task as the owner of its flow. If the task vanishes, the flow ends when the lease expires.

A task owns only the flows that it has begun. A flow that a person, or another client, has begun or reopened
after its end (``retry``, ``restart``, ``rerun``, a changed end of a node) belongs to them: the task waits for
it, and no kill, timeout or triggerer ends it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from glidemq_orchestrate import Owner, runs
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.runs import Duration

DAY: Final = 86_400.0
AT_WORK: Final = 300.0  # seconds of lease while the process of the task waits itself


def lease_in_seconds(name: str, lease: Duration | None) -> float | None:
    """A lease in seconds, as Airflow stores it; invalid values are refused while the DAG is parsed.

    Raises:
        ValueError: The lease is neither None nor a duration from 15 seconds to seven days.
    """
    if lease is None:
        return None
    try:
        Owner("task", lease)
    except ConfigurationError as exc:
        raise ValueError(f"{name} must be None, or 15 seconds to seven days, got {lease!r}") from exc
    return float(lease.total_seconds() if isinstance(lease, timedelta) else lease)


def owner_of(name: str | None, lease: float | None) -> Owner | None:
    """The owner with this name; None without a name.

    With ``lease=None`` the flow continues after the lease has expired.
    """
    if name is None:
        return None
    return runs.owner_of(name, lease, joins=False)


def seconds_of(lease: float | None) -> float:
    """How long the lease lasts: without a ``lease``, the longest time."""
    return runs.MAX_LEASE.total_seconds() if lease is None else lease
