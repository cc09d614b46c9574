"""Flows of groups that nobody watches: only nodes of tasks that have failed or were skipped are ended."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow_provider_glidemq.group_flow import GROUP_LABEL
from airflow_provider_glidemq.ownership import owner_of
from airflow_provider_glidemq.task_attempt import AirflowAttempt, TaskKey
from airflow_provider_glidemq.triggers.shared.reconciler import Reconciler

from glidemq_orchestrate import AsyncFlow, AsyncFlowProducer, FlowNode, FlowSpec
from tests.providers.airflow.builders import QUEUE, FakeRun, FakeTask

STARTED = {"etl.launch": "success", "etl.a": "deferred", "etl.b": None}


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What Airflow says of the tasks of the group. Its API is asked by tests/system."""
    states: dict[str, str | None] = {}

    def answer(*, run_ids: list[str], task_group_id: str, **_: Any) -> dict[str, Any]:
        assert task_group_id == "etl"
        return {run: dict(states) for run in run_ids}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(answer))
    return states


@pytest.fixture
async def flow(producer: AsyncFlowProducer) -> AsyncFlow:
    """The flow of a group: ``a``, and the expanded ``b`` after it. Nobody serves its queue."""
    ti: Any = FakeTask(task_id="etl.launch", run_id="r1")
    labels = {"orchestrator": "airflow", "dag_id": "d", "task_id": "etl.launch", "run_id": "r1"}
    labels |= {GROUP_LABEL: "etl", "try": "1"}
    run: Any = FakeRun()
    labels |= AirflowAttempt.of(ti, run, 0).label(is_owned=True, group="etl")
    nodes = [
        FlowNode("a", queue=QUEUE, job="j"),
        FlowNode("b[0]", queue=QUEUE, job="j", rule="all_done", after=["a"]),
    ]
    spec = FlowSpec("f", nodes, labels=labels)
    owner = owner_of(TaskKey.of(ti).owner, 3600.0)
    return await producer.submit(spec, flow_id=TaskKey.of(ti).flow_id, owner=owner)


async def states(flow: AsyncFlow) -> list[str]:
    return [node.state.value for node in await flow.nodes()]


@pytest.mark.parametrize(
    "states_of",
    [
        STARTED,
        {**STARTED, "etl.a": "failed"},
        {**STARTED, "etl.a": None},
        {"etl.launch": "success", "etl.a": "success", "etl.b": "success"},
        {},
    ],
    ids=[
        "one is watched",
        "one has not ended",
        "none is watched yet",
        "all succeeded",
        "Airflow does not know",
    ],
)
async def test_a_group_that_goes_on_or_has_succeeded_keeps_its_flow(
    producer: AsyncFlowProducer, airflow: dict[str, Any], flow: AsyncFlow, states_of: dict[str, Any]
) -> None:
    airflow |= states_of
    await Reconciler(producer, set).reconcile()
    assert await states(flow) == ["waiting", "waiting-children"]


@pytest.mark.parametrize("state", ["failed", "skipped", "upstream_failed"])
async def test_nodes_of_tasks_that_have_failed_end_when_the_group_has_ended(
    producer: AsyncFlowProducer, airflow: dict[str, Any], flow: AsyncFlow, state: str
) -> None:
    airflow |= {"etl.launch": "success", "etl.a": state, "etl.b": state}
    await Reconciler(producer, set).reconcile()
    assert await states(flow) == ["failed", "failed"]
    reason = (await flow.node("b[0]")).reason
    assert reason == "cancelled: the Airflow task group etl has ended while no trigger watched it"
    assert (await flow.status()).state == "failed"


async def test_what_a_person_sets_running_again_is_theirs(
    producer: AsyncFlowProducer, airflow: dict[str, Any], flow: AsyncFlow
) -> None:
    airflow |= {"etl.launch": "success", "etl.a": "failed", "etl.b": "failed"}
    await flow.cancel("wrong data")
    await (await producer.get(flow.id)).retry_failed()
    await Reconciler(producer, set).reconcile()
    assert await states(flow) == ["waiting", "waiting-children"]


async def test_one_that_is_watched_here_is_left_alone(
    producer: AsyncFlowProducer, airflow: dict[str, Any], flow: AsyncFlow
) -> None:
    airflow |= {"etl.launch": "success", "etl.a": "failed", "etl.b": "failed"}
    await Reconciler(producer, lambda: {flow.id}).reconcile()
    assert await states(flow) == ["waiting", "waiting-children"]
