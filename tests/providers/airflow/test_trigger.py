"""Watching flows from an event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import airflow
import pytest
import redis
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.triggers.shared import client, events
from airflow_provider_glidemq.triggers.shared.client import shared_client
from airflow_provider_glidemq.triggers.shared.events import Watcher

from glidemq_orchestrate import FlowNode, FlowSpec, FlowState, Worker
from glidemq_orchestrate.flows import FlowStatus
from tests.node import PlainNode
from tests.providers.airflow.builders import QUEUE, FakeTask, Valkey, chain, fired, submit, task_states, until

CLASS_PATH = "airflow_provider_glidemq.triggers.glidemq.GlideMQFlowTrigger"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[Watcher[FlowStatus]]:
    """Grows whenever a trigger that has seen the state of its flow waits for another one."""
    began: list[Watcher[FlowStatus]] = []
    wait = Watcher.wait

    async def noted(self: Watcher[FlowStatus], seconds: float | None) -> FlowStatus | None:
        if self.status is not None:
            began.append(self)
        return await wait(self, seconds)

    monkeypatch.setattr(Watcher, "wait", noted)
    return began


def test_serialize_is_pinned_and_stable() -> None:
    kwargs = {
        "flow_id": "f",
        "glidemq_conn_id": "c",
        "poll_interval": 5.0,
        "deadline": 12.5,
        "cancel_on_kill": True,
        "wait_for_flow": True,
        "not_before": 1.5,
        "generation": 2,
        "owner": "Airflow task d.t of run r",
        "lease": 60.0,
        "logging_interval": 3.0,
        "show_logs": True,
        "show_progress": True,
        "callbacks": ["m:C"],
        "is_masked": True,
    }
    assert GlideMQFlowTrigger(**kwargs).serialize() == (CLASS_PATH, kwargs)  # type: ignore[arg-type]


async def test_it_fires_when_the_flow_completes(
    valkey: Valkey, worker: Worker, waiting: list[Watcher[FlowStatus]]
) -> None:
    submit(valkey, chain("wait"), "f")
    # Woken by the event, not by the poll interval.
    task = asyncio.create_task(fired(GlideMQFlowTrigger(flow_id="f", poll_interval=600), 20))
    await until(lambda: waiting)
    valkey.gate.set()
    assert await task == {
        "status": "completed",
        "flow_id": "f",
        "reason": "",
        "generation": 0,
        "is_masked": False,
    }


async def test_it_fires_immediately_for_a_flow_that_has_ended(valkey: Valkey, worker: Worker) -> None:
    with valkey.producer() as producer:
        producer.submit(chain(), flow_id="f").wait()
    assert (await fired(GlideMQFlowTrigger(flow_id="f")))["status"] == "completed"


async def test_it_does_not_fire_before_it_may(valkey: Valkey, worker: Worker) -> None:
    with valkey.producer() as producer:
        producer.submit(chain(), flow_id="f").wait()
    earliest = time.time() + 0.8
    assert (await fired(GlideMQFlowTrigger(flow_id="f", not_before=earliest)))["status"] == "completed"
    assert time.time() >= earliest


async def test_the_clock_of_the_worker_does_not_delay_it(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be minutes ahead of that of the triggerer."""
    monkeypatch.setattr("airflow_provider_glidemq.triggers.waiting.SECONDS_DEFERRED", 0.5)
    with valkey.producer() as producer:
        producer.submit(chain(), flow_id="f").wait()
    async with asyncio.timeout(10):
        told = await fired(GlideMQFlowTrigger(flow_id="f", not_before=time.time() + 600))
    assert told["status"] == "completed"


async def test_it_fires_when_the_flow_fails(valkey: Valkey, worker: Worker) -> None:
    submit(valkey, chain("fail"), "f")
    payload = await fired(GlideMQFlowTrigger(flow_id="f"))
    assert payload["status"] == "failed"
    assert "no such month" in payload["reason"]


async def test_it_fires_when_the_flow_is_cancelled(valkey: Valkey, worker: Worker) -> None:
    submit(valkey, chain("wait"), "f")

    def cancel() -> None:
        with valkey.producer() as producer:
            producer.get("f").cancel("enough")

    threading.Timer(0.5, cancel).start()
    payload = await fired(GlideMQFlowTrigger(flow_id="f"))
    assert (payload["status"], payload["reason"]) == ("cancelled", "enough")


async def test_it_fires_at_the_deadline(valkey: Valkey, worker: Worker) -> None:
    submit(valkey, chain("wait"), "f")
    payload = await fired(GlideMQFlowTrigger(flow_id="f", deadline=time.time() + 0.5))
    assert payload["status"] == "timeout"
    with valkey.producer() as producer:
        assert producer.get("f").status().state is FlowState.RUNNING
    valkey.gate.set()


async def test_a_missing_flow_is_an_error(valkey: Valkey) -> None:
    payload = await fired(GlideMQFlowTrigger(flow_id="absent"))
    assert payload["status"] == "error"
    assert "absent is no longer on the server" in payload["reason"]


