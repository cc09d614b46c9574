"""For whom a flow runs: its task. One whose task has vanished without a word ends when the lease does."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate import Owner
from glidemq_orchestrate.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from airflow_provider_glidemq.triggers.place import Place

DAY: Final = 86_400.0
AT_WORK: Final = 300.0  # seconds for which the process of a task need not be heard of while it waits itself
MOST: Final = 256


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
    """The owner of this name; None if either is."""
    return None if name is None or lapse is None else Owner(name, timedelta(seconds=lapse))


def name_of(ti: RuntimeTaskInstanceProtocol | Place) -> str:
    """The task instance as its owner is named in reasons; the same for all its tries."""
    index = "" if ti.map_index in (None, -1) else f"[{ti.map_index}]"
    name = f"Airflow task {ti.dag_id}.{ti.task_id}{index} of run {ti.run_id}"
    if len(name) <= MOST and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return "".join(mark for mark in name if mark.isprintable())[: MOST - 17] + f" {digest}"
