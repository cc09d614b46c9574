"""How the tasks before a task have run, which a later try of it has to know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

LENGTH: Final = 12


def runs_before(ti: RuntimeTaskInstanceProtocol, task_ids: Collection[str]) -> str | None:
    """A fingerprint of the last runs of these tasks in the DAG run of a task; '' if there are none.

    Another run of a task has another duration, to the microsecond (with SQLite, to the millisecond). None:
    Airflow does not tell, as before 3.2.
    """
    if not task_ids:
        return ""
    try:
        every = ti.get_task_breadcrumbs(ti.dag_id, ti.run_id)  # type: ignore[attr-defined]
        rows = [
            [one["task_id"], one["map_index"], str(one["state"]), one["duration"]]
            for one in every
            if one["task_id"] in task_ids
        ]
    except Exception:  # noqa: BLE001  of several classes, by release
        return None
    text = json.dumps(sorted(rows, key=str))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:LENGTH]