async def test_a_flow_that_will_come_can_be_waited_for(valkey: Valkey, worker: Worker) -> None:
    trigger = GlideMQFlowTrigger(flow_id="later", wait_for_flow=True, poll_interval=0.2)
    threading.Timer(0.5, submit, [valkey, chain(), "later"]).start()
    assert (await fired(trigger))["status"] == "completed"


async def test_a_state_without_an_event_is_seen_at_the_next_poll(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.QueueEvents, "_dispatch", lambda *_: None)
    submit(valkey, chain("wait"), "f")
    threading.Timer(0.5, valkey.gate.set).start()
    assert (await fired(GlideMQFlowTrigger(flow_id="f", poll_interval=0.3)))["status"] == "completed"


async def test_a_flow_that_only_node_workers_run_ends_without_a_supervisor(valkey: Valkey) -> None:
    submit(valkey, chain(), "f")
    with redis.Redis.from_url(valkey.url.replace("valkey", "redis"), decode_responses=True) as client:
        PlainNode(client, QUEUE, time.time_ns() // 1_000_000, prefix=valkey.prefix).run_all()
    assert (await fired(GlideMQFlowTrigger(flow_id="f")))["status"] == "completed"


async def test_progress_is_logged_when_it_changes(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    submit(valkey, chain("wait"), "f")
    threading.Timer(0.6, valkey.gate.set).start()
    trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=0.1)
    monkeypatch.setattr(trigger.log, "info", lambda text, *args: lines.append(text % args))
    await fired(trigger)
    assert lines[-1] == "3/3 nodes completed"
    assert len(lines) == len(set(lines))


def is_reading(client: dict[str, str]) -> bool:
    return client["cmd"] == "xread" and "b" in client["flags"]


async def test_many_triggers_share_one_reader(
    valkey: Valkey, worker: Worker, waiting: list[Watcher[FlowStatus]]
) -> None:
    count = 200
    control = redis.Redis.from_url(valkey.url.replace("valkey", "redis"), decode_responses=True)
    before = {
        client["id"] for client in control.client_list()
    }  # the worker's, and what other tests have left
    spec = FlowSpec("one", nodes=[FlowNode("n", queue=QUEUE, job="wait")])
    with valkey.producer() as producer:
        for index in range(count):
            producer.submit(spec, flow_id=f"f{index}")
    tasks = [asyncio.create_task(fired(GlideMQFlowTrigger(flow_id=f"f{i}"), 60)) for i in range(count)]
    await until(lambda: len(set(map(id, waiting))) == count)
    with control:
        # The worker was idle once: a connection of its may have read last, but waits for nothing now.
        await until(lambda: [c for c in control.client_list() if is_reading(c)])
        clients = [client for client in control.client_list() if client["id"] not in before]
    assert len([c for c in clients if is_reading(c)]) <= 1
    assert len(clients) < 20
    valkey.gate.set()
    payloads = await asyncio.gather(*tasks)
    assert {payload["status"] for payload in payloads} == {"completed"}


async def test_a_cut_connection_is_made_again(
    valkey: Valkey, worker: Worker, waiting: list[Watcher[FlowStatus]]
) -> None:
    submit(valkey, chain("wait"), "f")
    task = asyncio.create_task(fired(GlideMQFlowTrigger(flow_id="f"), 60))
    await until(lambda: waiting)
    with redis.Redis.from_url(valkey.url.replace("valkey", "redis")) as control:

        def readers() -> set[str]:
            return {client["id"] for client in control.client_list() if client["cmd"] == "xread"}

        await until(readers)
        cut = readers()
        control.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: readers() - cut)
    assert not task.done()
    valkey.gate.set()
    assert (await task)["status"] == "completed"


async def test_a_server_that_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", "glidemq://127.0.0.1:1")
    payload = await fired(GlideMQFlowTrigger(flow_id="f", deadline=time.time() + 1.5))
    assert payload["status"] == "timeout"


