"""What several tests of the Airflow package need: flows, tasks, contexts, and triggers that run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, flow_id_for
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.version_compat import TaskDeferred

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec

QUEUE = "airflow-tests"
DAY: dict[str, Any] = {"ds": "2026-01-01", "ds_nodash": "20260101", "params": {"n": 3, "none": None}}
"""What templates see."""
Contexts = Callable[..., Any]


@dataclass
class Valkey:
    """A server, and a prefix of its own for each test."""

    url: str
    prefix: str
    gate: threading.Event = field(default_factory=threading.Event)
    ran: list[str] = field(default_factory=list)

    def producer(self) -> FlowProducer:
        return FlowProducer(self.url, prefix=self.prefix)


def chain(job: str = "echo", **data: Any) -> FlowSpec:
    """first -> job -> last."""
    return FlowSpec(
        "chain",
        nodes=[
            FlowNode("first", queue=QUEUE, job="echo", data=1),
            FlowNode("middle", queue=QUEUE, job=job, data=data or 2, after=["first"]),
            FlowNode("last", queue=QUEUE, job="echo", data={"rows": 3}, after=["middle"]),
        ],
    )


@dataclass
class FakeTask:
    """What an operator uses of a task instance."""

    dag_id: str = "d"
    task_id: str = "t"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    map_index: int | None = None
    try_number: int = 1
    max_tries: int = 1
    start_date: datetime = field(default_factory=lambda: datetime.now(UTC))
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@dataclass
class FakeRun:
    """What an operator uses of a DAG run."""

    start_date: datetime | None = datetime(2026, 1, 1, 12, tzinfo=UTC)
    run_after: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    clear_number: int = 0


def run_mapped(task: Any, context: Any, index: int) -> Any:
    """Unmap a task of ``partial().expand()``, render it as a worker does, and run it."""
    context["ti"].map_index = index
    context["dag_run"].conf = {}
    context = {**DAY, **context, "dag": task.dag, "expanded_ti_count": None}
    task.render_template_fields(context)
    return context["task"].execute(context)


FLOW_ID = flow_id_for("d", "t", "r1")
LONG = timedelta(seconds=20)
CLEARED: dict[str, Any] = {"try_number": 2, "max_tries": 2, "run": FakeRun(clear_number=1)}
RETRIED: dict[str, Any] = {"try_number": 2}


def operator(flow: Any = None, **kwargs: Any) -> GlideMQFlowOperator:
    kwargs.setdefault("defer_after", 0.0)
    return GlideMQFlowOperator(task_id="t", flow=flow or chain(), **kwargs)


def event(status: str = "completed", flow_id: str = FLOW_ID) -> dict[str, Any]:
    return {"status": status, "flow_id": flow_id, "reason": ""}


def load(job: str = "count", data: Any = None, **kwargs: Any) -> FlowSpec:
    """extract counts its runs, and load does what is asked for."""
    nodes = [
        FlowNode("extract", queue=QUEUE, job="count"),
        FlowNode("load", queue=QUEUE, job=job, data=data, after=["extract"]),
    ]
    return FlowSpec("etl", nodes, **kwargs)


def blocking(flow: FlowSpec | None = None, **kwargs: Any) -> GlideMQFlowOperator:
    kwargs.setdefault("deferrable", False)
    return GlideMQFlowOperator(task_id="t", flow=flow or load(), defer_after=0.0, result="all", **kwargs)


def deferred(made: GlideMQFlowOperator, context: Any) -> GlideMQFlowTrigger:
    """The trigger of a task that waits, as a triggerer recreates it."""
    made.deferrable = True
    with pytest.raises(TaskDeferred) as caught:
        made.execute(context)
    return recreated(caught.value.trigger.serialize()[1], context)


def waiting(made: GlideMQFlowOperator, context: Any, flows: FlowProducer) -> None:
    """Defer the task, and see its flow come to the node that waits."""
    deferred(made, context)
    until = time.monotonic() + 20
    while not flows.get(FLOW_ID).status().completed:
        assert time.monotonic() < until
        time.sleep(0.01)


def recreated(kwargs: dict[str, Any], context: Any) -> GlideMQFlowTrigger:
    trigger = GlideMQFlowTrigger(**{**kwargs, "not_before": None})
    ti = context["ti"]
    trigger.task_instance = FakeTask(dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id)  # type: ignore[assignment]
    return trigger


def rendered(flow: Any, *, native: bool = False, **kwargs: Any) -> Any:
    """The field ``flow`` as a task has it."""
    with DAG("d", schedule=None, render_template_as_native_obj=native, **kwargs):
        task = GlideMQFlowOperator(task_id="t", flow=flow)
    task.resolve_template_files()
    task.render_template_fields(dict(DAY))  # type: ignore[arg-type]
    return task.flow


def one(data: Any = None, **node: Any) -> dict[str, Any]:
    return {"name": "one", "nodes": [{"name": "only", "queue": QUEUE, "job": "echo", "data": data, **node}]}


def results(flow: Any, context: Any, *, native: bool = False, **kwargs: Any) -> Any:
    """What a task returns, rendered as Airflow does it."""
    with DAG("d", schedule=None, render_template_as_native_obj=native):
        task = GlideMQFlowOperator(task_id="t", flow=flow, deferrable=False, **kwargs)
    task.resolve_template_files()
    context = {**DAY, **context}
    task.render_template_fields(context)
    return task.execute(context)


YAML = """\
name: one
nodes:
  - {name: only, queue: airflow-tests, job: echo, data: {day: "{{ ds }}", text: "7\\n"}}
"""


def flow_of(nodes: list[tuple[str, list[str]]], *, as_spec: bool) -> Any:
    if as_spec:
        return FlowSpec("x", [FlowNode(name, queue="q", job="j", after=after) for name, after in nodes])
    return {
        "name": "x",
        "nodes": [{"name": name, "queue": "q", "job": "j", "after": after} for name, after in nodes],
    }


async def fired(trigger: GlideMQFlowTrigger, seconds: float = 20) -> dict[str, Any]:
    """The one event; and no second one."""
    events = [event.payload async for event in _within(trigger, seconds)]
    assert len(events) == 1
    payload: dict[str, Any] = events[0]
    return payload


async def _within(trigger: GlideMQFlowTrigger, seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        async for event in trigger.run():
            yield event


async def until(predicate: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not predicate():  # noqa: ASYNC110  there is no event
            await asyncio.sleep(0.01)


def submit(valkey: Valkey, spec: FlowSpec, flow_id: str) -> None:
    with valkey.producer() as producer:
        producer.submit(spec, flow_id=flow_id)


def task_states(
    monkeypatch: pytest.MonkeyPatch, states: dict[str, Any], *, at_once: bool = True
) -> tuple[threading.Event, threading.Event]:
    """What Airflow reports about the task; when it is asked, and when it may answer."""
    asked, release = threading.Event(), threading.Event()
    if at_once:
        release.set()

    def answer(**_: Any) -> dict[str, Any]:
        asked.set()
        assert release.wait(60)
        return states

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(answer))
    return asked, release
