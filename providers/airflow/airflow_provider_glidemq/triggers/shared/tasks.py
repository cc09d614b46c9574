"""Reads the states of tasks from Airflow in a triggerer, and the XComs of the tasks of a group.

Importing this module takes seconds on a busy machine, as does Airflow's first response, for which the
triggerer loads its API. So both are done when the first trigger starts, and not when a user ends a task. An
event that ends its task can only push JSON as text; an XCom that is written here keeps its type.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from asgiref.sync import sync_to_async

from airflow_provider_glidemq.group_flow import LAUNCH_SECONDS, RETURN_VALUE, XCOM_LAUNCHED, EndedEarly, Seen
from airflow_provider_glidemq.task_attempt import TaskKey
from glidemq_orchestrate.runs import reconnect_pauses

if TYPE_CHECKING:
    from glidemq_orchestrate.flows import NodeStatus

T = TypeVar("T")

ENDED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
RUNS_AT_ONCE: Final = 50


async def ask(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a call of Airflow that blocks until its supervisor responds.

    The call runs in a thread of asgiref, which is bound to this event loop. In another thread, the triggerer
    of Airflow 3.1 would mix up the responses of concurrent calls and end. The same happens if a call is
    aborted when its trigger stops, so the call always completes.
    """
    return await asyncio.shield(sync_to_async(call)(*args, **kwargs))


def prepare(task: TaskKey) -> None:
    """Make one call per process and ignore its response, so that later calls are fast."""
    if not _asked:
        _asked.append(asyncio.get_running_loop().create_task(_ignored(task), context=Context()))


_asked: Final[list[asyncio.Task[None]]] = []


async def _ignored(task: TaskKey) -> None:
    with suppress(Exception):
        await states_of(task, [task.run_id])


async def states_of(task: TaskKey, run_ids: Sequence[str]) -> Mapping[str, str | None]:
    """The state of the task in each of these runs; None where it has none yet. Runs without it are left out.

    Raises:
        Exception: Airflow cannot be reached from here, or does not respond.
    """
    found: dict[str, str | None] = {}
    for first in range(0, len(run_ids), RUNS_AT_ONCE):
        part = list(run_ids[first : first + RUNS_AT_ONCE])
        states = await _states(task, part, task_ids=[task.task_id])
        found |= {run_id: state for run_id, of_run in states.items() for state in of_run.values()}
    return found


async def states_in_run(
    task: TaskKey, task_ids: Sequence[str], group: str | None = None
) -> Mapping[str, str | None]:
    """The states of several tasks of a run and of a group, by task id; missing tasks have no entry.

    Raises:
        Exception: See ``states_of``.
    """
    states = await _states(task, [task.run_id], task_ids=list(task_ids) or None, task_group_id=group)
    suffix = f"_{task.map_index}" if task.map_index >= 0 else ""
    return {name.removesuffix(suffix): state for name, state in states.get(task.run_id, {}).items()}


async def _states(task: TaskKey, run_ids: list[str], **chosen: Any) -> dict[str, dict[str, str | None]]:
    """The states of the chosen tasks in the DAG runs of a task, by run and task."""
    found = await ask(
        RuntimeTaskInstance.get_task_states,
        dag_id=task.dag_id,
        map_index=task.map_index,
        run_ids=run_ids,
        **chosen,
    )
    return {
        run_id: {
            name: None if state is None else str(getattr(state, "value", state))
            for name, state in of_run.items()
        }
        for run_id, of_run in found.items()
    }


async def is_ended_with_its_run(task: TaskKey, state: str | None) -> bool:
    """Whether Airflow has ended a task that is in this state, as its DAG run has failed; never fails."""
    if state == "skipped":
        with suppress(Exception):  # depends on the release; then the cause is unknown
            run = await ask(RuntimeTaskInstance.get_dagrun_state, task.dag_id, task.run_id)
            return str(getattr(run, "value", run)) == "failed"
    return False


