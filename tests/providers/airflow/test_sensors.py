"""Waiting for a job, and for a queue to be as it should: in the worker, and in the triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow_provider_glidemq.exceptions import GlideMQException, GlideMQJobFailed, GlideMQResultTooLarge
from airflow_provider_glidemq.sensors.glidemq import GlideMQJobSensor, GlideMQQueueSensor
from airflow_provider_glidemq.triggers.queue import GlideMQJobTrigger, GlideMQQueueTrigger
from airflow_provider_glidemq.version_compat import AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from glidemq_orchestrate import ArrayNode, AsyncQueue, FlowSpec, Queue, Worker
from tests.providers.airflow.builders import QUEUE, Contexts, Valkey, run_mapped


def job_sensor(job_id: str = "1", **kwargs: Any) -> GlideMQJobSensor:
    return GlideMQJobSensor(task_id="s", **{"queue_name": QUEUE, "job_id": job_id, **kwargs})


def queue_sensor(**kwargs: Any) -> GlideMQQueueSensor:
    return GlideMQQueueSensor(task_id="s", **{"queue_name": QUEUE, **kwargs})


def deferred(sensor: Any, context: Any) -> Any:
    """The trigger for which the sensor has deferred."""
    with pytest.raises(TaskDeferred) as found:
        sensor.execute(context)
    assert found.value.method_name == "execute_complete"
    path, kwargs = found.value.trigger.serialize()
    made = type(found.value.trigger)(**kwargs)
    assert made.serialize() == (path, kwargs)
    assert kwargs["not_before"] > time.time()
    made.not_before = None
    return made


async def fired(trigger: Any, seconds: float = 20) -> Any:
    async with asyncio.timeout(seconds):
        async for event in trigger.run():
            return event.payload
    raise AssertionError("it has ended without an event")


# -- jobs ---------------------------------------------------------------------------------------------------


def test_a_job_that_has_completed_returns_its_result(queue: Queue, worker: Worker, context: Contexts) -> None:
    job_id = queue.add("echo", {"rows": 3})
    assert job_sensor(job_id, deferrable=False, poke_interval=0.1).execute(context()) == {"rows": 3}
    assert job_sensor(job_id).execute(context()) == {"rows": 3}
    natively = job_sensor(job_id)
    natively.job_id = int(job_id)  # type: ignore[assignment]
    assert natively.execute(context()) == {"rows": 3}


def test_a_job_that_failed_fails_the_sensor_with_its_reason(
    queue: Queue, worker: Worker, context: Contexts
) -> None:
    job_id = queue.add("fail")
    for deferrable in (False, True):
        sensor = job_sensor(job_id, deferrable=deferrable, poke_interval=0.1)
        with pytest.raises(GlideMQJobFailed, match=f"job {job_id} of queue {QUEUE} failed: no such month"):
            sensor.execute(context())
    assert job_sensor(job_id, allowed_states=["failed"]).execute(context()) is None
    with pytest.raises(GlideMQJobFailed):
        job_sensor(job_id, soft_fail=True).execute(context())
    with pytest.raises(AirflowSkipException, match="no such month"):
        job_sensor(job_id, never_fail=True).execute(context())
    with pytest.raises(GlideMQJobFailed):
        job_sensor(job_id).execute_complete(context(), {"status": "failed"})


async def test_its_end_wakes_the_sensor(
    queue: Queue, valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    job_id = await asyncio.to_thread(queue.add, "wait")
    trigger = deferred(job_sensor(job_id, poke_interval=600), context())
    waiting = asyncio.create_task(fired(trigger))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    valkey.gate.set()
    assert await waiting == {"status": "completed", "queue": QUEUE, "job_id": job_id, "reason": ""}
    assert job_sensor(job_id).execute_complete(context(), waiting.result()) == "done"


async def test_a_job_that_does_not_exist_yet_is_waited_for(
    queue: Queue, worker: Worker, context: Contexts
) -> None:
    waiting = asyncio.create_task(fired(deferred(job_sensor("1", poke_interval=600), context())))
    await asyncio.sleep(0.5)
    assert await asyncio.to_thread(queue.add, "fail") == "1"
    assert (await waiting)["status"] == "failed"


async def test_a_thousand_sensors_share_the_connections_and_the_reads(
    queue: Queue, valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    states = AsyncQueue.states

    async def noted(self: AsyncQueue, job_ids: Any) -> Any:
        reads.append(len(job_ids))
        return await states(self, job_ids)

    monkeypatch.setattr(AsyncQueue, "states", noted)
    job_id = await asyncio.to_thread(queue.add, "wait")
    ids = [job_id] * 500 + [str(number) for number in range(1000, 1500)]
    waiting = [
        asyncio.create_task(fired(GlideMQJobTrigger(queue_name=QUEUE, job_id=one, poll_interval=600), 60))
        for one in ids
    ]
    async with asyncio.timeout(30):
        while sum(reads) < 1000:  # noqa: ASYNC110  of triggers
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)
    first = len(reads)
    assert sum(reads) == 1000, "nobody is looked at twice while nothing happens"
    valkey.gate.set()
    assert {one["status"] for one in await asyncio.gather(*waiting[:500])} == {"completed"}
    for one in waiting[500:]:
        one.cancel()
    assert len(reads) - first <= 10


def test_a_result_that_is_too_large_for_xcom_is_refused(
    queue: Queue, worker: Worker, context: Contexts
) -> None:
    job_id = queue.add("echo", "x" * 60_000)
    sensor = job_sensor(job_id, deferrable=False, poke_interval=0.1)
    with pytest.raises(GlideMQResultTooLarge, match="job 1 completed, but its results are 60,012 bytes"):
        sensor.execute(context())
    sensor.do_xcom_push = False
    assert sensor.execute(context())


def test_a_time_out_tells_what_is_known_of_the_job(queue: Queue, context: Contexts) -> None:
    event = {"status": "timeout"}
    with pytest.raises(AirflowSensorTimeout, match="There is no such job at connection"):
        job_sensor("77", timeout=9).execute_complete(context(), event)
    with pytest.raises(AirflowSensorTimeout, match="It is waiting"):
        job_sensor(queue.add("echo")).execute_complete(context(), event)


# -- queues -------------------------------------------------------------------------------------------------


def test_a_queue_that_is_so_already_returns_its_numbers(queue: Queue, context: Contexts) -> None:
    queue.add("echo")
    for kwargs in ({"at_least": 1}, {"at_most": 1}, {"condition": "resumed"}):
        for deferrable in (True, False):
            found = queue_sensor(deferrable=deferrable, **kwargs).execute(context())
            assert (found["waiting"], found["active"]) == (1, 0)


async def test_a_queue_that_becomes_idle_wakes_the_sensors(
    queue: Queue, valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    await asyncio.to_thread(queue.add, "wait")
    trigger = deferred(queue_sensor(condition="idle", poke_interval=600), context())
    others = [GlideMQQueueTrigger(**trigger.serialize()[1] | {"not_before": None}) for _ in range(100)]
    waiting = [asyncio.create_task(fired(one)) for one in (trigger, *others)]
    await asyncio.sleep(1.5)
    assert not any(one.done() for one in waiting)
    valkey.gate.set()
    found = await asyncio.gather(*waiting)
    assert {(one["status"], one["queue"]) for one in found} == {("met", QUEUE)}
    assert queue_sensor(condition="idle").execute_complete(context(), found[0])["completed"] == 1


def test_a_queue_with_elements_to_run_is_not_idle(queue: Queue, valkey: Valkey, context: Contexts) -> None:
    with valkey.producer() as flows:
        flow = flows.submit(FlowSpec("f", [ArrayNode("a", over=range(100))], queue=QUEUE))
        assert queue.counts().elements.waiting == 100
        idle = queue_sensor(condition="idle", deferrable=False)
        assert not idle.poke(context())
        deferred(queue_sensor(condition="idle"), context())
        assert queue_sensor(at_least=100).execute(context())["waiting"] == 100
        flow.cancel("enough")
        assert idle.poke(context())


async def test_a_pause_and_new_jobs_wake_too(queue: Queue, context: Contexts) -> None:
    for kwargs, act in (
        ({"condition": "paused"}, queue.pause),
        ({"condition": "resumed"}, queue.resume),
        ({"at_least": 2}, lambda: [queue.add("echo") for _ in range(2)]),
    ):
        waiting = asyncio.create_task(fired(deferred(queue_sensor(poke_interval=600, **kwargs), context())))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(act)
        assert (await waiting)["status"] == "met", kwargs


async def test_a_worker_that_comes_is_seen_at_the_next_look(
    queue: Queue, valkey: Valkey, context: Contexts
) -> None:
    sensor = queue_sensor(condition="served", jobs=["echo"], poke_interval=1)
    waiting = asyncio.create_task(fired(deferred(sensor, context())))
    await asyncio.sleep(0.5)
    made = Worker(valkey.url, queues=[QUEUE], prefix=valkey.prefix)
    made.handler("echo")(lambda ctx: ctx.data)
    with made.running():
        assert (await waiting)["status"] == "met"
        assert sensor.poke(context())
        assert not queue_sensor(condition="served", jobs=["other"]).poke(context())


def test_a_time_out_tells_how_the_queue_is(queue: Queue, context: Contexts) -> None:
    event = {"status": "timeout"}
    with pytest.raises(AirflowSensorTimeout, match="A queue of this name was never used"):
        queue_sensor(queue_name="ect", at_least=1).execute_complete(context(), event)
    queue.add("echo")
    with pytest.raises(AirflowSensorTimeout, match=r"to be empty: .* It has 1 waiting; no live workers\.$"):
        queue_sensor(condition="empty").execute_complete(context(), event)


async def test_a_deadline_is_an_event(queue: Queue) -> None:
    trigger = GlideMQQueueTrigger(
        queue_name=QUEUE, condition={"at_least": 1, "states": ["failed"]}, deadline=time.time() + 0.5
    )
    assert (await fired(trigger))["status"] == "timeout"


def test_an_error_of_the_trigger_is_reported(context: Contexts) -> None:
    for sensor in (job_sensor(), queue_sensor(condition="idle")):
        with pytest.raises(GlideMQException, match="cannot be watched: why not"):
            sensor.execute_complete(context(), {"status": "error", "reason": "why not"})
        with pytest.raises(GlideMQException, match="no usable event"):
            sensor.execute_complete(context(), None)


# -- in a DAG -----------------------------------------------------------------------------------------------


WRONG_ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: job_sensor(""), "job_id must be a text"),
    (lambda: job_sensor(queue_name=None), "queue_name must be a text"),
    (lambda: job_sensor(allowed_states=["done"]), "of completed, failed; got done"),
    (lambda: job_sensor(allowed_states=[]), "got none"),
    (lambda: job_sensor(deferrable="no"), "deferrable must be"),
    (queue_sensor, "give either a condition"),
    (lambda: queue_sensor(condition="served", jobs="echo"), "jobs must be a list"),
    (lambda: queue_sensor(at_least=1, states="failed"), "states must be a list"),
]


def test_what_cannot_be_right_is_refused_while_the_dag_is_parsed(subtests: pytest.Subtests) -> None:
    for made, why in WRONG_ARGUMENTS:
        with subtests.test(made=made), pytest.raises((ValueError, TypeError), match=f"^task s: .*{why}"):
            made()


def test_its_fields_are_templated_and_mapped(queue: Queue, worker: Worker, context: Contexts) -> None:
    ids = [queue.add("echo", number) for number in range(3)]
    with DAG("d", schedule=None) as dag:

        @task
        def upstream() -> str:
            return "1"

        GlideMQJobSensor(task_id="one", queue_name="{{ params.q }}", job_id=upstream())  # type: ignore[arg-type]
        sensors = GlideMQJobSensor.partial(task_id="s", queue_name=QUEUE, deferrable=False, poke_interval=0.1)
        sensors.expand(job_id=ids)
    mapped = dag.get_task("s")
    assert [run_mapped(mapped, context(task_id="s") | {"task": mapped}, index) for index in range(3)] == [
        0,
        1,
        2,
    ]
