"""The trigger of an expanded task whose items are the elements of an array."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from airflow_provider_glidemq.node_reports import holds_masked
from airflow_provider_glidemq.task_groups.tasks import GlideMQNodeMonitor

from glidemq_orchestrate import ArrayNode, FlowSpec, Worker
from tests.providers.airflow.builders import QUEUE, Contexts, Valkey
from tests.providers.airflow.task_groups.node_trigger.conftest import (
    AirflowSays,
    Submit,
    fired,
    job,
    trigger,
)

if TYPE_CHECKING:
    from glidemq_orchestrate import Context
    from tests.conftest import Eventually


def array(name: str, over: Any, of: str = "echo") -> ArrayNode:
    return ArrayNode(f"{name}[*]", queue=QUEUE, job=of, over=over)


def handle(worker: Worker, valkey: Valkey) -> None:
    """``some`` notes each element, fails 3 and 7 until the gate is set, and skips -1."""

    @worker.handler("some")
    def some(ctx: Context) -> int:
        valkey.ran.append(str(ctx.data))
        if ctx.data in (3, 7) and not valkey.gate.is_set():
            raise ValueError("no such month")
        return int(ctx.data)


async def test_the_results_of_the_elements_are_those_of_the_task(
    submit: Submit, airflow: AirflowSays, context: Contexts
) -> None:
    submit(array("a", [5, None, "x"]))
    assert await fired(trigger(is_expanded=True, is_needed=True, is_mapped_over=True)) == "success"
    assert airflow.xcoms["etl.a", "return_value"] == [5, None, "x"]
    assert airflow.lengths["etl.a"] == 3
    event = await fired(trigger(is_expanded=True, ends_task=False))
    assert (event["status"], event["nodes"]) == ("completed", ["a[*]"])
    monitor = GlideMQNodeMonitor(
        task_id="a", node="a", is_expanded=True, launch="etl.launch", nodes_before={}, group="etl",
        group_tasks=[], watch={"glidemq_conn_id": "glidemq_default"},
    )  # fmt: skip
    assert await asyncio.to_thread(monitor.execute_complete, context(), event) == [5, None, "x"]


async def test_a_failure_names_its_elements_and_a_clear_runs_only_those(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    handle(worker, valkey)
    flow = submit(array("a", list(range(16)), "some"), job("b", "count", None, "a[*]"))
    assert await fired(trigger(is_expanded=True)) == "failed"
    out = capsys.readouterr().out
    for text in (
        "14/16, failed: 2 elements",
        "a[3] failed: ValueError: no such month (attempts: 1)",
        "a[7] failed",
    ):
        assert text in out
    event = await fired(trigger(is_expanded=True, ends_task=False))
    assert event["reason"].startswith("2 of 16 elements failed; element ")
    await asyncio.to_thread(flow.wait)
    valkey.ran.clear()
    valkey.gate.set()
    for _ in range(2):
        assert await fired(trigger(attempt=2, is_expanded=True)) == "success"
    await asyncio.to_thread(flow.wait)
    assert sorted(valkey.ran) == ["3", "7", "b"]
    assert airflow.xcoms["etl.a", "return_value"] == list(range(16))
    assert await fired(trigger(attempt=3, is_expanded=True)) == "success"
    await asyncio.to_thread(flow.wait)
    assert len(valkey.ran) == 3 + 16 + 1, "it showed success, so all of it runs again"


async def test_a_clear_of_a_running_task_runs_all_elements_again(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, worker: Worker, eventually: Eventually
) -> None:
    @worker.handler("some")
    def some(ctx: Context) -> int:
        valkey.ran.append(str(ctx.data))
        while ctx.data == 2 and not valkey.gate.is_set() and not ctx.cancelled.is_set():
            valkey.gate.wait(0.02)
        return int(ctx.data)

    flow = submit(array("a", [0, 1, 2], "some"))
    first = asyncio.create_task(fired(trigger(is_expanded=True)))
    elements, seen = flow.array("a[*]"), ("etl.launch", "glidemq_seen a")
    await asyncio.to_thread(
        eventually, lambda: elements.counts().completed == 2 and seen in airflow.xcoms, 20
    )
    await asyncio.to_thread(eventually, lambda: len(valkey.ran) == 3, 20)
    first.cancel()
    cleared = asyncio.create_task(fired(trigger(attempt=2, is_expanded=True)))
    await asyncio.to_thread(eventually, lambda: len(valkey.ran) == 6, 20)
    valkey.gate.set()
    assert await cleared == "success"
    assert sorted(valkey.ran) == ["0", "0", "1", "1", "2", "2"]
    assert airflow.xcoms["etl.a", "return_value"] == [0, 1, 2]


async def test_a_mark_ends_the_elements_or_completes_them(
    submit: Submit, airflow: AirflowSays, valkey: Valkey, worker: Worker
) -> None:
    """A task that was marked in Airflow lets those after it run."""
    handle(worker, valkey)
    flow = submit(array("a", [3], "some"), job("b", "echo", 5, "a[*]"))
    assert await fired(trigger(is_expanded=True)) == "failed"
    airflow.states["etl.a"] = "success"
    assert await fired(trigger("b", nodes_before={"etl.a": "a"})) == "success"
    assert (await asyncio.to_thread(flow.node, "a[*]")).state == "completed"


async def test_more_results_than_xcom_takes_are_not_read(
    submit: Submit, airflow: AirflowSays, worker: Worker, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("airflow_provider_glidemq.results.MAX_RESULT_BYTES", 100)
    submit(array("a", range(51)))
    assert await fired(trigger(is_expanded=True)) == "success"
    assert "a[*] 102." in capsys.readouterr().out
    assert await fired(trigger(is_expanded=True, is_needed=True)) == "failed"
    assert ("etl.a", "return_value") not in airflow.xcoms
    assert await fired(trigger(is_expanded=True, is_needed=True, pushes="none")) == "success"


def test_items_with_values_that_airflow_masks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "airflow_provider_glidemq.node_reports.redact", lambda text: text.replace("hunter2", "***")
    )
    for over, is_masked in (([{"password": "hunter2"}], True), (["fine"], False), (range(10**8), False)):
        assert holds_masked(FlowSpec("f", [array("a", over)])) is is_masked
