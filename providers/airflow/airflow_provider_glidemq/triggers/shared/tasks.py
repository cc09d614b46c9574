"""What a triggerer reads from Airflow about tasks, and the XComs of the tasks of a group.

Importing this takes seconds on a busy machine, and so does Airflow's first answer, for which the triggerer
loads its API. So both are done when the first trigger starts, and not when a user ends a task. The event of a
trigger that ends its task carries JSON as text; an XCom that is written here keeps its type.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from asgiref.sync import sync_to_async

from airflow_provider_glidemq.group_flow import LAUNCH_SECONDS, RETURN_VALUE, XCOM_LAUNCHED, NotLaunched, Seen
from airflow_provider_glidemq.ownership import TaskKey
from glidemq_orchestrate.runs import reconnect_pauses

if TYPE_CHECKING:
    from glidemq_orchestrate import NodeStatus

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
    Airflow 3.1, which takes the answer for that to another call. So does a call that is cut off when its
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
        Exception: Airflow cannot be reached from here, or does not answer.
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


logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 600.0
_REFUSED: Final = frozenset({400, 404, 422})


@dataclass(frozen=True, slots=True)
class GroupTask:
    """One try of a task of a group.

    Attributes:
        place: Where it is.
        attempt: The number of the try, where retries are not counted.
        launch: The task that submits the flow.
        node: The name of its node.
    """

    place: TaskKey
    attempt: int
    launch: str
    node: str

    async def states(self, task_ids: Sequence[str], *, group: str | None = None) -> Mapping[str, str | None]:
        """The states of tasks of the run, by their ids, and of those in a group.

        Raises:
            Exception: Airflow does not answer.
        """
        place = self.place
        return await _patiently(
            lambda: states_in_run(place.dag_id, place.run_id, place.map_index, task_ids, group)
        )

    async def is_preceded(self, task_ids: Sequence[str]) -> bool:
        """Whether one of these tasks has not ended: it may have been cleared together with this one."""
        return bool(task_ids) and not ENDED.issuperset((await self.states(task_ids)).values())

    async def launched(self) -> dict[str, Any]:
        """What launch has stored about its flow, in its last run; that run is awaited.

        Raises:
            NotLaunched: It has ended without a word.
        """
        while True:
            state = (await self.states([self.launch])).get(self.launch)
            if state in ENDED:  # one that was cleared keeps its XCom until it runs again
                found = await self._read(XCOM_LAUNCHED)
                if isinstance(found, dict):
                    return found
                raise NotLaunched(f"{self.launch} is {state} and has submitted no flow: clear it")
            await asyncio.sleep(LAUNCH_SECONDS)

    async def seen(self) -> Seen | None:
        """What the last try has seen of its nodes, if launch has not run since."""
        return Seen.read(await self._read(_seen(self.node))) if self.attempt > 1 else None

    async def remember(self, seen: Seen) -> None:
        """Store what this try has seen."""
        await self._write(self.place.of(self.launch), _seen(self.node), seen.stored())

    async def remember_mark(self, node: str, ended: Sequence[NodeStatus]) -> None:
        """Store that a task of the group, which was marked, shows this end of its nodes."""
        key, launch = _seen(node), self.place.of(self.launch)
        if (seen := Seen.read(await self._read(key))) is not None:
            await self._write(launch, key, seen.at(ended).stored())

    async def push(self, key: str, value: Any, *, length: int | None = None) -> None:
        """Store an XCom of the task; ``length``: how many tasks a mapped task makes of it."""
        await self._write(self.place, key, value, length)

    async def forget(self) -> None:
        """Remove the result of an earlier try, if there is one."""
        with suppress(Exception):  # of several classes, by release
            await ask(XCom.delete, key=RETURN_VALUE, **self.place._asdict())

    async def _read(self, key: str) -> Any:
        place = self.place.of(self.launch)._asdict()
        return await _patiently(lambda: ask(XCom.get_one, key=key, **place))

    async def _write(self, place: TaskKey, key: str, value: Any, length: int | None = None) -> None:
        names = place._asdict()
        await _patiently(lambda: ask(XCom.set, key, value, _mapped_length=length, **names))


def _seen(node: str) -> str:
    return f"glidemq_seen {node}"


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that fails for some minutes: Airflow's database may be busy, or away. All are repeatable.

    Raises:
        Exception: It kept failing, or would fail each time; of several classes, by release.
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
    """Whether Airflow refuses the call for good: there is no such group, or it is invalid."""
    detail = getattr(getattr(error, "error", None), "detail", None)
    return isinstance(detail, dict) and detail.get("status_code") in _REFUSED