def reason_of(what: str, state: str | None, *, with_its_run: bool) -> str:
    """The reason why a task in this state has ended while its trigger was waiting."""
    if with_its_run:
        return f"{what} was ended by Airflow: its DAG run has failed (dagrun_timeout, or fail_fast)"
    if state == "skipped":
        return f"{what} was skipped by Airflow or a user"
    return f"{what} was ended by a user (state: {state or 'none'})"


logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 600.0
_REFUSED: Final = frozenset({400, 404, 422})


@dataclass(frozen=True, slots=True)
class GroupTask:
    """One try of a task of a group.

    Attributes:
        place: The task in its DAG run.
        attempt: The number of the try, not counting retries.
        launch: The id of the task that submits the flow.
        node: The name of the task's node.
    """

    place: TaskKey
    attempt: int
    launch: str
    node: str

    async def states(self, task_ids: Sequence[str], *, group: str | None = None) -> Mapping[str, str | None]:
        """The states of tasks of the run and of a group, by task id.

        Raises:
            Exception: Airflow does not respond.
        """
        return await _patiently(lambda: states_in_run(self.place, task_ids, group))

    async def is_preceded(self, task_ids: Sequence[str]) -> bool:
        """Whether any of these tasks has not ended: it may have been cleared together with this task."""
        return bool(task_ids) and not ENDED.issuperset((await self.states(task_ids)).values())

    async def launched(self) -> dict[str, Any]:
        """Wait for the last run of launch, and return the values that it has stored about its flow.

        Raises:
            EndedEarly: Launch has ended without storing them.
        """
        while True:
            state = (await self.states([self.launch])).get(self.launch)
            if state in ENDED:  # a cleared task keeps its XCom until it runs again
                found = await self._read(XCOM_LAUNCHED)
                if isinstance(found, dict):
                    return found
                raise EndedEarly("failed", f"{self.launch} is {state} and has submitted no flow: clear it")
            await asyncio.sleep(LAUNCH_SECONDS)

    async def seen(self) -> Seen | None:
        """The record of the last try about its nodes, if launch has not run since then."""
        return Seen.read(await self._read(_seen(self.node))) if self.attempt > 1 else None

    async def remember(self, seen: Seen) -> None:
        """Store the record of this try."""
        await self._write(self.place.beside(self.launch), _seen(self.node), seen.stored())

    async def remember_mark(self, node: str, ended: Sequence[NodeStatus]) -> None:
        """Store the end of the nodes of another task of the group, which was marked."""
        key, launch = _seen(node), self.place.beside(self.launch)
        if (seen := Seen.read(await self._read(key))) is not None:
            await self._write(launch, key, seen.at(ended).stored())

    async def push(self, key: str, value: Any, *, length: int | None = None) -> None:
        """Store an XCom of the task; ``length``: how many tasks a mapped task expands to."""
        await self._write(self.place, key, value, length)

    async def forget(self) -> None:
        """Remove the result of an earlier try, if there is one."""
        with suppress(Exception):  # the class depends on the release
            await ask(XCom.delete, key=RETURN_VALUE, **self.place._asdict())

    async def _read(self, key: str) -> Any:
        place = self.place.beside(self.launch)._asdict()
        return await _patiently(lambda: ask(XCom.get_one, key=key, **place))

    async def _write(self, place: TaskKey, key: str, value: Any, length: int | None = None) -> None:
        names = place._asdict()
        await _patiently(lambda: ask(XCom.set, key, value, _mapped_length=length, **names))


def _seen(node: str) -> str:
    return f"glidemq_seen {node}"


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a failing, repeatable call for some minutes: Airflow's database may be busy or down.

    Raises:
        Exception: The call kept failing, or can never succeed; the class depends on the release.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_SECONDS
    for pause in reconnect_pauses():
        try:
            return await call()
        except Exception as exc:
            if _is_answer(exc) or loop.time() + pause > until:
                raise
            logger.warning("Airflow did not answer, asking again in %.1f s: %s", pause, exc)
        await asyncio.sleep(pause)
    raise AssertionError


def _is_answer(error: Exception) -> bool:
    """Whether Airflow refuses the call permanently: there is no such group, or it is invalid."""
    detail = getattr(getattr(error, "error", None), "detail", None)
    return isinstance(detail, dict) and detail.get("status_code") in _REFUSED
