"""Where a trigger waits: a task in a DAG run."""

from __future__ import annotations

from typing import Final, NamedTuple

RETURN_VALUE: Final = "return_value"
LAUNCH_SECONDS: Final = 2.0  # from look to look at a task that another one waits for


class NotLaunched(Exception):
    """Launch has ended and has submitted no flow."""


class TaskKey(NamedTuple):
    """A task in a DAG run; ``map_index`` is -1 for one that is not mapped."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int

    def of(self, task_id: str) -> TaskKey:
        """Another task of the same run."""
        return self._replace(task_id=task_id)

    @property
    def names(self) -> tuple[str, str, str, int]:
        """The arguments of ``flow_id_for``."""
        return self.dag_id, self.task_id, self.run_id, self.map_index
