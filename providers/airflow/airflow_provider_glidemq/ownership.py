"""For whom a flow runs: its task. One whose task has vanished without a word ends when the lease does.

A task owns what it has begun, and nothing else. A flow that a person, or another client, has begun or set
running again after its end (``retry``, ``restart``, ``rerun``, nodes that get another end) is theirs: the
task waits for it, and no kill, time-out or look of a triggerer ends it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate import Owner
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows import owner as owners

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from airflow_provider_glidemq.triggers.task_key import TaskKey

DAY: Final = 86_400.0
AT_WORK: Final = 300.0  # seconds for which the process of a task need not be heard of while it waits itself
MAX: Final = 256


def check_lapse(lapse: float | None) -> None:
    """Refuse a lapse that is not valid while the DAG is parsed.

    Raises:
        ValueError: It is not a number of seconds from 15 to 604,800 (seven days), or None.
    """
    try:
        owner_of("task", lapse)
    except (ConfigurationError, TypeError, OverflowError, ValueError) as exc:
        raise ValueError(f"lapse must be None or seconds from 15 to 604,800, got {lapse!r}") from exc


def owner_of(name: str | None, lapse: float | None) -> Owner | None:
    """The owner of this name, of what it begins; None if there is no name.

    ``lapse``: None: the flow is its own, and runs on when nothing is heard of it.
    """
    if name is None:
        return None
    if lapse is None:
        return Owner(name, owners.MAX, "keep", joins=False)
    return Owner(name, timedelta(seconds=lapse), joins=False)


def seconds_of(lapse: float | None) -> float:
    """How long its lease lasts."""
    return owners.MAX.total_seconds() if lapse is None else lapse


class NotOwned(Exception):
    """A flow does not run for the task that would end it."""


def check_owned(flow_id: str, name: str, owners: Collection[str]) -> None:
    """Refuse to end what does not run for this owner; an ended flow has none.

    Raises:
        NotOwned: It is not one of the owners.
    """
    if name not in owners:
        raise NotOwned(f"somebody else has begun flow {flow_id} or set it running again")


def name_of(ti: RuntimeTaskInstanceProtocol | TaskKey) -> str:
    """The task instance as its owner is named in reasons; the same for all its tries."""
    index = "" if ti.map_index in (None, -1) else f"[{ti.map_index}]"
    name = f"Airflow task {ti.dag_id}.{ti.task_id}{index} of run {ti.run_id}"
    if len(name) <= MAX and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return "".join(mark for mark in name if mark.isprintable())[: MAX - 17] + f" {digest}"
