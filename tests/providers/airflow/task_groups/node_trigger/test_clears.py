"""Tasks that are cleared: their nodes run again, once, even if the triggerer is killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.providers.airflow.builders import Valkey
from tests.providers.airflow.task_groups.node_trigger.conftest import (
    AirflowSays,
    Killed,
    Submit,
    fired,
    job,
    kill_while_starting_over,
    trigger,
)


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
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        kill_while_starting_over(patch, calls)
        await fired(trigger(attempt=2, is_expanded=True))
    assert await fired(trigger(attempt=2, is_expanded=True)) == "success"
    assert (await asyncio.to_thread(flow.wait)).status.state == "completed"
    assert len(valkey.ran) == 15, "the others keep their results, and what follows has run"
    assert {number for number in range(16) if flow.node(f"a[{number}]").reruns} == failing
    assert await fired(trigger(attempt=3, is_expanded=True)) == "success"
    await asyncio.to_thread(flow.wait)
    assert len(valkey.ran) == 15 + 14 + 1, "it showed success, so all of it runs again"


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
    with pytest.MonkeyPatch.context() as patch:
        kill_while_starting_over(patch, calls)
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
