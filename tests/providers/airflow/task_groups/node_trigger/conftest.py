"""A flow as launch submits it, triggers of its tasks, and what Airflow answers them: tests/system asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow_provider_glidemq.group_flow import XCOM_LAUNCHED
from airflow_provider_glidemq.ownership import owner_of
from airflow_provider_glidemq.task_attempt import TaskKey
from airflow_provider_glidemq.triggers import node
from airflow_provider_glidemq.triggers.node import GlideMQNodeTrigger
from airflow_provider_glidemq.triggers.nodes import TaskNodes
from airflow_provider_glidemq.triggers.shared import tasks
from airflow_provider_glidemq.triggers.shared.client import SharedClient

from glidemq_orchestrate import FlowNode, FlowSpec, Worker
from tests.providers.airflow.builders import QUEUE, FakeTask, Valkey

Submit = Callable[..., Any]
OWNER = owner_of(TaskKey("d", "etl.launch", "r1").owner, 3600.0)


@dataclass
class AirflowSays:
    """The states of the tasks, and the XComs by task and key."""

    states: dict[str, str | None] = field(default_factory=lambda: {"etl.launch": "success"})
    xcoms: dict[tuple[str, str], Any] = field(default_factory=dict)
    lengths: dict[str, int | None] = field(default_factory=dict)
    refusals: int = 0
    refuses: Exception = field(default_factory=lambda: RuntimeError("database is locked"))


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> AirflowSays:
    says = AirflowSays()

    class XCom:
        @staticmethod
        def get_one(*, key: str, task_id: str, **_: Any) -> Any:
            if says.refusals:
                says.refusals -= 1
                raise says.refuses
            return says.xcoms.get((task_id, key))

        @staticmethod
        def set(key: str, value: Any, *, task_id: str, _mapped_length: int | None, **_: Any) -> None:
            says.xcoms[task_id, key] = value
            says.lengths[task_id] = _mapped_length

        @staticmethod
        def delete(*, key: str, task_id: str, **_: Any) -> None:
            del says.xcoms[task_id, key]

    def answer(*, run_ids: list[str], task_ids: Any, task_group_id: Any, **_: Any) -> dict[str, Any]:
        asked = says.states if task_group_id else {one: says.states.get(one) for one in task_ids}
        return {run_ids[0]: dict(asked)}

    monkeypatch.setattr(tasks, "XCom", XCom)
    monkeypatch.setattr(tasks, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(tasks, "reconnect_pauses", lambda: iter([0.01, 0.01, 0.01, 2.0]))
    monkeypatch.setattr(tasks, "LAUNCH_SECONDS", 0.05)
    monkeypatch.setattr(node, "LAUNCH_SECONDS", 0.05)
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(answer))
    return says


@pytest.fixture
def submit(valkey: Valkey, worker: Worker, airflow: AirflowSays) -> Submit:
    """Submits the flow of the group, as launch does."""

    def made(
        *nodes: FlowNode, skipped: list[str] | None = None, is_masked: bool | None = None, **options: Any
    ) -> Any:
        launched = {} if is_masked is None else {"is_masked": is_masked}  # of an earlier release: not there
        with valkey.producer() as producer:
            flow = producer.submit(FlowSpec("etl", nodes), flow_id="f", **{"owner": OWNER} | options)
            said = {"flow_id": "f", "generation": flow.generation, "skipped": skipped or [], **launched}
            airflow.xcoms["etl.launch", XCOM_LAUNCHED] = said
            return flow

    return made


def job(name: str, job: str = "echo", data: Any = None, *after: str) -> FlowNode:
    return FlowNode(name, queue=QUEUE, job=job, data=data, after=after)


def trigger(name: str = "a", *, attempt: int = 1, **options: Any) -> GlideMQNodeTrigger:
    given = {"ends_task": True, "poll_interval": 0.2, **options}
    made = GlideMQNodeTrigger(node=name, launch="etl.launch", **given)
    made.task_instance = FakeTask(task_id=f"etl.{name}", run_id="r1", try_number=attempt)  # type: ignore[assignment]
    return made


async def fired(made: GlideMQNodeTrigger) -> Any:
    """The state in which the trigger ends its task, or the payload of its event."""
    async with asyncio.timeout(20):
        (event,) = [event async for event in made.run()]
    if made.ends_task and isinstance(event.payload, dict):  # a worker ends it, with what was pushed
        assert not event.payload.get("nodes")
        return {"completed": "success"}.get(event.payload["status"], event.payload["status"])
    return getattr(event, "task_instance_state", event.payload)


class Killed(BaseException):
    """The triggerer."""


def kill_while_starting_over(patch: pytest.MonkeyPatch, calls: int) -> None:
    """Let the triggerer die after so many calls of the clear of a task."""
    start_over, ask, left = TaskNodes.start_over, SharedClient.ask, [10**6]

    async def begun(self: TaskNodes, names: list[str], request: str, reason: str) -> None:
        left[0] = calls
        await start_over(self, names, request, reason)

    async def dying(self: SharedClient, asked: Any) -> Any:
        if not left[0]:
            asked.close()
            raise Killed
        left[0] -= 1
        return await ask(self, asked)

    patch.setattr(TaskNodes, "start_over", begun)
    patch.setattr(SharedClient, "ask", dying)
