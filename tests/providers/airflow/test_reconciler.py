"""Flows of tasks that have ended while no trigger watched are cancelled; no others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow_provider_glidemq.ownership import owner_of
from airflow_provider_glidemq.task_attempt import AirflowAttempt, TaskKey, flow_id_for
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.triggers.shared import reconciler
from airflow_provider_glidemq.triggers.shared.reconciler import Reconciler
from airflow_provider_glidemq.triggers.shared.tasks import ask, states_of
from asgiref.sync import async_to_sync

from glidemq_orchestrate import AsyncFlow, AsyncFlowProducer, FlowNode, FlowSpec
from tests.providers.airflow.builders import QUEUE, FakeRun, FakeTask, Valkey

FAILED = "its Airflow task has ended (state: failed) while no trigger watched it"


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int, str], str | None]:
    """What Airflow says: the state by task, map index and run. Its API is asked by tests/system."""
    states: dict[tuple[str, int, str], str | None] = {}

    def answer(*, task_ids: list[str], run_ids: list[str], map_index: int, **_: Any) -> dict[str, Any]:
        (task,) = task_ids
        return {
            run: {task: states[task, map_index, run]} for run in run_ids if (task, map_index, run) in states
        }

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(answer))
    return states


async def begun(
    producer: AsyncFlowProducer,
    run: str,
    task: str = "t",
    index: int = -1,
    *,
    is_owned: bool = True,
    **more: Any,
) -> AsyncFlow:
    """The running flow of a task, which owns it."""
    ti: Any = FakeTask(task_id=task, run_id=run, map_index=None if index < 0 else index)
    labels = {
        "orchestrator": "airflow",
        "dag_id": "d",
        "task_id": task,
        "run_id": run,
        "map_index": str(index),
    }
    labels |= {"try": "1"} | AirflowAttempt.of(ti, FakeRun(), 0).label(is_owned=is_owned)  # type: ignore[arg-type]
    spec = FlowSpec("n", [FlowNode("n", queue=QUEUE, job="nobody", data=more.pop("data", 1))], labels=labels)
    more = {"owner": owner_of(TaskKey.of(ti).owner, 3600.0) if is_owned else None} | more
    return await producer.submit(spec, flow_id=flow_id_for("d", task, run, index), **more)


async def states(*flows: AsyncFlow) -> list[str]:
    return [(await flow.status()).state.value for flow in flows]


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "upstream_failed", "removed"])
async def test_the_flow_of_a_task_that_has_ended_is_cancelled(
    producer: AsyncFlowProducer, airflow: dict[Any, Any], state: str
) -> None:
    flow = await begun(producer, "r1")
    airflow["t", -1, "r1"] = state
    await Reconciler(producer, set).reconcile()
    status = await flow.status()
    assert (status.state, status.reason) == ("cancelled", FAILED.replace("failed", state))


@pytest.mark.parametrize(
    "state", ["running", "deferred", "queued", "scheduled", "restarting", "up_for_retry", None]
)
async def test_that_of_one_that_goes_on_runs_on(
    producer: AsyncFlowProducer, airflow: dict[Any, Any], state: str | None
) -> None:
    flow = await begun(producer, "r1")
    airflow["t", -1, "r1"] = state
    await Reconciler(producer, set).reconcile()
    assert await states(flow) == ["running"]


async def test_each_run_and_map_index_counts_for_itself(
    producer: AsyncFlowProducer, airflow: dict[Any, Any]
) -> None:
    flows = [await begun(producer, f"r{number}", index=number % 2) for number in range(120)]
    airflow |= {("t", number % 2, f"r{number}"): "failed" for number in range(0, 120, 3)}
    airflow |= {
        ("t", number % 2, f"r{number}"): "running" for number in range(1, 120, 3)
    }  # the rest: unknown
    await Reconciler(producer, set).reconcile()
    assert await states(*flows) == ["cancelled" if number % 3 == 0 else "running" for number in range(120)]


async def test_what_a_trigger_watches_is_left_to_it(
    producer: AsyncFlowProducer, airflow: dict[Any, Any]
) -> None:
    flow = await begun(producer, "r1")
    airflow["t", -1, "r1"] = "failed"
    await Reconciler(producer, lambda: {flow.id}).reconcile()
    assert await states(flow) == ["running"]


async def test_what_does_not_end_with_its_task_is_left_alone(
    producer: AsyncFlowProducer, airflow: dict[Any, Any]
) -> None:
    airflow["t", -1, "r1"] = airflow["t", -1, "r2"] = "failed"
    not_cancelled = await begun(producer, "r1", is_owned=False)
    spec = FlowSpec(
        "n", [FlowNode("n", queue=QUEUE, job="nobody")], labels={"orchestrator": "airflow", "run_id": "r2"}
    )
    of_somebody = await producer.submit(spec, flow_id="f")
    await Reconciler(producer, set).reconcile()
    assert await states(not_cancelled, of_somebody) == ["running", "running"]


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("how", ["retry_failed", "restart", "rerun", "complete_node"])
async def test_what_a_person_sets_running_again_is_theirs(
    producer: AsyncFlowProducer, airflow: dict[Any, Any], how: str, state: str
) -> None:
    """Its task has failed, or was marked successful first."""
    flow = await begun(producer, "r1")
    await flow.extend([FlowNode("m", queue=QUEUE, job="nobody", after=["n"])])
    airflow["t", -1, "r1"] = state
    await flow.cancel_node("n", "no such month")
    async with asyncio.timeout(20):
        await flow.wait()
    by_hand = await producer.get(flow.id)
    await getattr(by_hand, how)(*() if how in ("retry_failed", "restart") else ("n",))
    await Reconciler(producer, set).reconcile()
    assert await states(await producer.get(flow.id)) == ["running"]


async def test_a_generation_that_begins_meanwhile_is_not_cancelled(
    producer: AsyncFlowProducer, airflow: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(producer, "r1")
    airflow["t", -1, "r1"] = "failed"

    async def slow(*args: Any) -> Any:
        found = await states_of(*args)
        await begun(producer, "r1", data=2, on_existing="restart")  # the task was cleared
        return found

    monkeypatch.setattr(reconciler, "states_of", slow)
    await Reconciler(producer, set).reconcile()
    flow = await producer.get(flow_id_for("d", "t", "r1"))
    assert (flow.generation, await states(flow)) == (1, ["running"])


async def test_many_flows_that_others_watch_cost_a_bounded_look(
    producer: AsyncFlowProducer, airflow: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "MAX", 5)
    monkeypatch.setattr(reconciler, "PAGE", 4)
    flows = [await begun(producer, f"r{number}") for number in range(10)]
    airflow |= {("t", -1, f"r{number}"): "failed" for number in range(10)}
    looks = Reconciler(producer, set)
    await looks.reconcile()
    assert sorted(await states(*flows)) == ["cancelled"] * 5 + ["running"] * 5
    await looks.reconcile()
    assert await states(*flows) == ["cancelled"] * 10


async def test_while_a_trigger_runs_the_flows_of_others_are_looked_after(
    valkey: Valkey, producer: AsyncFlowProducer, airflow: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "FIRST_SECONDS", 0.1)
    lost, watched = await begun(producer, "r1"), await begun(producer, "r2")
    airflow["t", -1, "r1"] = airflow["t", -1, "r2"] = "failed"

    async def watch() -> None:
        async for _ in GlideMQFlowTrigger(flow_id=watched.id).run():
            pass

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(20):
        assert (await lost.wait()).status.reason == FAILED
    assert await states(watched) == ["running"]
    watching.cancel()


async def test_one_about_which_airflow_cannot_be_asked_keeps_no_other(
    producer: AsyncFlowProducer, airflow: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a task group that the latest version of its DAG does not have: that is an error."""
    refused = await begun(producer, "r1", "renamed")
    flows = [await begun(producer, "r1", f"t{number}") for number in range(8)]
    airflow |= {(f"t{number}", -1, "r1"): "failed" for number in range(8)}

    async def answer(task: Any, *args: Any) -> Any:
        if task.task_id == "renamed":
            raise RuntimeError("Task group etl not found")
        return await states_of(task, *args)

    monkeypatch.setattr(reconciler, "states_of", answer)
    await Reconciler(producer, set).reconcile()
    assert await states(refused, *flows) == ["running", *["cancelled"] * 8]


async def test_without_an_answer_of_airflow_nothing_is_cancelled(
    producer: AsyncFlowProducer, airflow: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, ended, asked = await begun(producer, "r1"), asyncio.Event(), list[float]()
    monkeypatch.setattr(reconciler, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(reconciler, "EACH_SECONDS", 0.01)

    async def broken(*_: Any) -> Any:
        asked.append(time.monotonic())
        if len(asked) == 3:
            ended.set()
        raise RuntimeError("the API server is away")

    monkeypatch.setattr(reconciler, "states_of", broken)
    async with asyncio.timeout(20):
        await Reconciler(producer, set).run(ended)
    assert (len(asked), await states(flow)) == (3, ["running"])


async def test_a_call_of_airflow_goes_on_when_its_trigger_is_stopped() -> None:
    """Airflow 3.1 would take an answer that nobody has read for that to the next call."""
    began, answered = asyncio.Event(), asyncio.Event()

    async def answer() -> None:
        began.set()
        await asyncio.sleep(0.2)
        answered.set()

    asking = asyncio.create_task(ask(async_to_sync(answer)))
    await began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(5):
        await answered.wait()
