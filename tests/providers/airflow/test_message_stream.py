"""Messages by a shared stream with acknowledgement: a real Valkey, and Airflow's manager of streams."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
from airflow.triggers.shared_stream import SharedStreamManager
from airflow_provider_glidemq.triggers.consumer import Source, Terms, consuming
from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger

from glidemq_orchestrate import Context, JobState, Queue, Worker
from tests.providers.airflow.builders import QUEUE, Valkey
from tests.providers.airflow.message_waits import add, received, states, trigger, until, until_states


class Triggerer:
    """Runs triggers as a triggerer of Airflow 3.3 does, with the same manager; ``store`` is its database."""

    def __init__(self) -> None:
        self.manager = SharedStreamManager(ack_timeout=30)
        self.events: dict[int, list[Any]] = {}
        self._unstored: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, number: int, made: GlideMQMessageTrigger) -> None:
        self.events[number] = []
        self._tasks.append(asyncio.create_task(self._run(number, made)))

    async def _run(self, number: int, made: GlideMQMessageTrigger) -> None:
        key = made.shared_stream_key()
        stream = self.manager.subscribe(trigger_id=number, trigger=made, key=key)
        try:
            async for event in made.filter_shared_stream(stream):
                seq = self.manager.bind_pending_event(trigger_id=number, key=key)
                assert seq is not None
                self.events[number].append(event.payload)
                self._unstored.append(seq)
        finally:
            await self.manager.unsubscribe(number, key)

    def store(self) -> None:
        self.manager.confirm_persisted(self._unstored)
        self._unstored.clear()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.manager.stop_all()


@asynccontextmanager
async def triggerer(*triggers: GlideMQMessageTrigger) -> AsyncIterator[Triggerer]:
    running = Triggerer()
    try:
        for number, made in enumerate(triggers):
            running.add(number, made)
        yield running
    finally:
        await running.stop()


async def test_a_job_is_completed_when_airflow_has_its_event_and_not_before(queue: Queue) -> None:
    ids = add(queue, *range(5))
    async with triggerer(trigger(), trigger()) as running:
        await until(lambda: all(running.events.values()))
        assert running.events[0] == running.events[1]
        assert received(running.events[0]) == list(range(5))
        assert [one["id"] for one in running.events[0][0]["messages"]] == ids
        await asyncio.sleep(0.5)
        assert await states(queue, ids) == {JobState.ACTIVE}
        running.store()
        await until_states(queue, ids, {JobState.COMPLETED})


async def test_what_was_not_stored_comes_again_with_the_next_triggerer(queue: Queue) -> None:
    ids = add(queue, *range(3))
    async with triggerer(trigger()) as running:
        await until(lambda: running.events[0])
    assert JobState.COMPLETED not in await states(queue, ids)
    async with triggerer(trigger()) as running:
        await until(lambda: len(received(running.events[0])) == 3)
        running.store()
        await until_states(queue, ids, {JobState.COMPLETED})
    assert {job.attempts_made for job in queue.get_jobs(JobState.COMPLETED)} <= {0, 1}


async def test_what_was_stored_at_the_last_moment_does_not_come_again(queue: Queue) -> None:
    ids = add(queue, 1, 2)
    async with triggerer(trigger()) as running:
        await until(lambda: running.events[0])
        await asyncio.sleep(0)
        running.store()
    assert await states(queue, ids) == {JobState.COMPLETED}


async def test_a_message_that_cannot_be_stored_fails_and_the_others_go_on(queue: Queue) -> None:
    bad = queue.add("order", "x" * 60_000)
    good = add(queue, 1, 2)
    async with triggerer(trigger()) as running:
        await until(lambda: running.events[0])
        running.store()
        await until_states(queue, good, {JobState.COMPLETED})
        await until_states(queue, [bad], {JobState.FAILED})
        assert received(running.events[0]) == [1, 2]
    assert "60,002 bytes of JSON" in (queue.get_job(bad).failed_reason or "")


async def test_a_payload_that_is_no_json_fails_and_the_others_go_on(queue: Queue, valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url.replace("valkey://", "redis://")) as raw:
        queue.pause()
        (bad, good) = add(queue, 1, 2)
        raw.hset(f"{valkey.prefix}:{{{QUEUE}}}:job:{bad}", "data", "{no json")
        queue.resume()
    async with triggerer(trigger()) as running:
        await until(lambda: running.events[0])
        running.store()
        await until_states(queue, [good], {JobState.COMPLETED})
        await until_states(queue, [bad], {JobState.FAILED})
        assert received(running.events[0]) == [2]


async def test_jobs_of_other_names_are_left_to_their_workers(queue: Queue, valkey: Valkey) -> None:
    (other,) = add(queue, 7, job="work")
    mine = add(queue, 1)
    async with triggerer(trigger()) as running:
        await until(lambda: running.events[0])
        running.store()
        await until_states(queue, mine, {JobState.COMPLETED})
        await asyncio.sleep(1)
        assert not (await states(queue, [other])) & {JobState.FAILED, JobState.COMPLETED}
        worker = Worker(valkey.url, queues=[QUEUE], prefix=valkey.prefix)

        @worker.handler("work")
        def work(ctx: Context) -> Any:
            return ctx.data

        with worker.running():
            await until_states(queue, [other], {JobState.COMPLETED})
    assert queue.get_job(other).result == 7
    assert received(running.events[0]) == [1]


async def test_watchers_of_other_jobs_share_the_worker(queue: Queue) -> None:
    async with triggerer(trigger(jobs="order"), trigger(jobs=["bill", "reminder"])) as running:
        source = Source("glidemq_default", QUEUE)
        await until(lambda: len(queue.workers()) == 1)
        async with consuming(source, ["more"], Terms(1, 0)):
            ids = add(queue, 1, 2) + add(queue, 3, job="bill") + add(queue, 4, job="reminder")
            await until(lambda: len(received(running.events[0])) == len(received(running.events[1])) == 2)
            assert len(queue.workers()) == 1
        running.store()
        await until_states(queue, ids, {JobState.COMPLETED})
        assert (received(running.events[0]), received(running.events[1])) == ([1, 2], [3, 4])
    await until(lambda: queue.workers() == [])


async def test_a_thousand_messages_come_in_few_events(queue: Queue) -> None:
    ids = add(queue, *range(1000))
    async with triggerer(trigger(batch_size=200)) as running:
        async with asyncio.timeout(60):
            while len(received(running.events[0])) < 1000:
                running.store()
                await asyncio.sleep(0.1)
        running.store()
        await until_states(queue, ids, {JobState.COMPLETED})
        assert sorted(received(running.events[0])) == list(range(1000))
        assert len(running.events[0]) <= 15


async def test_a_server_that_cannot_be_reached_is_waited_for(
    queue: Queue, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = os.environ["AIRFLOW_CONN_GLIDEMQ_DEFAULT"]
    away = {**json.loads(known), "port": 1}
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", json.dumps(away))
    ids = add(queue, 1)
    async with triggerer(trigger()) as running:
        await asyncio.sleep(1.5)
        assert not running.events[0]
        monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", known)
        await until(lambda: running.events[0])
        running.store()
        await until_states(queue, ids, {JobState.COMPLETED})
