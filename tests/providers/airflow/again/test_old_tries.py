"""What is left of an old try harms nothing: its triggers, workers and sensors."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowSuperseded,
    GlideMQFlowTimeout,
)
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger

from glidemq_orchestrate import FlowProducer
from tests.providers.airflow.again.generations import generations
from tests.providers.airflow.builders import (
    CLEARED,
    FLOW_ID,
    Contexts,
    FakeTask,
    Valkey,
    blocking,
    deferred,
    fired,
    load,
    task_states,
    until,
)


async def test_an_old_trigger_ends_and_its_kill_changes_nothing(
    flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = blocking(load("wait"))
    old = deferred(first, context())
    watching = asyncio.create_task(fired(old))
    await until(lambda: flows.get(FLOW_ID).status().completed)
    new = deferred(blocking(load("wait")), context(**CLEARED))
    payload = await watching
    assert (payload["status"], payload["generation"]) == ("superseded", 0)
    task_states(monkeypatch, {"r1": {"t": None}})
    await old.on_kill()
    first.on_kill()
    assert generations(flows) == ["cancelled", "running"]
    with pytest.raises(GlideMQFlowSuperseded, match="was restarted by a later try"):
        blocking(load("wait")).execute_complete(context(), payload)
    valkey.gate.set()
    payload = await fired(new)
    assert (payload["status"], payload["generation"]) == ("completed", 1)
    made = blocking(load("wait"))
    assert made.execute_complete(context(**CLEARED), payload) == {"extract": 2, "load": "done"}


async def test_an_old_trigger_that_starts_late_ends_too(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    old = deferred(blocking(load("wait")), context())
    deferred(blocking(load("wait")), context(**CLEARED))
    assert (await fired(old))["status"] == "superseded"


async def test_a_trigger_follows_what_was_begun_by_hand_and_leaves_it(
    flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = context()
    trigger = deferred(blocking(load("wait")), made)
    watching = asyncio.create_task(fired(trigger))
    await until(lambda: flows.get(FLOW_ID).status().completed)
    flows.get(FLOW_ID).restart()
    flows.submit(load("wait", 1), flow_id=FLOW_ID, on_existing="restart", idempotency_key="a click")
    await until(lambda: trigger.generation == 2)
    task_states(monkeypatch, {"r1": {"t": "failed"}})
    await trigger.on_kill()
    assert generations(flows) == ["cancelled", "cancelled", "running"]
    valkey.gate.set()
    payload = await watching
    assert (payload["status"], payload["generation"]) == ("completed", 2)


def test_an_old_worker_that_waits_without_deferring_ends(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    made, errors = blocking(load("wait")), list[BaseException]()

    def wait() -> None:
        try:
            made.execute(context())
        except GlideMQException as exc:
            errors.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    while not valkey.ran:
        thread.join(0.01)
    deferred(blocking(load("wait")), context(**CLEARED))
    thread.join(20)
    assert [type(error) for error in errors] == [GlideMQFlowSuperseded]
    made.on_kill()
    with pytest.raises(GlideMQFlowTimeout):
        made.resume_execution("__fail__", {"error": "Trigger timeout"}, context())
    with pytest.raises(GlideMQFlowSuperseded):
        made.execute(context())
    assert generations(flows) == ["cancelled", "running"]


def test_a_worker_follows_what_was_begun_by_hand(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    made = blocking(load("wait"))
    with ThreadPoolExecutor(1) as pool:
        executing = pool.submit(made.execute, context())
        while not valkey.ran:
            assert not executing.done()
        flows.get(FLOW_ID).restart()
        while len(valkey.ran) < 2:
            assert not executing.done()
        valkey.gate.set()
        assert executing.result(20) == {"extract": 2, "load": "done"}


def test_a_sensor_waits_for_the_generation_that_is_current(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    blocking().execute(context())
    blocking(load("echo", 9)).execute(context(**CLEARED))
    sensor = GlideMQFlowSensor(task_id="s", flow_id=FLOW_ID, result="all")
    assert sensor.execute(context()) == {"extract": 3, "load": 9}


async def test_the_trigger_of_a_sensor_follows_to_the_next_generation(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    deferred(blocking(load("wait")), context())
    trigger = GlideMQFlowTrigger(flow_id=FLOW_ID, wait_for_flow=True)
    trigger.task_instance = FakeTask(task_id="sensor", run_id="r1")  # type: ignore[assignment]
    watching = asyncio.create_task(fired(trigger))
    await until(lambda: trigger.generation == 0)
    deferred(blocking(load("wait")), context(**CLEARED))
    await until(lambda: trigger.generation == 1)
    valkey.gate.set()
    payload = await watching
    assert (payload["status"], payload["generation"]) == ("completed", 1)
