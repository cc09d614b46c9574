"""What nodes log and report while a task waits, in the log of the task."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
import redis
from airflow_provider_glidemq.exceptions import GlideMQFlowTimeout
from airflow_provider_glidemq.operators.glidemq import (
    GlideMQFlowOperator,
    GlideMQOperator,
    GlideMQSparkOperator,
    flow_id_for,
)
from airflow_provider_glidemq.operators.waiting_in_worker import WaitingInWorker
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.version_compat import AirflowTaskTimeout, TaskDeferred, mask_secret

from glidemq_orchestrate import Context, Flow, FlowNode, FlowSpec, Worker
from tests.providers.airflow import recording_callbacks
from tests.providers.airflow.builders import QUEUE, Contexts, Valkey, fired, submit


@pytest.fixture
def talking(valkey: Valkey, worker: Worker) -> Any:
    """A worker whose job ``talk`` logs, waits for the gate, and logs again."""
    made = Worker(valkey.url, queues=["talk"], prefix=valkey.prefix)

    @made.handler("talk")
    def talk(ctx: Context) -> Any:
        for number in range(int(str(ctx.data))):
            ctx.log(f"before {number}")
        ctx.progress({"done": 1})
        assert valkey.gate.wait(60)
        ctx.log("after")
        return ctx.data

    @made.handler("hush")
    def hush(_: Context) -> None:
        """It has a secret."""

    with made.running():
        yield made


def said(name: str, count: int) -> list[str]:
    return [*(f"[{name}] before {number}" for number in range(count)), f"[{name}] after"]


def reports(lines: Iterable[str], *, progress: bool = False) -> list[str]:
    shown = [line for line in lines if line.startswith("[")]
    return [line for line in shown if progress or "] done 1" not in line]


SECRET = FlowNode("secret", queue="talk", job="hush", data={"pw": ["is v4rs3cretXYZ"]}, after=["a"])
SPEC = FlowSpec(
    "t",
    [
        FlowNode("a", queue="talk", job="talk", data=3),
        FlowNode("b", queue="talk", job="talk", data=70, after=["a"]),
    ],
)


async def test_a_trigger_shows_lines_as_they_come(
    valkey: Valkey, talking: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    submit(valkey, SPEC, "f")
    trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=0.1, show_logs=True)

    def info(text: str, *args: Any) -> None:
        lines.append(text % args)
        if lines[-1] == "[a] before 2":
            assert "[a] after" not in lines
            threading.Timer(0.5, valkey.gate.set).start()

    monkeypatch.setattr(trigger.log, "info", info)
    await fired(trigger)
    found = reports(lines)
    assert [line for line in found if line.startswith("[a]")] == said("a", 3)
    assert [line for line in found if line.startswith("[b]")] == said("b", 70)
    assert "[a] done 1" in lines


async def test_a_trigger_shows_no_line_twice_when_the_server_was_away(
    valkey: Valkey, talking: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    submit(valkey, SPEC, "f")
    trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=0.1, show_logs=True)

    def cut() -> None:
        with redis.Redis.from_url(valkey.url.replace("valkey", "redis")) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        threading.Timer(0.5, valkey.gate.set).start()

    def info(text: str, *args: Any) -> None:
        lines.append(text % args)
        if lines[-1] == "[a] before 2":
            threading.Thread(target=cut).start()

    monkeypatch.setattr(trigger.log, "info", info)
    await fired(trigger, 60)
    found = reports(lines)
    assert found == [*said("a", 3), *said("b", 70)]


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_that_waits_itself_shows_them_too(
    valkey: Valkey,
    talking: Worker,
    context: Contexts,
    capsys: pytest.CaptureFixture[str],
    *,
    deferrable: bool,
) -> None:
    threading.Timer(0.5, valkey.gate.set).start()
    GlideMQFlowOperator(
        task_id="t",
        flow=SPEC,
        deferrable=deferrable,
        defer_after=30.0,
        logging_interval=0.1,
        show_logs=True,
        require_workers=False,
    ).execute(context())
    out = capsys.readouterr().out
    for line in (*said("a", 3), *said("b", 70)):
        assert out.count(f"{line}\n") + out.count(f"{line} ") == 1, line


def test_a_task_that_defers_and_resumes_leaves_them_to_the_trigger(
    valkey: Valkey, talking: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    made = context()
    given: dict[str, Any] = {
        "task_id": "t",
        "queue_name": "talk",
        "job": "talk",
        "data": 2,
        "show_logs": True,
    }
    with pytest.raises(TaskDeferred) as deferred:
        GlideMQOperator(**given, defer_after=0.0).execute(made)
    assert deferred.value.trigger.serialize()[1]["show_logs"] is True
    valkey.gate.set()
    with valkey.producer() as producer:
        producer.get(flow_id_for("d", "t", "r1")).wait()
    event = {"status": "completed", "flow_id": flow_id_for("d", "t", "r1")}
    assert GlideMQOperator(**given).execute_complete(made, event) == 2
    assert "before" not in capsys.readouterr().out


def test_a_task_shows_lines_while_it_waits_to_defer(
    valkey: Valkey, talking: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"queue_name": "talk", "job": "talk", "data": 2, "show_logs": True}
    with pytest.raises(TaskDeferred):
        GlideMQOperator(task_id="t", **given, defer_after=1.5, logging_interval=0.3).execute(context())
    valkey.gate.set()
    assert "[talk] before 1" in capsys.readouterr().out


def test_what_airflow_masks_is_not_shown_where_it_is_not_known(
    valkey: Valkey, talking: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    """A triggerer never learns which values of a payload are secret: the task shows the lines at its end."""
    mask_secret("v4rs3cretXYZ")
    given: dict[str, Any] = {
        "task_id": "t",
        "flow": FlowSpec("t", [FlowNode("a", queue="talk", job="talk", data=2), SECRET]),
        "show_logs": True,
        "require_workers": False,
    }
    with pytest.raises(TaskDeferred) as deferred:
        GlideMQFlowOperator(**given, defer_after=0.0).execute(context())
    kwargs = deferred.value.trigger.serialize()[1]
    assert (kwargs["show_logs"], kwargs["is_masked"]) == (True, True)
    assert "v4rs3cretXYZ" not in str(kwargs)
    valkey.gate.set()
    with valkey.producer() as producer:
        producer.get(flow_id_for("d", "t", "r1")).wait()
    event = {"status": "completed", "flow_id": flow_id_for("d", "t", "r1"), "is_masked": True}
    GlideMQFlowOperator(**given).execute_complete(context(), event)
    assert "[a] before 1" in capsys.readouterr().out


async def test_a_trigger_of_such_a_flow_shows_nothing(
    valkey: Valkey, talking: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    submit(valkey, SPEC, "f")
    valkey.gate.set()
    trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=0.1, show_logs=True, is_masked=True)
    monkeypatch.setattr(trigger.log, "info", lambda text, *args: lines.append(text % args))
    assert (await fired(trigger))["is_masked"] is True
    assert reports(lines, progress=True) == []


async def test_a_trigger_whose_deadline_has_passed_looks_once_more(
    valkey: Valkey, talking: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    stuck = FlowNode("b", queue="nobody", job="talk", after=["a"])
    submit(valkey, FlowSpec("t", [FlowNode("a", queue="talk", job="talk", data=0), stuck]), "f")
    deadline = time.time() + 2
    trigger = GlideMQFlowTrigger(flow_id="f", logging_interval=60.0, show_logs=True, deadline=deadline)
    monkeypatch.setattr(trigger.log, "info", lambda text, *args: lines.append(text % args))
    threading.Timer(0.7, valkey.gate.set).start()
    assert (await fired(trigger))["status"] == "timeout"
    assert reports(lines) == ["[a] after"]


def test_a_time_out_is_the_same_whether_deferred_or_not(
    valkey: Valkey,
    talking: Worker,
    context: Contexts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def until_end(_: WaitingInWorker, flow: Flow) -> None:
        while not flow.nodes()[0].attempts or not flow.logs({"a": 0})["a"].lines:
            time.sleep(0.01)
        raise AirflowTaskTimeout("Timeout, PID: 1")

    monkeypatch.setattr(WaitingInWorker, "until_end", until_end)
    recording_callbacks.events.clear()
    made = GlideMQFlowOperator(
        task_id="t",
        flow=FlowSpec("t", [FlowNode("a", queue="talk", job="talk", data=1)]),
        deferrable=False,
        show_logs=True,
        callbacks=[f"{recording_callbacks.__name__}:Noting"],
    )
    with pytest.raises(GlideMQFlowTimeout, match="had not ended at the task's execution_timeout"):
        made.execute(context())
    with valkey.producer() as producer:
        status = producer.get(flow_id_for("d", "t", "r1")).status()
    assert (status.state, status.reason) == ("cancelled", "the Airflow task's execution_timeout has passed")
    assert "[a] before 0" in capsys.readouterr().out
    assert [kind for kind, _ in recording_callbacks.events] == ["submitted", "end"]
    valkey.gate.set()


def test_nothing_is_shown_unless_asked_for(
    valkey: Valkey, talking: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    valkey.gate.set()
    GlideMQOperator(task_id="t", queue_name="talk", job="talk", data=2, deferrable=False).execute(context())
    out = capsys.readouterr().out
    assert "before" not in out
    assert "done 1" not in out


def test_a_spark_step_shows_its_progress(
    valkey: Valkey, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Worker(valkey.url, queues=[QUEUE], prefix=valkey.prefix)

    @made.handler("spark.python")
    def step(ctx: Context) -> None:
        ctx.log("not asked for")
        ctx.progress({"stages_done": 3, "stages": 3})

    with made.running():
        operator = GlideMQSparkOperator(
            task_id="t", application="s:clean", queue_name=QUEUE, defer_after=30.0, deferrable=True
        )
        operator.execute(context())
    out = capsys.readouterr().out
    assert "[clean] stages_done 3, stages 3" in out
    assert "not asked for" not in out
