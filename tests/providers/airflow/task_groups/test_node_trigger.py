"""The trigger of a task of a group, on a real server. What Airflow answers is given: tests/system asks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTaskEndEvent, TriggerEvent
from airflow_provider_glidemq import node_reports
from airflow_provider_glidemq.attempt import TaskKey
from airflow_provider_glidemq.group_flow import XCOM_LAUNCHED
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator
from airflow_provider_glidemq.ownership import owner_of
from airflow_provider_glidemq.results import MAX_RESULT_BYTES
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup
from airflow_provider_glidemq.task_groups.tasks import GlideMQLaunchOperator
from airflow_provider_glidemq.triggers import node
from airflow_provider_glidemq.triggers.node import TRIGGER, GlideMQNodeTrigger
from airflow_provider_glidemq.triggers.nodes import TaskNodes
from airflow_provider_glidemq.triggers.shared import tasks
from airflow_provider_glidemq.triggers.shared.client import SharedClient
from airflow_provider_glidemq.version_compat import TaskDeferred, mask_secret

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions, Worker
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


def test_its_form_is_pinned() -> None:
    path, kwargs = GlideMQNodeTrigger(node="a", launch="etl.launch").serialize()
    assert path == TRIGGER == "airflow_provider_glidemq.triggers.node.GlideMQNodeTrigger"
    assert GlideMQNodeTrigger(**kwargs).serialize() == (path, kwargs)
    assert kwargs == {
        "node": "a",
        "launch": "etl.launch",
        "glidemq_conn_id": "glidemq_default",
        "is_expanded": False,
        "nodes_before": {},
        "group": None,
        "ends_task": False,
        "resumes_failed": False,
        "pushes": "value",
        "is_needed": False,
        "is_mapped_over": False,
        "cancel_on_kill": True,
        "poll_interval": 10.0,
        "logging_interval": 10.0,
        "lease": 86_400.0,
        "show_logs": False,
        "not_before": None,
        "place": None,
        "attempt": None,
    }


@pytest.mark.parametrize("is_masked", [None, False, True])
async def test_what_airflow_masks_is_not_shown_by_a_triggerer(
    submit: Submit, capsys: pytest.CaptureFixture[str], *, is_masked: bool | None
) -> None:
    submit(job("a", "fail"), is_masked=is_masked)
    event = await fired(trigger(ends_task=False))
    out = capsys.readouterr().out
    assert event["status"] == "failed"
    assert ("no such month" in out, "glidemq flow node f a" in out) == (not is_masked, bool(is_masked))
    assert ("no such month" in event["reason"]) == (not is_masked)


@pytest.mark.parametrize("value", [{"a": 1}, "text", 7, [1, 2], None])
async def test_a_result_is_an_xcom_as_it_is(submit: Submit, airflow: AirflowSays, value: Any) -> None:
    submit(job("a", data=value))
    assert await fired(trigger()) == "success"
    found = {key: one for (task, key), one in airflow.xcoms.items() if task == "etl.a"}
    assert found == ({} if value is None else {"return_value": value})


async def test_multiple_outputs_and_lists_that_mapped_tasks_expand_over(
    submit: Submit, airflow: AirflowSays
) -> None:
    submit(job("a", data={"x": 1, "y": 2}), job("b[0]", data=5), job("b[1]", data=6))
    assert await fired(trigger(pushes="keys")) == "success"
    assert (airflow.xcoms["etl.a", "x"], airflow.xcoms["etl.a", "y"]) == (1, 2)
    assert await fired(trigger("b", is_expanded=True, is_needed=True)) == "success"
    assert airflow.xcoms["etl.b", "return_value"] == [5, 6]
    assert airflow.lengths["etl.b"] is None, "Airflow would refuse a length of more than 1,024"
    assert await fired(trigger("b", is_expanded=True, is_needed=True, is_mapped_over=True)) == "success"
    assert airflow.lengths["etl.b"] == 2


@pytest.mark.parametrize(
    ("value", "why"),
    [(list(range(1025)), "1,025 items, and a task is expanded over them: [core] max_map_length allows 1,024"),
     ("text", "a returned str, and a task is expanded over it")],
)  # fmt: skip
async def test_a_result_that_airflow_cannot_map_fails_the_task_at_once(
    submit: Submit, airflow: AirflowSays, capsys: pytest.CaptureFixture[str], value: Any, why: str
) -> None:
    submit(job("a", data=value))
    assert await fired(trigger(is_needed=True)) == "success"
    assert await fired(trigger(is_needed=True, is_mapped_over=True)) == "failed"
    assert why in capsys.readouterr().out


async def test_what_airflow_refuses_is_not_asked_again(submit: Submit, airflow: AirflowSays) -> None:
    submit(job("a"))
    airflow.refusals, airflow.refuses = 10, AirflowRuntimeError(ErrorResponse(detail={"status_code": 400}))
    with pytest.raises(AirflowRuntimeError):
        await fired(trigger())
    assert airflow.refusals == 9


@pytest.mark.parametrize(("is_needed", "state"), [(True, "failed"), (False, "success")])
async def test_a_large_result_fails_only_a_task_that_others_wait_for(
    submit: Submit, airflow: AirflowSays, is_needed: object, state: str
) -> None:
    submit(job("a", data="x" * MAX_RESULT_BYTES))
    assert await fired(trigger(is_needed=is_needed)) == state
    assert ("etl.a", "return_value") not in airflow.xcoms


async def test_failures_and_skips_end_the_task_or_are_told(submit: Submit, airflow: AirflowSays) -> None:
    submit(job("a", "fail"), job("b", "skip", 5))
    assert await fired(trigger()) == "failed"
    assert await fired(trigger("b")) == "skipped"
    told = await fired(trigger(ends_task=False))
    assert told == {
        "status": "failed", "reason": "no such month (attempts: 1)", "flow_id": "f", "nodes": [],
    }  # fmt: skip
    assert (await fired(trigger("b", ends_task=False)))["reason"] == "nothing to do for 5"


async def test_a_task_over_an_empty_list_is_skipped(submit: Submit, airflow: AirflowSays) -> None:
    submit(job("a"), skipped=["b"])
    assert await fired(trigger("b")) == "skipped"


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "skipped", "success"])
async def test_without_the_word_of_launch_nothing_is_shown(
    submit: Submit, airflow: AirflowSays, state: str
) -> None:
    submit(job("a"))
    airflow.xcoms.clear()
    airflow.states["etl.launch"] = state
    event = await fired(trigger(ends_task=False))
    assert (event["status"], event["reason"]) == (
        "failed", f"etl.launch is {state} and has submitted no flow: clear it",
    )  # fmt: skip


async def test_the_end_of_an_older_generation_is_never_shown(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    """Launch is cleared with this task: what it has said stands until it runs again."""
    submit(job("a", data="old"))
    assert await fired(trigger()) == "success"
    airflow.states["etl.launch"] = None
    waiting = asyncio.create_task(fired(trigger(attempt=2)))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    del airflow.xcoms["etl.launch", "glidemq_seen a"]
    await asyncio.to_thread(lambda: submit(job("a", data="new"), on_existing="restart", idempotency_key="2"))
    airflow.states["etl.launch"] = "success"
    assert await waiting == "success"
    assert airflow.xcoms["etl.a", "return_value"] == "new"


async def test_one_that_waits_follows_a_new_generation(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    submit(job("a", "wait"))
    waiting = asyncio.create_task(fired(trigger()))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(lambda: submit(job("a", data="new"), on_existing="restart", idempotency_key="2"))
    assert await waiting == "success"
    assert airflow.xcoms["etl.a", "return_value"] == "new"


async def test_a_task_cleared_with_one_before_it_waits_for_that(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    submit(job("a", "count"), job("b", "count", None, "a"))
    before = {"etl.a": "a"}
    for name in ("a", "b"):
        assert await fired(trigger(name, nodes_before=before if name == "b" else {})) == "success"
    airflow.states |= {"etl.a": "deferred"}
    later = asyncio.create_task(fired(trigger("b", attempt=2, nodes_before=before)))
    await asyncio.sleep(0.3)
    assert not later.done()
    assert await fired(trigger("a", attempt=2)) == "success"
    airflow.states |= {"etl.a": "success"}
    assert await later == "success"
    assert valkey.ran == ["a", "b", "a", "b"], "each has run again once"
    assert airflow.xcoms["etl.b", "return_value"] == 4


async def test_a_trigger_that_starts_again_starts_nothing_over(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    submit(job("a", "count"))
    assert await fired(trigger()) == "success"
    for _ in range(3):
        assert await fired(trigger(attempt=2)) == "success"
    assert valkey.ran == ["a", "a"]


class Killed(BaseException):
    """The triggerer."""


@pytest.mark.parametrize("calls", [0, 1, 99])
async def test_a_clear_of_an_expanded_task_survives_a_kill_of_the_triggerer(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, *, calls: int
) -> None:
    failing = {3, 7}
    items = [job(f"a[{number}]", "fail" if number in failing else "count") for number in range(16)]
    flow = submit(*items, job("b", "count", None, *(item.name for item in items)))
    assert await fired(trigger(is_expanded=True)) == "failed"
    await asyncio.to_thread(flow.wait)
    assert len(valkey.ran) == 14
    valkey.gate.set()
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

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(TaskNodes, "start_over", begun)
        patch.setattr(SharedClient, "ask", dying)
        await fired(trigger(attempt=2, is_expanded=True))
    assert await fired(trigger(attempt=2, is_expanded=True)) == "success"
    assert (await asyncio.to_thread(flow.wait)).status.state == "completed"
    assert len(valkey.ran) == 15, "the others keep their results, and what follows has run"
    assert {number for number in range(16) if flow.node(f"a[{number}]").reruns} == failing
    assert await fired(trigger(attempt=3, is_expanded=True)) == "success"
    await asyncio.to_thread(flow.wait)
    assert len(valkey.ran) == 15 + 14 + 1, "it showed success, so all of it runs again"


async def test_lines_of_nodes_are_shown_while_they_run_and_why_they_wait(  # noqa: PLR0917  fixtures
    submit: Submit,
    airflow: AirflowSays,
    valkey: Valkey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(node_reports, "FIRST", 0.2)
    caplog.set_level("INFO")
    late = FlowNode("a[1]", queue=QUEUE, job="count", options=JobOptions(delay=timedelta(seconds=3)))
    submit(job("a[0]", "verbose"), late)
    assert await fired(trigger(is_expanded=True, show_logs=True, logging_interval=0.1)) == "failed"
    told = capsys.readouterr().out + caplog.text
    assert "[a[0]] line 0" in told
    assert told.index("[a[0]] line 0") < told.index("a[0] had logged")
    assert "a[1] waits until" in told


async def test_a_worker_ends_a_cleared_task_and_sets_the_time_of_its_end(
    submit: Submit, airflow: AirflowSays
) -> None:
    submit(job("a", data="it"))
    for attempt, in_worker in ((1, False), (2, True)):
        (event,) = [event async for event in trigger(attempt=attempt).run()]
        assert isinstance(event.payload, dict) is in_worker
        assert airflow.xcoms["etl.a", "return_value"] == "it"
    again = await asyncio.to_thread(
        lambda: submit(job("a", data="it"), on_existing="restart", idempotency_key="2")
    )
    assert again.generation == 1
    (event,) = [event async for event in trigger(attempt=1).run()]
    assert isinstance(event.payload, dict), "it may have ended before as upstream failed, which is no try"
    placed = trigger(attempt=2, place=["d", "etl.a", "r1", -1])  # a worker has begun it
    (event,) = [event async for event in placed.run()]
    assert not isinstance(event.payload, dict)


@pytest.mark.parametrize(
    ("is_running", "calls"), [(True, 0), (True, 1), (True, 2), (True, 3), (False, 0), (False, 1)]
)
async def test_a_clear_survives_a_kill_of_the_triggerer_between_its_calls(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, *, is_running: bool, calls: int
) -> None:
    flow = submit(job("a", "wait"), job("b", "count", None, "a"))
    if is_running:
        async with asyncio.timeout(20):
            first = asyncio.create_task(fired(trigger()))
            while ("etl.launch", "glidemq_seen a") not in airflow.xcoms or flow.node("a").state != "active":  # noqa: ASYNC110  there is no event
                await asyncio.sleep(0.02)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
    else:
        valkey.gate.set()
        assert await fired(trigger()) == "success"
        await asyncio.to_thread(flow.wait)
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskNodes, "start_over", begun)
        patch.setattr(SharedClient, "ask", dying)
        with pytest.raises(Killed):
            await fired(trigger(attempt=2))
    later = asyncio.create_task(fired(trigger(attempt=2)))
    async with asyncio.timeout(20):
        while not flow.node("a").reruns:  # noqa: ASYNC110  there is no event
            await asyncio.sleep(0.02)
    valkey.gate.set()
    assert await later == "success"
    assert (await asyncio.to_thread(flow.wait)).status.state == "completed"
    assert valkey.ran == (["b"] if is_running else ["b", "b"])
    assert flow.node("a").reruns > 0


def test_a_monitor_that_defers_counts_clears_and_not_retries(context: Callable[..., Any]) -> None:
    with DAG("d", schedule=None) as dag, GlideMQTaskGroup("etl", queue_name="etl"):
        GlideMQOperator(task_id="a", queue_name="etl", job="j", outlets=[Asset("x")], retries=4)
    monitor: Any = dag.get_task("etl.a")
    assert (monitor.start_from_trigger, monitor.retries) == (False, 1)
    attempts = []
    for number, most in ((1, 1), (2, 1), (3, 3)):  # it is retried, and then cleared
        with pytest.raises(TaskDeferred) as deferred:
            monitor.execute(context(task_id="etl.a", try_number=number, max_tries=most))
        _, kwargs = deferred.value.trigger.serialize()
        assert (kwargs["place"], kwargs["ends_task"]) == (["d", "etl.a", "r1", -1], False)
        attempts.append(kwargs["attempt"])
    assert attempts == [1, 1, 3]


async def test_airflow_may_be_busy_for_a_moment(submit: Submit, airflow: AirflowSays) -> None:
    submit(job("a", data=1))
    airflow.refusals = 2
    assert await fired(trigger()) == "success"
    airflow.refusals = 10
    with pytest.raises(RuntimeError, match="database is locked"):
        await fired(trigger())


@pytest.mark.parametrize(
    ("state", "ends"),
    [("success", "completed"), ("failed", "failed"), ("deferred", "active"), (None, "active")],
)
async def test_a_mark_ends_the_node_a_move_and_a_clear_do_not(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, state: str | None, ends: str
) -> None:
    flow = submit(job("a", "wait"), job("b", "echo", 1, "a"))
    while flow.node("a").state != "active":  # noqa: ASYNC110  there is no event
        await asyncio.sleep(0.02)
    airflow.states |= {"etl.a": state, "etl.b": None}
    await trigger(group="etl").on_kill()
    with valkey.producer() as producer:
        assert producer.get("f").node("a").state == ends


@pytest.mark.parametrize("kind", ["fail", "echo", "skip"])
async def test_a_failure_that_somebody_is_told_of_ends_in_a_worker(submit: Submit, kind: str) -> None:
    """With the exception, which callbacks of the scheduler have not."""
    submit(job("a", kind, 1))
    (event,) = [event async for event in trigger(resumes_failed=True).run()]
    if kind == "fail":
        assert type(event) is TriggerEvent
        assert event.payload == {
            "status": "failed", "reason": "no such month (attempts: 1)", "flow_id": "f", "nodes": [],
        }  # fmt: skip
    else:
        assert isinstance(event, BaseTaskEndEvent)
        assert event.task_instance_state == {"echo": "success", "skip": "skipped"}[kind]


async def test_a_mark_ends_nothing_in_a_flow_that_a_person_has_set_running_again(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    submit(job("a", "wait"), owner=None)
    airflow.states |= {"etl.a": "failed"}
    watching = asyncio.create_task(fired(trigger(group="etl", lease=60.0)))
    await trigger(group="etl").on_kill()
    with valkey.producer() as producer:
        assert (producer.get("f").status().state, producer.get("f").owners()) == ("running", [])
    valkey.gate.set()
    assert await watching == "success"


async def test_when_all_of_the_group_has_ended_the_flow_is_cancelled(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    submit(job("a", "wait"), job("other", "wait"))
    airflow.states |= {"etl.a": "failed", "etl.other": "skipped"}
    await trigger(group="etl").on_kill()
    with valkey.producer() as producer:
        status = producer.get("f").wait(timeout=timedelta(seconds=20)).status
    assert (status.state, status.reason) == (
        "cancelled", "the Airflow task etl.a was ended by a user (state: failed)",
    )  # fmt: skip


@pytest.mark.parametrize("state", ["success", "failed", "skipped"])
async def test_a_task_that_was_marked_while_it_waited_can_be_cleared(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, state: str
) -> None:
    """It showed what the mark had made of its node."""
    flow = submit(job("a", "wait"), job("b", "echo", 1, "a"))
    watching = asyncio.create_task(fired(trigger()))
    while flow.node("a").state != "active" or ("etl.launch", "glidemq_seen a") not in airflow.xcoms:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    watching.cancel()
    airflow.states |= {"etl.a": state, "etl.b": None}
    await trigger(group="etl").on_kill()
    assert flow.node("a").state != "active"
    valkey.gate.set()
    assert await fired(trigger(attempt=2)) == "success"
    assert airflow.xcoms["etl.a", "return_value"] == "done"


async def test_a_task_that_ended_unwatched_runs_again_when_it_is_cleared(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    """The reconciler has ended its node, and no trigger has ever begun."""
    flow = submit(job("a", "wait"), job("b", "echo", 1, "a"))
    flow.cancel_node("a", "the Airflow task group etl has ended while no trigger watched it")
    assert await fired(trigger()) == "failed", "the first try shows it"
    del airflow.xcoms["etl.launch", "glidemq_seen a"]
    valkey.gate.set()
    assert await fired(trigger(attempt=2)) == "success"


async def test_a_failed_task_that_was_marked_successful_can_be_cleared(
    submit: Submit, airflow: AirflowSays, valkey: Valkey
) -> None:
    submit(job("a", "fail"), job("b", "count", None, "a"))
    assert await fired(trigger()) == "failed"
    airflow.states |= {"etl.a": "success"}
    assert await fired(trigger("b", nodes_before={"etl.a": "a"})) == "success"
    valkey.gate.set()
    assert await fired(trigger(attempt=2)) == "success"
    assert airflow.xcoms["etl.a", "return_value"] == "repaired"


async def test_a_flow_whose_dag_run_has_timed_out_is_cancelled(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow skips all its tasks; a flow whose nodes are all skipped has completed."""
    submit(job("a", "wait"), job("b", "echo", 1, "a"))
    airflow.states |= {"etl.a": "skipped", "etl.b": "skipped"}
    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(lambda *_: "failed"))
    await trigger(group="etl").on_kill()
    with valkey.producer() as producer:
        status = producer.get("f").wait(timeout=timedelta(seconds=20)).status
    assert status.state == "cancelled"
    assert "its DAG run has failed (dagrun_timeout, or fail_fast)" in status.reason


