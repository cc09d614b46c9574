"""A task of a task group as Airflow has it, seen from a triggerer: states, and XComs.

What an end event of a trigger carries arrives as text of JSON; what is written here arrives as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_glidemq.task_groups.ends import Seen
from airflow_provider_glidemq.task_groups.flow import XCOM_LAUNCHED
from airflow_provider_glidemq.triggers.task_key import LAUNCH_SECONDS, RETURN_VALUE, NotLaunched, TaskKey
from airflow_provider_glidemq.triggers.tasks import ENDED, ask, states_in_run
from glidemq_orchestrate.runs import reconnect_pauses

if TYPE_CHECKING:
    from glidemq_orchestrate import NodeStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

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
        """What launch says of its flow, in its last run; that is waited for.

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
    """Whether Airflow refuses what it was asked, however often: there is no such group, or it is invalid."""
    detail = getattr(getattr(error, "error", None), "detail", None)
    return isinstance(detail, dict) and detail.get("status_code") in _REFUSED
