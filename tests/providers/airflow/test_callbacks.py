"""Callbacks by import path: what they are told, where, and that they disturb nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq import callbacks
from airflow_provider_glidemq.callbacks import MAX_THREADS, FlowEvent, acall_callbacks
from airflow_provider_glidemq.exceptions import GlideMQFlowFailed, GlideMQFlowTimeout
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, flow_id_for
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.version_compat import TaskDeferred

from glidemq_orchestrate import FlowNode, FlowSpec, Worker
from tests.providers.airflow import recording_callbacks
from tests.providers.airflow.builders import QUEUE, Contexts, FakeTask, Valkey, chain, fired, submit

FLOW_ID = flow_id_for("d", "t", "r1")
HERE = recording_callbacks.__name__
NOTING = [f"{HERE}:Noting"]
SLOWLY = FlowSpec(
    "s",
    [
        FlowNode("a", queue=QUEUE, job="echo"),
        FlowNode("b", queue=QUEUE, job="wait", after=["a"]),
        FlowNode("c", queue=QUEUE, job="echo", after=["b"]),
    ],
)

NO_CALLBACKS: list[tuple[Any, str]] = [
    ("m:C", "callbacks must be a list of names"),
    ([recording_callbacks.Noting], "callbacks must be a list of names .*cannot be objects"),
    (None, "callbacks must be a list"),
    (["m.C"], r"callbacks: 'm\.C' is not package\.module:Class"),
]


@pytest.fixture(autouse=True)
def _forget() -> None:
    recording_callbacks.events.clear()
    recording_callbacks.threads.clear()
    recording_callbacks.let_go.clear()


def operator(spec: FlowSpec, **kwargs: Any) -> GlideMQFlowOperator:
    given: dict[str, Any] = {"callbacks": NOTING, "deferrable": False, "logging_interval": 0.1}
    return GlideMQFlowOperator(task_id="t", flow=spec, **{**given, **kwargs})


def kinds() -> list[str]:
    return list(dict.fromkeys(kind for kind, _ in recording_callbacks.events))


def test_a_task_that_waits_tells_all(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    def open_gate() -> None:
        until = time.monotonic() + 15
        while "async progress" not in kinds() and time.monotonic() < until:
            time.sleep(0.02)
        valkey.gate.set()

    threading.Thread(target=open_gate, daemon=True).start()
    operator(SLOWLY, callbacks=[*NOTING, f"{HERE}:Async"]).execute(context(map_index=2, try_number=3))
    assert kinds() == ["submitted", "progress", "async progress", "end", "async end"]
    (first, last) = (recording_callbacks.events[0][1], recording_callbacks.events[-1][1])
    assert (first.state, first.total, first.generation) == ("running", 3, 0)
    assert (first.dag_id, first.task_id, first.run_id, first.map_index, first.try_number) == (
        "d",
        "t",
        "r1",
        2,
        3,
    )
    assert (last.state, last.completed, last.total, last.flow_id) == (
        "completed",
        3,
        3,
        flow_id_for("d", "t", "r1", 2),
    )


def test_the_end_names_what_failed(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    with pytest.raises(GlideMQFlowFailed):
        operator(chain("fail")).execute(context())
    (kind, event) = recording_callbacks.events[-1]
    assert (kind, event.state, event.failed) == ("end", "failed", ("middle", "last"))


def test_a_time_out_is_an_end(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    made = operator(chain("wait"), deferrable=True, defer_after=0.0, execution_timeout=timedelta(minutes=1))
    with pytest.raises(TaskDeferred):
        made.execute(context())
    assert kinds() == ["submitted"]
    with pytest.raises(GlideMQFlowTimeout):
        operator(chain("wait")).execute_complete(context(), {"status": "timeout", "flow_id": FLOW_ID})
    (kind, event) = recording_callbacks.events[-1]
    assert (kind, event.state) == ("end", "cancelled")
    assert "execution_timeout" in event.reason


def test_a_resumed_task_tells_the_end_only(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    submit(valkey, chain(), FLOW_ID)
    with valkey.producer() as producer:
        producer.get(FLOW_ID).wait()
    operator(chain()).execute_complete(context(), {"status": "completed", "flow_id": FLOW_ID})
    assert kinds() == ["end"]


async def test_a_trigger_tells_progress_beside_its_loop(valkey: Valkey, worker: Worker) -> None:
    submit(valkey, SLOWLY, "f")
    threading.Timer(0.8, valkey.gate.set).start()
    trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=0.1, callbacks=[*NOTING, f"{HERE}:Async"])
    trigger.task_instance = FakeTask()  # type: ignore[assignment]
    await fired(trigger)
    assert kinds()[:2] == ["progress", "async progress"]
    assert recording_callbacks.events[0][1].dag_id == "d"
    assert threading.get_ident() not in recording_callbacks.threads


async def test_slow_and_raising_callbacks_disturb_no_trigger(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(valkey, SLOWLY, "f")
    threading.Timer(0.8, valkey.gate.set).start()
    warnings: list[str] = []
    paths = [f"{HERE}:{name}" for name in ("Raising", "Blocking", "Slow")]
    trigger = GlideMQFlowTrigger(
        flow_id="f", logging_interval=0.1, callbacks=["no_such_module:X", f"{HERE}:function", *paths]
    )
    trigger.task_instance = FakeTask()  # type: ignore[assignment]
    monkeypatch.setattr(trigger.log, "warning", lambda text, *args: warnings.append(text % args))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    assert (await fired(trigger, 15))["status"] == "completed"
    ticking.cancel()
    assert ticks > 30, "the loop was blocked"
    assert any("Raising.on_progress failed: KeyError: 'not my day'" in line for line in warnings)
    assert any("no_such_module:X cannot be called here" in line for line in warnings)
    assert any("recording_callbacks:function cannot be called here" in line for line in warnings)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "acall_callbacks" in repr(task)]


def test_raising_callbacks_disturb_no_task(
    valkey: Valkey, worker: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    made = operator(chain(), callbacks=[f"{HERE}:Raising", "no_such_module:X", *NOTING])
    assert made.execute(context()) == {"last": {"rows": 3}}
    out = capsys.readouterr().out
    assert "Raising.on_end failed: KeyError: 'not my day'" in out
    assert "no_such_module:X cannot be called here" in out
    assert kinds() == ["submitted", "end"]


def test_what_names_no_callback_is_refused_when_the_dag_is_parsed(subtests: pytest.Subtests) -> None:
    for named, why in NO_CALLBACKS:
        with (
            subtests.test(callbacks=named),
            DAG("d", schedule=None),
            pytest.raises((ValueError, TypeError), match=why),
        ):
            operator(chain(), callbacks=named)


class TestWhatEndsAProcess:
    """``exit`` in a callback, and one that never returns, in a process that serves many tasks."""

    def test_an_exit_in_a_task_is_logged(
        self, valkey: Valkey, worker: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made = operator(chain(), callbacks=[f"{HERE}:Exiting", "tests.providers.airflow.exits:X", *NOTING])
        assert made.execute(context()) == {"last": {"rows": 3}}
        out = capsys.readouterr().out
        assert "Exiting.on_end failed: SystemExit: 3" in out
        assert "exits:X cannot be called here: SystemExit: 4" in out
        assert kinds() == ["submitted", "end"]

    def test_one_that_hangs_in_a_task_is_not_waited_for(
        self,
        valkey: Valkey,
        worker: Worker,
        context: Contexts,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(callbacks, "CALLBACK_TIMEOUT", timedelta(seconds=0.2))
        made = operator(chain(), callbacks=[f"{HERE}:HangingInTask", *NOTING])
        try:
            assert made.execute(context()) == {"last": {"rows": 3}}
        finally:
            recording_callbacks.let_go.set()
        assert "on_submitted failed: TimeoutError: not returned after 0.2 seconds" in capsys.readouterr().out
        assert kinds() == ["submitted", "end"]

    async def test_an_exit_in_a_triggerer_ends_no_loop(self, valkey: Valkey, worker: Worker) -> None:
        submit(valkey, SLOWLY, "f")
        threading.Timer(0.8, valkey.gate.set).start()
        exits = [f"{HERE}:Exiting", f"{HERE}:ExitingAsync", "tests.providers.airflow.exits:X"]
        trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=0.1, callbacks=[*exits, *NOTING])
        trigger.task_instance = FakeTask()  # type: ignore[assignment]
        assert (await fired(trigger, 15))["status"] == "completed"
        assert "progress" in kinds()

    async def test_those_that_hang_take_no_thread_of_others(
        self, valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(callbacks, "CALLBACK_TIMEOUT", timedelta(seconds=0.1))
        event = FlowEvent("d", "t", "r", -1, 1, "f", 0, "running", 1, 3)
        many = MAX_THREADS + 5
        log: Any = logging.getLogger("test")
        try:
            await asyncio.gather(
                *(acall_callbacks([f"{HERE}:Hanging"], "progress", event, log) for _ in range(many))
            )
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 5) == 7
            assert sum(thread.name == "glidemq-callback" for thread in threading.enumerate()) == MAX_THREADS
            await acall_callbacks(NOTING, "progress", event, log)
            assert kinds() == [], "there is no thread for it; that is logged"
        finally:
            recording_callbacks.let_go.set()
        for thread in threading.enumerate():
            if thread.name == "glidemq-callback":
                thread.join()
        await acall_callbacks(NOTING, "progress", event, log)
        assert kinds() == ["progress"]

    async def test_one_that_refuses_to_end_holds_no_task(self, valkey: Valkey, worker: Worker) -> None:
        submit(valkey, SLOWLY, "f")
        threading.Timer(0.8, valkey.gate.set).start()
        trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=0.1, callbacks=[f"{HERE}:Stubborn"])
        trigger.task_instance = FakeTask()  # type: ignore[assignment]
        assert (await fired(trigger, 15))["status"] == "completed"
        recording_callbacks.let_go.set()
