"""Jobs of a queue as messages, on every release of Airflow: a real Valkey."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from airflow.triggers.base import BaseEventTrigger
from airflow_provider_glidemq.acknowledgement import acknowledge
from airflow_provider_glidemq.triggers import consumer, messages
from airflow_provider_glidemq.triggers.consumer import Source, Terms, consuming
from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, JobState, Queue
from glidemq_orchestrate.errors import JobNotFound, JobStateConflict
from tests.providers.airflow.builders import QUEUE, Valkey
from tests.providers.airflow.message_waits import add, received, states, trigger, until, until_states

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"queue_name": ""}, "queue_name must be"),
    ({"jobs": []}, "jobs must be"),
    ({"jobs": ["a", ""]}, "jobs must be"),
    ({"batch_size": 0}, "1 to 500"),
    ({"batch_size": 1.5}, "whole number"),
    ({"interval": -1}, "interval must be"),
    ({"until_run": 9}, "until_run must be at least 10"),
    ({"glidemq_conn_id": None}, "glidemq_conn_id must be"),
]


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


async def test_a_queue_that_cannot_be_read_is_named_with_its_connection(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told, events = trigger(), list[str](), list[Any]()
    monkeypatch.setattr(made.log, "warning", lambda text, *args: told.append(text % args))
    monkeypatch.setattr(messages, "reconnect_pauses", lambda: repeat(0.1))
    valkey = os.environ["AIRFLOW_CONN_GLIDEMQ_DEFAULT"]
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", "glidemq://127.0.0.1:1")

    async def run() -> None:
        async for event in made.run():
            events.append(event.payload)

    running = asyncio.create_task(run())
    await until(lambda: len(told) > 1)
    failure = f"Queue {QUEUE} cannot be read over connection glidemq_default, retrying in 0.1 s: "
    assert {line.split("Connect")[0] for line in told} == {failure}
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", valkey)
    add(queue, 1)
    await until(lambda: events)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_messages_of_a_lost_triggerer_do_not_wait_for_each_other(
    valkey: Valkey, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, each was held until its own event counted as stored."""
    monkeypatch.setattr(messages, "SETTLED_SECONDS", 1.0)
    queue.pause()
    ids, events = add(queue, *range(20)), list[Any]()
    with redis.Redis.from_url(valkey.url.replace("valkey://", "redis://")) as client:
        for one in ids:  # as it is after a triggerer was killed that held it
            job = f"{valkey.prefix}:{{{QUEUE}}}:job:{one}"
            client.hset(job, mapping={"gmo:suspect": 1, "gmo:lost": 1})
    queue.resume()

    async def run() -> None:
        async for event in trigger().run():
            events.append(event.payload)

    running = asyncio.create_task(run())
    await until_states(queue, ids, {JobState.COMPLETED}, seconds=8)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert sorted(received(events)) == list(range(20))


async def test_a_job_keeps_its_retries_and_its_time(queue: Queue) -> None:
    """Being given back costs no attempt."""
    job = queue.add("order", 1, options=JobOptions(attempts=1))
    for _ in range(3):
        async with consuming(Source("glidemq_default", QUEUE), ["order"], Terms(1, 0)) as inbox:
            async with asyncio.timeout(20):
                await inbox.next()
    async with consuming(Source("glidemq_default", QUEUE), ["order"], Terms(1, 0)) as inbox:
        async with asyncio.timeout(20):
            inbox.stored(await inbox.next())
        await until_states(queue, [job], {JobState.COMPLETED})


async def test_a_message_comes_again_until_a_run_has_acknowledged_it(queue: Queue) -> None:
    """A DAG that is paused, or has its one run, sees no event that is stored meanwhile."""
    ids = add(queue, 1, 2)
    source, seen = Source("glidemq_default", QUEUE), list[Any]()
    async with consuming(source, ["order"], Terms(10, 0, 0.2)) as inbox, asyncio.timeout(30):
        for _ in range(2):
            while len(seen) < 2:
                batch = await inbox.next()
                seen += batch.payload["messages"]
                inbox.stored(batch)
            assert sorted(one["id"] for one in seen) == sorted(ids), "none is lost, and none is completed"
            seen.clear()
        batch = await inbox.next()
        event = SimpleNamespace(extra={"payload": batch.payload})
        has = [one["id"] for one in batch.payload["messages"]]
        others = [SimpleNamespace(extra={}), SimpleNamespace(extra={"payload": "x"})]
        assert await asyncio.to_thread(acknowledge, [event, event, *others]) == len(has)
        assert await asyncio.to_thread(acknowledge, [event]) == 0, "a repeat changes nothing"
        inbox.stored(batch)
        left = sorted(set(ids) - set(has))
        for one in left:
            await until(lambda one=one: queue.get_job(one).state in (JobState.DELAYED, JobState.ACTIVE))  # type: ignore[misc]
        for one in has:
            with pytest.raises(JobNotFound):
                queue.get_job(one)


