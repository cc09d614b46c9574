"""What the trigger of a task shows of its nodes: results, failures, lines."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.triggers.base import BaseTaskEndEvent, TriggerEvent
from airflow_provider_glidemq import node_reports
from airflow_provider_glidemq.results import MAX_RESULT_BYTES
from airflow_provider_glidemq.triggers.shared.client import SharedClient

from glidemq_orchestrate import FlowNode, JobOptions
from glidemq_orchestrate.errors import ConnectionFailed
from tests.providers.airflow.builders import QUEUE, Valkey
from tests.providers.airflow.task_groups.node_trigger.conftest import (
    AirflowSays,
    Submit,
    fired,
    job,
    trigger,
)


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
    assert "a[1] waits: until" in told


async def test_airflow_may_be_busy_for_a_moment(submit: Submit, airflow: AirflowSays) -> None:
    submit(job("a", data=1))
    airflow.refusals = 2
    assert await fired(trigger()) == "success"
    airflow.refusals = 10
    with pytest.raises(RuntimeError, match="database is locked"):
        await fired(trigger())


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


async def test_a_server_that_is_away_is_waited_for(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(job("a", data=1))
    find, failures = SharedClient.find, threading.Semaphore(2)

    async def sometimes(self: SharedClient, *given: Any) -> Any:
        if failures.acquire(blocking=False):
            raise ConnectionFailed("away")
        return await find(self, *given)

    monkeypatch.setattr(SharedClient, "find", sometimes)
    assert await fired(trigger()) == "success"
