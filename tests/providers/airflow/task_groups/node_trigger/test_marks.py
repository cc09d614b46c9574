"""Tasks that a person marks, and what a later clear makes of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from tests.providers.airflow.builders import Valkey
from tests.providers.airflow.task_groups.node_trigger.conftest import (
    AirflowSays,
    Submit,
    fired,
    job,
    trigger,
)


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