async def test_a_server_that_is_away_is_waited_for(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_glidemq.triggers.shared.client import SharedClient  # noqa: PLC0415

    from glidemq_orchestrate.errors import ConnectionFailed  # noqa: PLC0415

    submit(job("a", data=1))
    find, failures = SharedClient.find, threading.Semaphore(2)

    async def sometimes(self: SharedClient, *given: Any) -> Any:
        if failures.acquire(blocking=False):
            raise ConnectionFailed("away")
        return await find(self, *given)

    monkeypatch.setattr(SharedClient, "find", sometimes)
    assert await fired(trigger()) == "success"


@pytest.mark.parametrize("is_masked", [False, True])
def test_launch_tells_whether_payloads_hold_what_airflow_masks(
    valkey: Valkey, worker: Worker, context: Any, *, is_masked: bool
) -> None:
    """A triggerer does not know what to mask; ``test_node_trigger`` shows what it does then."""
    mask_secret("v4rs3cretXYZ")
    data = {"url": ["http://u:v4rs3cretXYZ@h" if is_masked else "http://h"]}
    tasks = [{"name": "a", "queue": QUEUE, "job": "echo", "data": data}]
    made = context()
    GlideMQLaunchOperator(task_id="g.launch", group="g", tasks=tasks).execute(made)
    pushed: Any = made["ti"].pushed
    assert pushed[XCOM_LAUNCHED]["is_masked"] is is_masked