async def test_the_clock_of_whoever_adds_a_message_decides_nothing(valkey: Valkey, queue: Queue) -> None:
    """That of a producer, or of the server, may be an hour ahead of Airflow's: it came again for ever."""
    ids = add(queue, 1, 2)
    with redis.Redis.from_url(valkey.url.replace("valkey://", "redis://")) as client:
        key = f"{valkey.prefix}:{{{QUEUE}}}:job:{ids[0]}"
        ahead = int(client.hget(key, "timestamp")) + 3_600_000
        client.hset(key, "timestamp", ahead)
    async with consuming(Source("glidemq_default", QUEUE), ["order"], Terms(10, 0, 30.0)) as inbox:
        seen = list[Any]()
        async with asyncio.timeout(20):
            while len(seen) < 2:
                batch = await inbox.next()
                seen += batch.payload["messages"]
                inbox.stored(batch)
        await until_states(queue, ids, {JobState.DELAYED})
        assert all(one.keys() == {"id", "job", "data", "added_at"} for one in seen)
        payload = {"queue": QUEUE, "messages": json.loads(json.dumps(seen))}
        event = SimpleNamespace(extra={"payload": payload}, timestamp=datetime.now(UTC))
        assert await asyncio.to_thread(acknowledge, [event]) == 2
        queue.add("order", 3, options=JobOptions(job_id=ids[1]))
        assert await asyncio.to_thread(acknowledge, [event]) == 0, "another message of the same id"


def test_an_acknowledgement_removes_no_other_message(valkey: Valkey, queue: Queue) -> None:
    """Neither a later one of the same id, nor does one that must stay keep the others."""

    def event(*ids: str, at: datetime) -> SimpleNamespace:
        messages = [{"id": one, "job": "order", "data": 1} for one in ids]
        payload = {"queue": QUEUE, "messages": messages}
        return SimpleNamespace(extra={"payload": payload}, timestamp=at)

    def reuse(job_id: str) -> datetime:
        queue.add("order", 1, options=JobOptions(job_id=job_id))
        found = queue.get_job(job_id).created_at
        assert found is not None
        return found

    first = reuse("order-17")
    assert acknowledge([event("order-17", at=first)]) == 1
    later = reuse("order-17")
    early, late = event("order-17", at=later - timedelta(milliseconds=1)), event("order-17", at=later)
    assert acknowledge([early]) == 0, "its event has the former message"
    assert queue.get_job("order-17")
    assert acknowledge([late, early]) == 1, "one of the events has it"
    with FlowProducer(valkey.url, prefix=valkey.prefix) as flows:
        flow = flows.submit(FlowSpec("f", [FlowNode("order", queue=QUEUE, job="order")]))
        node, other = flow.node("order").job_id, queue.add("order", 1)
        with pytest.raises(JobStateConflict):
            acknowledge([event(node, other, at=datetime.now(UTC) + timedelta(minutes=1))])
        with pytest.raises(JobNotFound):
            queue.get_job(other)
        flow.cancel("enough")


async def test_a_connection_that_changes_is_taken_up(
    valkey: Valkey, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of the messages would wait with the old password for ever."""
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.2)
    events = list[Any]()

    async def run() -> None:
        async for event in trigger(interval=0).run():
            events.append(event.payload)

    running = asyncio.create_task(run())
    add(queue, 1)
    await until(lambda: events)
    connection = json.loads(os.environ["AIRFLOW_CONN_GLIDEMQ_DEFAULT"])
    connection["extra"]["prefix"] += "x"
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", json.dumps(connection))
    with Queue(QUEUE, valkey.url, prefix=f"{valkey.prefix}x") as other:
        add(other, 2)
        await until(lambda: len(events) == 2)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def test_what_cannot_be_right_is_refused(subtests: pytest.Subtests) -> None:
    for kwargs, why in WRONG_ARGUMENTS:
        with subtests.test(kwargs=kwargs), pytest.raises((ValueError, TypeError), match=why):
            trigger(**kwargs)


def test_equal_arguments_are_one_trigger() -> None:
    one, same = trigger(jobs=["b", "a", "a"]), trigger(jobs=["a", "b"])
    assert one.serialize() == same.serialize()
    path, kwargs = one.serialize()
    assert path == "airflow_provider_glidemq.triggers.messages.GlideMQMessageTrigger"
    assert GlideMQMessageTrigger(**kwargs).serialize() == (path, kwargs)
    assert one.shared_stream_key() == same.shared_stream_key()
    assert one.shared_stream_key() != trigger(jobs="a").shared_stream_key()
    again = trigger(until_run=60)
    assert GlideMQMessageTrigger(**again.serialize()[1]).until_run == 60
    assert again.shared_stream_key() != trigger().shared_stream_key()
    assert BaseEventTrigger.hash(path, kwargs) == BaseEventTrigger.hash(*same.serialize())
