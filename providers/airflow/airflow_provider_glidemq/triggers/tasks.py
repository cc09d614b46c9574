"""What Airflow says of tasks, asked from a triggerer.

Importing this takes seconds on a busy machine, and so does Airflow's first answer, for which the triggerer
loads its API. So both is done when the first trigger starts, and not when a user ends a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, NamedTuple, TypeVar

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

T = TypeVar("T")

ENDED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
RUNS_AT_ONCE: Final = 50


class Task(NamedTuple):
    """A task of a DAG, in any of its runs; ``map_index`` is -1 for one that is not mapped."""

    dag_id: str
    task_id: str
    map_index: int


async def ask(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a call of Airflow's that blocks until its supervisor answers.

    In a thread of asgiref, which knows this event loop: in another one, such a call ends the triggerer of
    Airflow 3.1, which reads the answer as that to somebody else. So does a call that is cut off when its
    trigger is stopped: it goes on to its end.
    """
    return await asyncio.shield(sync_to_async(call)(*args, **kwargs))


def prepare(task: Task, run_id: str) -> None:
    """Ask once in the life of the process, and ignore the answer, so that later ones come soon."""
    if not _asked:
        _asked.append(asyncio.get_running_loop().create_task(_ignored(task, run_id), context=Context()))


_asked: Final[list[asyncio.Task[None]]] = []


async def _ignored(task: Task, run_id: str) -> None:
    with suppress(Exception):
        await states_of(task, [run_id])


async def states_of(task: Task, run_ids: Sequence[str]) -> Mapping[str, str | None]:
    """The state of the task in each of these runs; None where it has none yet. Runs without it are left out.

    Raises:
        Exception: Airflow cannot be asked here, or does not answer.
    """
    found: dict[str, str | None] = {}
    for first in range(0, len(run_ids), RUNS_AT_ONCE):
        part = list(run_ids[first : first + RUNS_AT_ONCE])
        found |= await ask(_ask, task, part)
    return found


async def states_in_run(
    dag_id: str, run_id: str, map_index: int, task_ids: Sequence[str], group: str | None = None
) -> Mapping[str, str | None]:
    """The states of several tasks of one run, by their ids, and of those in a group; no task, no entry.

    Raises:
        Exception: As ``states_of``.
    """
    states = await ask(
        RuntimeTaskInstance.get_task_states,
        dag_id=dag_id,
        run_ids=[run_id],
        map_index=map_index,
        task_ids=list(task_ids) or None,
        task_group_id=group,
    )
    suffix = f"_{map_index}" if map_index >= 0 else ""
    return {
        task_id.removesuffix(suffix): None if state is None else str(getattr(state, "value", state))
        for task_id, state in states.get(run_id, {}).items()
    }


async def is_ended_with_its_run(dag_id: str, run_id: str, state: str | None) -> bool:
    """Whether Airflow has ended a task that is in this state, as its DAG run has failed; never fails."""
    if state == "skipped":
        with suppress(Exception):  # by release; then it stays open who did it
            run = await ask(RuntimeTaskInstance.get_dagrun_state, dag_id, run_id)
            return str(getattr(run, "value", run)) == "failed"
    return False


def reason_of(what: str, state: str | None, *, with_its_run: bool) -> str:
    """Why a task that is in this state, though its trigger waited, has ended."""
    if with_its_run:
        return f"{what} was ended by Airflow: its DAG run has failed (dagrun_timeout, or fail_fast)"
    if state == "skipped":
        return f"{what} was skipped by Airflow or a user"
    return f"{what} was ended by a user (state: {state or 'none'})"


def _ask(task: Task, run_ids: list[str]) -> dict[str, str | None]:
    states = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id, task_ids=[task.task_id], run_ids=run_ids, map_index=task.map_index
    )
    return {
        run_id: None if state is None else str(getattr(state, "value", state))
        for run_id, of_run in states.items()
        for state in of_run.values()
    }
