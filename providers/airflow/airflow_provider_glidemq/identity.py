"""The flow id of a task in a DAG run."""

from __future__ import annotations

from glidemq_orchestrate.runs import derived_id


def flow_id_for(dag_id: str, task_id: str, run_id: str, map_index: int = -1) -> str:
    """The id of the flow of one task in one DAG run: 35 characters, the same on every try.

    Try numbers are left out on purpose: a retry finds the flow of the previous try, and attaches to it or
    repairs it.

    Args:
        dag_id: The DAG.
        task_id: The task, with its groups.
        run_id: The DAG run.
        map_index: The index of a mapped task; -1 for a task that is not mapped.
    """
    return derived_id("af", dag_id, run_id, task_id, str(map_index))
