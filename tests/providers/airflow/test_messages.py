"""Jobs of a queue as messages, on every release of Airflow: a real Valkey."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from airflow.triggers.base import BaseEventTrigger
from airflow_provider_glidemq.triggers import messages
from airflow_provider_glidemq.triggers.consumer import Source, consuming
from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger

from glidemq_orchestrate import JobOptions, JobState, Queue
from tests.providers.airflow.conftest import QUEUE
from tests.providers.airflow.message_waits import add, received, states, trigger, until, until_states


async def test_without_streams_a_job_is_completed_a_while_after_its_event(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SETTLED_SECONDS", 1.0)
    ids, events, shown = add(queue, 1, 2), list[Any](), list[str]()

    async def run() -> None:
        async for event in trigger().run():
            shown.append(repr(event))
            events.append(event.payload)

    running = asyncio.create_task(run())
    await until(lambda: events)
    assert received(events) == [1, 2]
    assert shown == [f"2 messages of queue {QUEUE}: jobs {ids[0]}, {ids[1]}"]
    assert await states(queue, ids) == {JobState.ACTIVE}
    await until_states(queue, ids, {JobState.COMPLETED})
    more = add(queue, 3)
    await until(lambda: len(events) == 2)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert not await states(queue, more) & {JobState.COMPLETED, JobState.FAILED}


async def test_a_job_keeps_its_retries_and_its_time(queue: Queue) -> None:
    """Being given back costs no attempt."""
    job = queue.add("order", 1, options=JobOptions(attempts=1))
    for _ in range(3):
        async with consuming(Source("glidemq_default", QUEUE), ["order"], 1, 0) as inbox:
            async with asyncio.timeout(20):
                await inbox.next()
    async with consuming(Source("glidemq_default", QUEUE), ["order"], 1, 0) as inbox:
        async with asyncio.timeout(20):
            inbox.stored(await inbox.next())
        await until_states(queue, [job], {JobState.COMPLETED})


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"queue_name": ""}, "queue_name must be"),
        ({"jobs": []}, "jobs must be"),
        ({"jobs": ["a", ""]}, "jobs must be"),
        ({"batch_size": 0}, "1 to 500"),
        ({"batch_size": 1.5}, "whole number"),
        ({"interval": -1}, "interval must be"),
        ({"glidemq_conn_id": None}, "glidemq_conn_id must be"),
    ],
)
def test_what_cannot_be_right_is_refused(kwargs: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        trigger(**kwargs)


def test_equal_arguments_are_one_trigger() -> None:
    one, same = trigger(jobs=["b", "a", "a"]), trigger(jobs=["a", "b"])
    assert one.serialize() == same.serialize()
    path, kwargs = one.serialize()
    assert path == "airflow_provider_glidemq.triggers.messages.GlideMQMessageTrigger"
    assert GlideMQMessageTrigger(**kwargs).serialize() == (path, kwargs)
    assert one.shared_stream_key() == same.shared_stream_key()
    assert one.shared_stream_key() != trigger(jobs="a").shared_stream_key()
    assert BaseEventTrigger.hash(path, kwargs) == BaseEventTrigger.hash(*same.serialize())
