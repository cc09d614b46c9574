"""Where a trigger waits: a task in a DAG run."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A task in a DAG run; ``map_index`` is -1 for one that is not mapped."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int

    def of(self, task_id: str) -> Place:
        """Another task of the same run."""
        return self._replace(task_id=task_id)