async def test_nothing_is_left_when_no_trigger_watches_any_more(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(events, "LINGER_SECONDS", 0.1)
    with valkey.producer() as producer:
        producer.submit(chain(), flow_id="f").wait()
    await fired(GlideMQFlowTrigger(flow_id="f"))
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert others
    await asyncio.wait_for(asyncio.gather(*others), 10)


async def test_readers_of_queues_that_nobody_watches_any_more_are_dropped(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each DAG run has queues of its own, a triggerer kept a reader for each of them."""
    monkeypatch.setattr(events, "LINGER_SECONDS", 0.1)
    async with shared_client("glidemq_default") as client:
        for number in range(3):
            queue = f"{QUEUE}-{number}"
            with valkey.producer() as producer:
                producer.submit(
                    FlowSpec("f", [FlowNode("n", queue=queue, job="echo")]), flow_id=queue
                ).cancel("enough")
            assert (await fired(GlideMQFlowTrigger(flow_id=queue)))["status"] == "cancelled"
            await until(lambda queue=queue: client._queues[queue].is_over)  # type: ignore[misc]
        assert len(client._queues) == 1


async def test_a_cancelled_trigger_leaves_the_others_alone(
    valkey: Valkey, worker: Worker, waiting: list[Watcher[FlowStatus]]
) -> None:
    submit(valkey, chain("wait"), "f")
    first, second = (asyncio.create_task(fired(GlideMQFlowTrigger(flow_id="f"))) for _ in range(2))
    await until(lambda: len(set(map(id, waiting))) == 2)
    first.cancel("user")
    with pytest.raises(asyncio.CancelledError) as caught:
        await first
    assert caught.value.args == ("user",), "the triggerer recognises a user's action by it"
    valkey.gate.set()
    assert (await second)["status"] == "completed"


# -- on_kill -------------------------------------------------------------------------------------------------


def test_airflow_tells_a_trigger_of_a_kill_since_3_3() -> None:
    """Earlier ones only stop it, as they do when it moves: see the lease in ``test_ownership``."""
    release = tuple(int(part) for part in airflow.__version__.split(".")[:2])
    assert hasattr(BaseTrigger, "on_kill") == (release >= (3, 3))


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ("failed", True),
        ("success", True),
        (None, True),
        ("queued", False),
        ("scheduled", False),
        ("up_for_retry", False),
        ("restarting", False),
        ("running", False),
        ("deferred", False),
    ],
)
async def test_a_kill_cancels_unless_the_task_goes_on(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch, state: str | None, ended: object
) -> None:
    task_states(monkeypatch, {"r1": {"t": state}})
    submit(valkey, chain("wait"), "f")
    trigger = GlideMQFlowTrigger(flow_id="f", cancel_on_kill=True)
    trigger.task_instance = FakeTask(run_id="r1")  # type: ignore[assignment]
    await trigger.on_kill()
    with valkey.producer() as producer:
        found = producer.get("f").status().state
    assert found is (FlowState.CANCELLED if ended else FlowState.RUNNING)
    valkey.gate.set()


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("failed", "was ended by Airflow: its DAG run has failed (dagrun_timeout, or fail_fast)"),
        ("running", "was skipped by Airflow or a user"),
        (None, "was skipped by Airflow or a user"),
    ],
)
async def test_a_run_that_has_timed_out_is_the_reason_and_no_user(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch, run: str | None, why: str
) -> None:

    def state_of_run(*_: Any) -> str:
        if run is None:
            raise RuntimeError("Airflow does not answer")
        return run

    task_states(monkeypatch, {"r1": {"t": "skipped"}})
    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(state_of_run))
    submit(valkey, chain("wait"), "f")
    trigger = GlideMQFlowTrigger(flow_id="f", cancel_on_kill=True)
    trigger.task_instance = FakeTask(run_id="r1")  # type: ignore[assignment]
    await trigger.on_kill()
    with valkey.producer() as producer:
        status = producer.get("f").status()
    assert (status.state, status.reason) == ("cancelled", f"the Airflow task {why}")
    valkey.gate.set()


async def test_a_kill_that_is_interrupted_cancels_all_the_same(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, release = task_states(monkeypatch, {"r1": {"t": "failed"}}, at_once=False)
    submit(valkey, chain("wait"), "f")
    trigger = GlideMQFlowTrigger(flow_id="f", cancel_on_kill=True)
    trigger.task_instance = FakeTask(run_id="r1")  # type: ignore[assignment]
    killing = asyncio.create_task(trigger.on_kill())
    await until(asked.is_set)
    killing.cancel()
    await asyncio.sleep(0)  # the cancellation arrives before the answer
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await killing
    assert (await fired(GlideMQFlowTrigger(flow_id="f")))["status"] == "cancelled"


async def test_a_kill_imports_nothing_more(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch, waiting: list[Watcher[FlowStatus]]
) -> None:
    """Imports took 5 s, and 73 s on a busy machine; a triggerer that stops gives a kill a second."""
    task_states(monkeypatch, {"r1": {"t": "failed"}})
    submit(valkey, chain("wait"), "f")
    trigger = GlideMQFlowTrigger(flow_id="f", cancel_on_kill=True)
    trigger.task_instance = FakeTask(run_id="r1")  # type: ignore[assignment]
    watching = asyncio.create_task(fired(trigger))
    await until(lambda: waiting)
    known = set(sys.modules)
    await trigger.on_kill()
    assert set(sys.modules) == known
    assert (await watching)["status"] == "cancelled"


async def test_a_kill_that_cannot_see_the_task_cancels_nothing(valkey: Valkey, worker: Worker) -> None:
    submit(valkey, chain("wait"), "f")
    await GlideMQFlowTrigger(flow_id="f", cancel_on_kill=True).on_kill()
    with valkey.producer() as producer:
        assert producer.get("f").status().state is FlowState.RUNNING
    valkey.gate.set()


async def test_a_trigger_that_may_not_cancel_does_not() -> None:
    async with asyncio.timeout(20):
        await GlideMQFlowTrigger(flow_id="f").on_kill()
